"""Readiness and deployment: what there is, held against what must be. Pure; each wrong object is named."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from infra.diagnose.finding import Finding
from infra.verify.expected import TYPE_LABEL, Expected, Machines, Workload
from infra.verify.result import Phase, Result
from infra.verify.snapshot import Object, Snapshot, by_pool, is_ready, lasting_taints, name_of, pool_of
from infra.wiring.placing import amount
from infra.wiring.scheduling import EFA_RESOURCE, GPU_RESOURCE, HUGEPAGES

_WHOSE = {
    GPU_RESOURCE: "the device plugin does not run there, or a GPU is broken",
    EFA_RESOURCE: "its launch template has fewer interfaces, or the EFA device plugin does not run there: NCCL would go"
    " over TCP without an error",
    HUGEPAGES: "the EFA device's set-up has not reserved them: a job with EFA ends with `Cannot allocate memory`",
}


def readiness(wanted: Expected, seen: Snapshot, stack: str) -> list[Result]:
    """Version of Kubernetes, and of every pool: how many machines, ready, with labels, taints and devices."""
    results = [_kubernetes(wanted, seen)]
    if not wanted.machines:
        why = f"the settings of target {wanted.target} name no machines, so there is nothing to hold them to"
        return [*results, Result("readiness", "machines", "not run", why)]
    nodes = by_pool(seen.nodes)
    known = {machines.pool for machines in wanted.machines}
    if strangers := [node for node in seen.nodes if pool_of(node) not in known]:
        results.append(_strangers(strangers, known))
    for machines in wanted.machines:
        there = nodes.get(machines.pool, [])
        results.append(_machines(machines, there, stack))
        for check, judge in _OF_NODES.items():
            results.append(_each(f"{check} of {machines.pool}", machines, there, judge))
        if wanted.kubernetes:
            results.append(_each(f"kubelet of {machines.pool}", machines, there, _kubelet_of(wanted.kubernetes)))
    return results


def deployment(wanted: Expected, seen: Snapshot, stack: str) -> list[Result]:
    """What runs in the cluster, add-ons, definitions, priorities and the volume of the checkpoints."""
    nodes = by_pool(seen.nodes)
    results = [_workload(workload, seen, nodes) for workload in wanted.workloads]
    results.append(_definitions(wanted, seen, stack))
    missing = [
        _finding("priority-missing", f"PriorityClass {name} is not there", (), _UP, _up(stack), f"priorityclass/{name}")
        for name in wanted.priorities
        if name not in seen.priorities
    ]
    all_of = len(wanted.priorities)
    results.append(Result.judged(_D, "priorities", "there", all_of - len(missing), all_of, missing))
    results.append(_claim(wanted, seen, stack))
    if wanted.addons:
        results.append(_addons(wanted, seen, stack))
    return results


_D: Phase = "deployment"
_UP = "bring the stack to what its file says"


def _up(stack: str) -> str:
    return f"trainyard up -s {stack}"


def _finding(code: str, title: str, evidence: Iterable[str], remedy: str, command: str | None, of: str) -> Finding:
    return Finding(
        code=code, title=title, evidence=tuple(evidence), remedy=remedy, command=command, severity="error", object=of
    )


def _describe(node: Object) -> str:
    return shlex.join(["kubectl", "describe", "node", name_of(node)])


def _kubernetes(wanted: Expected, seen: Snapshot) -> Result:
    if wanted.kubernetes is None:
        return Result("readiness", "kubernetes", "not run", f"it is {seen.version}, and the settings ask for none")
    if _is_minor(seen.version, wanted.kubernetes):
        return Result("readiness", "kubernetes", "passed", seen.version)
    finding = _finding(
        "kubernetes-version",
        f"the API server is {seen.version}, the settings ask for {wanted.kubernetes}",
        (),
        _UP,
        None,
        "apiserver",
    )
    return Result("readiness", "kubernetes", "failed", finding.title, findings=(finding,))


def _is_minor(version: str, minor: str) -> bool:
    return version.removeprefix("v").split(".")[:2] == minor.split(".")


def _strangers(nodes: list[Object], known: set[str]) -> Result:
    findings = [
        _finding(
            "node-of-no-pool",
            f"node {name_of(node)} belongs to no pool of the settings",
            (f"its pool is {pool_of(node) or 'not labelled'}; the settings have {', '.join(sorted(known))}",),
            "give it the pool's label, or take it out of the cluster",
            _describe(node),
            f"node/{name_of(node)}",
        )
        for node in nodes
    ]
    return Result.judged("readiness", "machines of no pool", "none", 0, len(nodes), findings)


def _machines(machines: Machines, there: list[Object], stack: str) -> Result:
    """How many, ready, open for pods."""
    findings = []
    for node in there:
        if not is_ready(node):
            conditions = (node.get("status") or {}).get("conditions") or ()
            said = [f"{one['type']}: {one.get('message') or one.get('reason', '')}" for one in conditions]
            findings.append(_bad_node("node-not-ready", node, "is not ready", said, "look at its kubelet"))
        elif (node.get("spec") or {}).get("unschedulable"):
            findings.append(
                _bad_node("node-cordoned", node, "is cordoned: nobody has verified it", (), "uncordon or remove it")
            )
    good = len(there) - len(findings)
    pool = machines.pool
    wanted = f"{machines.least}" if machines.least == machines.most else f"{machines.least} to {machines.most}"
    if not machines.least <= len(there) <= machines.most:
        few = len(there) < machines.least
        findings.append(
            _finding(
                "pool-too-small" if few else "pool-too-large",
                f"pool {pool} has {len(there)} machines, its settings ask for {wanted}",
                [f"there: {', '.join(map(name_of, there)) or 'none'}"],
                "machines that never came: look at the node group's health and the account's quota"
                if few
                else "take those away that are too many, or raise the pool's number",
                _up(stack),
                f"pool/{pool}",
            )
        )
    of = max(machines.least, len(there))
    return Result.judged("readiness", f"machines of {pool}", f"ready; {wanted} asked for", good, of, findings)


def _bad_node(code: str, node: Object, what: str, evidence: Iterable[str], remedy: str) -> Finding:
    name = name_of(node)
    return _finding(code, f"node {name} {what}", evidence, remedy, _describe(node), f"node/{name}")


Judge = Callable[[Machines, Object], Iterator[Finding]]


def _each(check: str, machines: Machines, there: list[Object], judge: Judge) -> Result:
    found = {name_of(node): list(judge(machines, node)) for node in there}
    findings = [finding for each in found.values() for finding in each]
    good = sum(not each for each in found.values())
    return Result.judged("readiness", check, "as the settings say", good, max(machines.least, len(there)), findings)


def _labels(machines: Machines, node: Object) -> Iterator[Finding]:
    has: Mapping[str, str] = node["metadata"].get("labels") or {}
    wrong = [
        f"{key} is {has[key]!r}, not {value!r}" if key in has else f"{key}={value} is missing"
        for key, value in machines.labels.items()
        if has.get(key) != value
    ]
    if machines.types and has.get(TYPE_LABEL) not in machines.types:
        wrong.append(f"its type is {has.get(TYPE_LABEL)}; the pool is of {', '.join(machines.types)}")
    if wrong:
        remedy = "pods that ask for these labels never land there: have the node group write them again"
        yield _bad_node("node-labels", node, "has not the labels of its pool", wrong, remedy)


def _taints(machines: Machines, node: Object) -> Iterator[Finding]:
    wanted = {(taint.key, taint.value, taint.effect) for taint in machines.taints}
    has = lasting_taints(node)
    missing = [f"missing: {_taint(taint)}" for taint in sorted(wanted - has)]
    more = [f"not of the settings: {_taint(taint)}" for taint in sorted(has - wanted)]
    if missing:
        remedy = "pods land there that should not: have the node group write its taints again"
        yield _bad_node("node-taint-missing", node, "lacks a taint of its pool", missing, remedy)
    if more:
        remedy = "jobs and agents do not tolerate it, so nothing lands there: take it away"
        yield _bad_node("node-taint-strange", node, "has a taint that no setting asks for", more, remedy)


def _taint(taint: tuple[str, str, str]) -> str:
    key, value, effect = taint
    return f"{key}={value}:{effect}"


def _devices(machines: Machines, node: Object) -> Iterator[Finding]:
    offers: Mapping[str, Any] = (node.get("status") or {}).get("allocatable") or {}
    kind = (node["metadata"].get("labels") or {}).get(TYPE_LABEL, "")
    # A wrong type is another check's; what the pool is for holds all the same.
    wanted = machines.devices.get(kind) or next(iter(machines.devices.values()))
    for resource, number in wanted.items():
        has = amount(resource, offers.get(resource, 0))
        if has != number:
            what = f"offers {has} {resource}, and its pool's machines have {number}"
            yield _bad_node("node-devices", node, what, (_WHOSE[resource],), "drain it, and have it replaced")
    if (has := amount(HUGEPAGES, offers.get(HUGEPAGES, 0))) < machines.hugepages_mib:
        what = f"offers {has} MiB of {HUGEPAGES}, and a worker takes {machines.hugepages_mib}"
        yield _bad_node("node-devices", node, what, (_WHOSE[HUGEPAGES],), "drain it, and have it replaced")


def _kubelet_of(minor: str) -> Judge:
    def judge(_: Machines, node: Object) -> Iterator[Finding]:
        version = str(((node.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion", ""))
        if not _is_minor(version, minor):
            what = f"has kubelet {version or 'of no version'}, the settings ask for {minor}"
            yield _bad_node("node-kubelet", node, what, (), "update its node group")

    return judge


_OF_NODES: Mapping[str, Judge] = {"labels": _labels, "taints": _taints, "devices": _devices}


def _workload(workload: Workload, seen: Snapshot, nodes: Mapping[str, list[Object]]) -> Result:
    found = seen.workloads.get(workload.key)
    look = shlex.join(["kubectl", "-n", workload.namespace, "describe", workload.kind.lower(), workload.name])
    of = workload.replicas if workload.replicas is not None else sum(len(nodes.get(p, [])) for p in workload.pools)
    if found is None:
        finding = _finding("workload-missing", f"{workload.key} is not there", (), _UP, None, workload.key)
        return Result(_D, workload.key, "failed", finding.title, 0, of, (finding,))
    status = found.get("status") or {}
    ready = int(status.get("numberReady" if workload.kind == "DaemonSet" else "readyReplicas") or 0)
    findings = []
    if workload.kind == "DaemonSet" and (asked := int(status.get("desiredNumberScheduled") or 0)) != of:
        title = f"{workload.key} wants {asked} machines, its pools have {of}"
        remedy = "its node selector or its tolerations do not fit the pools: it lands on others, and says nothing"
        findings.append(_finding("agent-misses-machines", title, (), remedy, look, workload.key))
    if ready < of:
        said = [f"{c['type']}: {c.get('message', '')}" for c in status.get("conditions") or () if c["status"] != "True"]
        title = f"{workload.key} has {ready} of {of} pods ready"
        findings.append(_finding("workload-not-ready", title, said, "see why its pods do not run", look, workload.key))
    containers = found["spec"]["template"]["spec"]["containers"]
    images = {str(container["image"]) for container in containers}
    if workload.images and images != workload.images:
        title = f"{workload.key} runs {', '.join(sorted(images))}, the lock has {', '.join(sorted(workload.images))}"
        findings.append(_finding("workload-image", title, (), _UP, look, workload.key))
    return Result.judged(_D, workload.key, "ready", min(ready, of), of, findings)


def _definitions(wanted: Expected, seen: Snapshot, stack: str) -> Result:
    findings = []
    for name in wanted.definitions:
        conditions = ((seen.definitions.get(name) or {}).get("status") or {}).get("conditions") or ()
        if any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
            continue
        what = "is not established" if name in seen.definitions else "is not there"
        findings.append(
            _finding("definition-missing", f"{name} {what}", (), _UP, _up(stack), f"customresourcedefinition/{name}")
        )
    of = len(wanted.definitions)
    return Result.judged(_D, "definitions", "established", of - len(findings), of, findings)


def _claim(wanted: Expected, seen: Snapshot, stack: str) -> Result:
    namespace, _, name = wanted.claim.partition("/")
    found = seen.claims.get(wanted.claim)
    phase = ((found or {}).get("status") or {}).get("phase")
    if phase == "Bound":
        return Result(_D, "checkpoint volume", "passed", "bound")
    if phase == "Pending" and wanted.target == "kubeconfig":
        # Classes of such clusters may wait for the first pod, and which class it is the cluster alone knows.
        return Result(_D, "checkpoint volume", "unknown", "not bound yet: its class may wait for the first job")
    title = f"the volume of the checkpoints, {wanted.claim}, is {phase or 'not there'}"
    command = shlex.join(["kubectl", "-n", namespace, "describe", "pvc", name]) if found else _up(stack)
    finding = _finding(
        "claim-not-bound",
        title,
        (),
        "no job starts before it is bound",
        command,
        f"persistentvolumeclaim/{wanted.claim}",
    )
    return Result(_D, "checkpoint volume", "failed", title, findings=(finding,))


def _addons(wanted: Expected, seen: Snapshot, stack: str) -> Result:
    findings = []
    for name, version in wanted.addons.items():
        found = seen.addons.get(name)
        look = f"aws eks describe-addon --cluster-name {wanted.cluster} --addon-name {name} --region {wanted.region}"
        wrong = []
        if found is None:
            wrong.append("is not there")
        else:
            if found.get("status") != "ACTIVE":
                wrong.append(f"is {found.get('status')}")
            if found.get("addonVersion") != version:
                wrong.append(f"has version {found.get('addonVersion')}, the lock has {version}")
        if wrong:
            issues = ((found or {}).get("health") or {}).get("issues") or ()
            said = [f"{issue.get('code')}: {issue.get('message')}" for issue in issues]
            title = f"add-on {name} {', '.join(wrong)}"
            findings.append(_finding("addon", title, said, _UP, look if found else _up(stack), f"addon/{name}"))
    of = len(wanted.addons)
    return Result.judged(_D, "add-ons", "active, of the lock's versions", of - len(findings), of, findings)
