"""Requests and limits from what a job was seen to use."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightkube.utils.quantity import parse_quantity

from infra.advice import Advice, Finding, advise
from infra.advice.rules import LEAST_STEPS, MIB, MOST_LOADERS
from infra.history import history
from infra.jobs import Progress

GIB = 1024 * MIB


def job(*, args: tuple[str, ...] = (), pod: dict[str, Any] | None = None, **resources: Any) -> dict[str, Any]:
    container = {"name": "elasticjob-worker", "args": list(args), "resources": resources}
    return {"spec": {"replicaSpecs": {"Worker": {"template": {"spec": {"containers": [container], **(pod or {})}}}}}}


def ran(
    *,
    seconds: int = 300,
    peak: int = 2 * GIB,
    early: int | None = None,
    cores: float = 1.0,
    shm: tuple[int, int] = (0, GIB),
    data: float = 0.0,
    loaders: int | None = 0,
    **more: Any,
) -> list[Progress]:
    """A job of one step a second, of which `data` seconds are waited for samples."""
    told = [Progress("w-0", "resume", 0.0, {"step": 0, "generation": 1, "world_size": 1, "loader_workers": loaders})]
    for number in range(1, seconds + 1):
        split = {"data": data, "forward": 1.0 - data}
        told.append(Progress("w-0", "step", float(number), {"step": number, "generation": 1, "seconds": split}))
    for time in range(0, seconds + 1, 30):
        fields = {
            "cpu_seconds": cores * time,
            "memory_bytes": peak,
            "memory_peak_bytes": early if early is not None and time < seconds * 0.9 else peak,
            "shm_peak_bytes": shm[0],
            "shm_size_bytes": shm[1],
            "workers": 1,
            **{name: value * time if name == "throttled_seconds" else value for name, value in more.items()},
        }
        told.append(Progress("w-0", "resources", float(time), fields))
    return told


def of(advice: Advice, resource: str) -> Finding:
    return next(finding for finding in advice.findings if finding.resource == resource)


def advice_for(manifest: dict[str, Any], told: list[Progress]) -> Advice:
    return advise(history("digits", told), manifest)


def lines(finding: Finding) -> list[tuple[str, str | None, str]]:
    return [(each.path.rpartition("[elasticjob-worker].")[2], each.before, each.after) for each in finding.changes]


def test_a_limit_far_above_the_peak_is_lowered_and_one_at_the_peak_is_raised() -> None:
    generous = of(advice_for(job(limits={"memory": "16Gi"}), ran(peak=2 * GIB)), "memory")
    assert generous.state == "change"
    assert lines(generous) == [
        ("resources.requests.memory", None, "memory: 2560Mi"),
        ("resources.limits.memory", "memory: 16Gi", "memory: 2560Mi"),
    ]
    tight = of(advice_for(job(limits={"memory": "2100Mi"}), ran(peak=2 * GIB)), "memory")
    assert tight.state == "change"
    assert "too little" in tight.summary


def test_figures_that_are_right_are_left_alone() -> None:
    found = advice_for(
        job(requests={"cpu": "2", "memory": "3Gi"}, limits={"memory": "3Gi"}),
        ran(peak=2 * GIB, cores=1.6, data=0.02, loaders=4, shm=(100 * MIB, GIB)),
    )
    assert [finding.state for finding in found.findings] == ["keep"] * 4
    assert found.changes == ()


def test_at_a_limit_that_has_ended_processes_the_peak_is_no_measure() -> None:
    found = of(advice_for(job(limits={"memory": "2Gi"}), ran(peak=2 * GIB - MIB, seconds=60, oom_kills=2)), "memory")
    assert found.evidence == ("the kernel has ended 2 processes at the limit 2.0 GiB",)
    assert lines(found)[1] == ("resources.limits.memory", "memory: 2Gi", "memory: 3Gi")


def test_memory_that_still_grows_has_no_figure_yet() -> None:
    found = of(advice_for(job(limits={"memory": "8Gi"}), ran(peak=3 * GIB, early=2 * GIB)), "memory")
    assert (found.state, found.changes) == ("unknown", ())
    assert "still grows, by 50%" in found.summary


def test_processors_that_were_used_are_asked_for_and_none_beyond() -> None:
    few = of(advice_for(job(requests={"cpu": "1"}), ran(cores=3.2)), "cpu")
    assert lines(few) == [("resources.requests.cpu", 'cpu: "1"', 'cpu: "4"')]
    none = of(advice_for(job(), ran(cores=0.5)), "cpu")
    assert lines(none) == [("resources.requests.cpu", None, 'cpu: "0.6"')]
    assert "asks for none" in none.summary


def test_a_limit_of_processors_that_holds_back_is_raised() -> None:
    found = of(advice_for(job(limits={"cpu": "2"}), ran(cores=1.9, throttled_seconds=0.3)), "cpu")
    assert lines(found)[1] == ("resources.limits.cpu", 'cpu: "2"', 'cpu: "3"')
    assert "30% of the time" in found.evidence[-1]


def test_processors_of_a_launcher_that_was_started_anew_are_not_counted_backwards() -> None:
    told = ran(cores=2.0)
    again = [
        Progress(line.pod, line.event, line.time + 400, {**line.fields, "step": line.fields.get("step", 0) + 300})
        for line in told
    ]
    found = of(advice_for(job(requests={"cpu": "2"}), told + again), "cpu")
    assert found.state == "keep"
    assert "2.00 processors on average" in found.evidence[0]


def test_shared_memory_that_is_nearly_full_gets_a_volume_or_a_larger_one() -> None:
    full = ran(shm=(60 * MIB, 64 * MIB))
    found = of(advice_for(job(), full), "shm")
    assert [change.after for change in found.changes] == [
        "- {name: shm, emptyDir: {medium: Memory, sizeLimit: 128Mi}}",
        "- {name: shm, mountPath: /dev/shm}",
    ]
    with_volume = job(pod={"volumes": [{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}]})
    spec = with_volume["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
    spec["containers"][0]["volumeMounts"] = [{"name": "m", "mountPath": "/dev/shm"}]  # noqa: S108
    (change,) = of(advice_for(with_volume, full), "shm").changes
    assert (change.before, change.after) == ("sizeLimit: 64Mi", "sizeLimit: 128Mi")
    assert change.path == "spec.replicaSpecs.Worker.template.spec.volumes[m].emptyDir.sizeLimit"


@pytest.mark.parametrize(
    ("args", "path", "before", "after"),
    [
        (("train.py",), "the script", None, "loop.setup(..., num_workers=2)"),
        (("train.py", "--num-workers=0"), "args[1]", "- --num-workers=0", "- --num-workers=2"),
        (("--loader_workers", "0"), "args[1]", '- "0"', '- "2"'),
    ],
    ids=["in the script", "one argument", "two arguments"],
)
def test_loaders_that_keep_up_with_the_computation(
    args: tuple[str, ...], path: str, before: str | None, after: str
) -> None:
    found = of(advice_for(job(args=args), ran(data=0.6)), "loader workers")
    assert lines(found) == [(path, before, after)]
    assert "60.0%" in found.evidence[0]


def test_where_more_loaders_would_not_help_that_is_said() -> None:
    found = of(advice_for(job(), ran(data=0.9, loaders=MOST_LOADERS)), "loader workers")
    assert found.state == "keep"
    assert "Make it cheaper" in found.summary


@pytest.mark.parametrize(
    ("told", "lacking"),
    [
        ([], "no worker has told what it uses"),
        (ran(seconds=30), f"30 steps are known, {LEAST_STEPS} are needed"),
        (ran(seconds=90), "told for 90 s, 120 s are needed"),
    ],
    ids=["nothing", "few steps", "short"],
)
def test_without_evidence_there_is_no_figure(told: list[Progress], lacking: str) -> None:
    found = advice_for(job(), told)
    assert {finding.state for finding in found.findings[:3]} == {"unknown"}
    assert [finding.changes for finding in found.findings[:3]] == [(), (), ()]
    assert lacking in of(found, "memory").summary


@settings(deadline=None)
@given(
    peak=st.integers(64 * MIB, 2000 * GIB),
    cores=st.floats(0.01, 190),
    data=st.floats(0, 1),
    loaders=st.integers(0, 20),
    limit=st.none() | st.sampled_from(["500m", "1", "64"]),
    memory=st.none() | st.sampled_from(["512Mi", "8Gi", "1Ti", "4000000000"]),
)
def test_what_was_used_fits_into_what_is_recommended_and_advice_that_is_followed_comes_to_rest(
    peak: int, cores: float, data: float, loaders: int, limit: str | None, memory: str | None
) -> None:
    told = ran(peak=peak, cores=cores, data=data, loaders=loaders, seconds=150)
    limits = {name: value for name, value in (("cpu", limit), ("memory", memory)) if value}
    advice = advice_for(job(limits=limits), told)
    requests: dict[str, str] = dict(limits)
    for change in of(advice, "memory").changes + of(advice, "cpu").changes:
        kind, resource = change.path.split(".")[-2:]
        wanted = change.after.partition(": ")[2].strip('"')
        (requests if kind == "requests" else limits)[resource] = wanted
        used = peak if resource == "memory" else cores
        assert (parse_quantity(wanted) or 0) >= used
    again = advice_for(job(requests=requests, limits=limits), told)
    assert {of(again, name).state for name in ("memory", "cpu")} == {"keep"}
    counts = [change.after for change in of(advice, "loader workers").changes]
    assert all(loaders < int(count.partition("=")[2].strip(")")) <= MOST_LOADERS for count in counts)
