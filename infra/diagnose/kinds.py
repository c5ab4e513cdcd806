"""The kinds of findings: what each is called, how bad it is, and what to do. The reference page is made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from infra.diagnose.finding import Finding, Severity
from training.diagnose.causes import CAUSES


@dataclass(frozen=True, slots=True)
class Kind:
    """What all findings of one code have in common."""

    title: str
    severity: Severity
    remedy: str

    def finding(self, code: str, about: str, evidence: tuple[str, ...], command: str | None) -> Finding:
        """A finding of this kind."""
        return Finding(code, self.title, evidence, self.remedy, command, self.severity, about)


KINDS: Final[dict[str, Kind]] = {
    # In the order in which one explains another: an etcd that is away stops all jobs.
    "controller-down": Kind(
        "the elastic controller does not work: jobs are neither started nor mended",
        "error",
        "Look at its pod and its log. What trains goes on without it.",
    ),
    "etcd-down": Kind(
        "etcd does not run: workers cannot meet, and what trains stops at its next disturbance",
        "error",
        "Look at its pod and its volume. Jobs go on by themselves when it is back.",
    ),
    "node-not-ready": Kind(
        "a machine does not answer",
        "error",
        "Its workers are replaced by themselves. Where it does not come back, delete it from the cluster.",
    ),
    "node-pressure": Kind(
        "a machine is short of memory, disk or processes: its pods may be evicted",
        "warning",
        "See what takes the room; give its pods limits, or the pool larger machines.",
    ),
    "notice": Kind(
        "a machine will be taken away",
        "warning",
        "Nothing needs to be done: its workers save and leave, and others are asked for.",
    ),
    "controller": Kind("the controller has not seen the job", "error", "Look at the controller."),
    "suspended": Kind("the job is suspended", "note", "Resume it when it shall train."),
    "queue": Kind("the job waits in its queue", "note", "It starts when the queue has quota for it."),
    "quota": Kind("a quota of the namespace is used up", "error", "Raise the quota, or end what uses it."),
    "refused": Kind("the API server refuses the job's workers", "error", "Correct the job's file."),
    "capacity": Kind("no machine has room for a worker", "error", "Ask for less, or for more machines."),
    "untolerated-taint": Kind(
        "the only machines with room keep the workers away by a taint", "error", "Give the workers a toleration."
    ),
    "no-such-machine": Kind(
        "no machine has the labels that the workers ask for",
        "error",
        "Correct nodeSelector or affinity in the job's file; trainyard template prints what fits a pool.",
    ),
    "volume": Kind("a volume cannot be had", "error", "Make the claim, or correct its name in the job's file."),
    "image": Kind("an image cannot be had", "error", "Correct its name, or the rights to pull it."),
    "configuration": Kind("a container cannot be made", "error", "Correct what its message names."),
    "crash": Kind("a worker's program ends again and again", "error", "Read its log."),
    **{cause.name: Kind(cause.title, "error", cause.next_step) for cause in CAUSES},
    "failed": Kind("the job has failed, and its logs name no known cause", "error", "Read the log's last lines."),
    "hang": Kind(
        "training stands still: the workers run and make no step",
        "error",
        "Find the rank that does not come: `py-spy dump` of each worker shows where it is. A frozen machine is left "
        "out by itself; a script that waits for ever is not.",
    ),
    "workers-missing": Kind(
        "fewer workers train than are wanted, and nobody says why",
        "warning",
        "Look at the pods and the controller's log.",
    ),
    "slow-saves": Kind(
        "much of the time goes into checkpoints",
        "warning",
        "Save to a local disk and synchronise beside the training, or save less often: docs/how-to/"
        "data-and-checkpoints.md.",
    ),
    "data-bound": Kind(
        "the workers wait for data most of the time",
        "warning",
        "Take more loader workers, or bring the data nearer: trainyard recommend says how many.",
    ),
    "efa-not-requested": Kind(
        "the workers' machines have EFA, and the job does not ask for it: NCCL goes over sockets",
        "warning",
        "Ask for it in the job's file; trainyard template prints the right number.",
    ),
    "efa-not-used": Kind(
        "NCCL goes over sockets although the machines have EFA",
        "error",
        "See docs/explanation/silent-failures.md: the image needs aws-ofi-nccl and libfabric, the pod its devices and "
        "hugepages, the security group itself as source and target.",
    ),
    "disturbed": Kind("the job was disturbed a short while ago and goes on", "note", "Nothing needs to be done."),
}
_ORDER: Final = {code: place for place, code in enumerate(KINDS)}


def in_order(found: list[Finding]) -> list[Finding]:
    """Errors first, and among equals what explains others first; the same thing once."""
    severities = ("error", "warning", "note")
    every = dict.fromkeys(found)
    return sorted(every, key=lambda one: (severities.index(one.severity), _ORDER[one.code], one.object))
