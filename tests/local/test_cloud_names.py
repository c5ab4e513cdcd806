"""Service names in hosts files."""

import os
from pathlib import Path
from typing import Any

import pytest

from infra.local.cloud.inotify import FolderWatch
from infra.local.cloud.names import BEGIN, END, Names, PodView, ServiceView, block, with_block, write_in_place

KUBELETS = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n127.77.1.2\tw-0\n"


def pod(name: str = "w-0", address: str = "127.77.1.2", **changes: Any) -> PodView:
    spec = {"nodeName": "gpu-1", **changes.pop("spec", {})}
    status = {"podIP": address, "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"uid": f"uid-{name}", "namespace": "training", "name": name, "labels": {"job": "j", "x": "y"}}
    return PodView.of(
        {
            "metadata": metadata | changes.pop("metadata", {}),
            "spec": spec,
            "status": status | changes.pop("status", {}),
        }
    )


def service(name: str = "j", namespace: str = "training", **spec: Any) -> ServiceView:
    return ServiceView.of(
        {"metadata": {"name": name, "namespace": namespace}, "spec": {"selector": {"job": "j"}} | spec}
    )


NOT_READY = {"conditions": [{"type": "Ready", "status": "False"}]}


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


def test_a_service_leads_to_its_pods_under_all_its_names() -> None:
    [line] = lines(block("training", [service()], [pod()]))
    assert line == ["127.77.1.2", "j.training.svc.cluster.local", "j.training.svc", "j.training", "j"]


def test_the_short_name_is_for_the_same_namespace_only() -> None:
    [line] = lines(block("other", [service()], [pod()]))
    assert "j" not in line
    assert "j.training" in line


def test_a_named_pod_of_a_service_has_a_name_of_its_own_and_it_comes_first() -> None:
    text = block("training", [service()], [pod(spec={"hostname": "w-0", "subdomain": "j"})])
    first, second = lines(text)
    assert first[1:] == ["w-0.j.training.svc.cluster.local", "w-0.j.training.svc", "w-0.j.training", "w-0.j"]
    assert second[1] == "j.training.svc.cluster.local"


def test_a_subdomain_of_another_service_gives_no_name() -> None:
    assert len(lines(block("training", [service()], [pod(spec={"hostname": "w-0", "subdomain": "k"})]))) == 1


@pytest.mark.parametrize(
    ("changes", "published", "otherwise"),
    [
        ({}, True, True),
        ({"status": NOT_READY}, True, False),
        ({"metadata": {"deletionTimestamp": "now"}}, True, False),
        ({"status": {"phase": "Succeeded"}}, False, False),
        ({"status": {"podIP": None}}, False, False),
        ({"metadata": {"labels": {"job": "k"}}}, False, False),
        ({"metadata": {"namespace": "other"}}, False, False),
    ],
)
def test_which_pods_a_service_leads_to(changes: dict[str, Any], published: bool, otherwise: bool) -> None:
    one = pod(**changes)
    assert service(publishNotReadyAddresses=True).includes(one) is published
    assert service().includes(one) is otherwise


def test_a_service_without_selector_leads_nowhere() -> None:
    assert block("training", [service(selector=None)], [pod()]) == ""


def test_the_order_is_always_the_same() -> None:
    pods = [pod(f"w-{n}", f"127.77.1.{n + 2}") for n in range(3)]
    services = [service("b"), service("a")]
    assert block("training", services, pods) == block("training", services[::-1], pods[::-1])


def test_the_kubelets_own_lines_stay() -> None:
    first = with_block(KUBELETS, BEGIN + "one\n" + END)
    assert first == KUBELETS + BEGIN + "one\n" + END
    assert with_block(first, BEGIN + "two\n" + END) == KUBELETS + BEGIN + "two\n" + END
    assert with_block(first, "") == KUBELETS
    assert with_block("no newline", BEGIN + END) == "no newline\n" + BEGIN + END


def test_files_are_written_in_place_and_only_when_they_differ(tmp_path: Path) -> None:
    path = tmp_path / "etc-hosts"
    path.write_text(KUBELETS)
    inode, text = path.stat().st_ino, BEGIN + "127.0.0.9\tx\n" + END
    assert write_in_place(path, text)
    assert path.stat().st_ino == inode
    assert not write_in_place(path, text)
    assert write_in_place(path, "")
    assert path.read_text() == KUBELETS


def test_a_file_that_the_kubelet_just_emptied_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "etc-hosts"
    path.touch()
    assert not write_in_place(path, BEGIN + END)
    assert path.read_text() == ""


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_in_place(tmp_path / "etc-hosts", "x")


def hosts(root: Path, uid: str) -> Path:
    path = root / "gpu-1" / "kubelet" / "pods" / uid / "etc-hosts"
    path.parent.mkdir(parents=True)
    path.write_text(KUBELETS)
    return path


def test_all_pods_learn_of_a_new_one_and_of_its_end(tmp_path: Path) -> None:
    names, path = Names(tmp_path), hosts(tmp_path, "uid-w-0")
    names.set_service(service(), gone=False)
    assert names.set_pod(pod(), gone=False)
    assert names.set_pod(pod("w-1", "127.77.1.3"), gone=False)
    names.refresh()
    assert path.read_text().count("j.training.svc\t") == 2
    assert names.set_pod(pod("w-1", "127.77.1.3"), gone=True)
    names.refresh()
    assert path.read_text().count("j.training.svc\t") == 1


def test_changes_that_mean_nothing_to_names_cause_no_work(tmp_path: Path) -> None:
    names = Names(tmp_path)
    names.set_pod(pod(), gone=False)
    assert not names.set_pod(pod(status={"startTime": "later"}), gone=False)
    assert not names.set_pod(pod("unknown"), gone=True)


def test_what_the_kubelet_rewrites_is_completed_again(tmp_path: Path) -> None:
    names, path = Names(tmp_path), hosts(tmp_path, "uid-w-0")
    names.set_service(service(), gone=False)
    names.set_pod(pod(), gone=False)
    names.refresh()
    full = path.read_text()
    path.write_text(KUBELETS)
    names.refresh_one("uid-w-0")
    assert path.read_text() == full


def test_linux_tells_of_new_folders_and_written_files_but_not_of_reading(tmp_path: Path) -> None:
    watch = FolderWatch()
    assert watch.add(tmp_path)
    assert not watch.add(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    assert watch.add(tmp_path / "folder")
    events = watch.events()
    assert next(events) == tmp_path / "folder"
    file = tmp_path / "folder" / "etc-hosts"
    file.write_text(KUBELETS)
    assert next(events) == file  # made
    assert next(events) == file  # written
    file.read_text()
    write_in_place(file, "")  # nothing to change
    os.mkdir(tmp_path / "end")  # noqa: PTH102
    assert next(events) == tmp_path / "end"
