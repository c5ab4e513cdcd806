"""The image lock: what was built for a stack is found again, by digest; a damaged one is one plain mistake."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.catalog.versions import versions
from infra.settings import Settings, SettingsError, from_engine, read_stack_file, require_images
from infra.settings.image_lock import ImageLock, ImageLockError, build_command, path_of, read, record
from infra.settings.images import NOT_BUILT

CONTROLLER = f"123456789012.dkr.ecr.us-east-2.amazonaws.com/trainyard-dev/controller:1-abc@sha256:{'1' * 64}"
EFA = f"registry.example:5000/training@sha256:{'2' * 64}"
AWS: dict[str, Any] = {
    "target": "aws",
    "aws": {"region": "us-east-2", "network": {"zones": ["us-east-2a", "us-east-2b"]}},
}
KUBECONFIG: dict[str, Any] = {"target": "kubeconfig", "kubeconfig": {"path": "k"}}


def stack_file(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "Pulumi.dev.yaml"
    values = {f"trainyard:{key}": value for key, value in config.items()}
    path.write_text(yaml.safe_dump({"config": values}, sort_keys=False))
    return path


def settings_in(folder: Path, config: dict[str, Any]) -> Settings:
    return read_stack_file(stack_file(folder, config), "dev")


def told(config: dict[str, Any]) -> dict[str, str]:
    return {f"trainyard:{key}": value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}


def test_what_is_recorded_is_read_sorted_by_row_and_says_who_wrote_it(tmp_path: Path) -> None:
    assert read(tmp_path, "dev") == ImageLock()
    record(tmp_path, "dev", "torch2.15-cuda13.2-efa", EFA.replace("2" * 64, "3" * 64))
    record(tmp_path, "dev", "controller", CONTROLLER)
    path = record(tmp_path, "dev", "torch2.15-cuda13.2-efa", EFA)
    assert path == path_of(tmp_path, "dev") == tmp_path / "images.dev.toml"
    assert read(tmp_path, "dev").images == {"controller": CONTROLLER, "torch2.15-cuda13.2-efa": EFA}
    assert read(tmp_path, "dev").controller == CONTROLLER
    written = path.read_text()
    assert written.startswith("# Images of stack dev by digest")
    assert "trainyard images build -s dev --push" in written
    assert written.index('"controller"') < written.index('"torch2.15')
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [one.name for one in tmp_path.iterdir()] == ["images.dev.toml"], "nothing else is left"
    assert read(tmp_path, "prod") == ImageLock(), "each stack has its own"


@pytest.mark.parametrize(
    ("row", "reference", "sentence"),
    [
        ("controller", "registry.example/controller:1", "names no digest: it must end with @sha256:"),
        ("controller", f"Registry/x@sha256:{'1' * 64}", "is no reference of an image"),
        ("controller", f'r/x"\n@sha256:{"1" * 64}', "is no reference of an image"),
        ("a row", CONTROLLER, "is no name of a row"),
    ],
)
def test_only_references_by_digest_are_recorded(tmp_path: Path, row: str, reference: str, sentence: str) -> None:
    with pytest.raises(ImageLockError, match=sentence):
        record(tmp_path, "dev", row, reference)
    assert list(tmp_path.iterdir()) == []


def test_builds_that_end_together_are_both_recorded(tmp_path: Path) -> None:
    rows = [f"row{number}" for number in range(20)]
    threads = [threading.Thread(target=record, args=(tmp_path, "dev", row, EFA)) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read(tmp_path, "dev").images) == sorted(rows)


def test_a_folder_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ImageLockError, match="was pushed and is not in the lock; run") as caught:
        record(tmp_path / "none", "dev", "controller", CONTROLLER)
    assert build_command("dev") in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"images = ", "is no TOML"),
        (b"\xff", "is not UTF-8 text"),
        (b"images = 1", "images must be a table"),
        (b"[images]\ncontroller = 1", "images.controller must be text"),
        (b'[images]\ncontroller = "c:1"', "images.controller names no digest"),
        (b"[image]", "image is no key of an image lock"),
    ],
)
def test_a_damaged_lock_is_one_mistake_among_the_others(tmp_path: Path, content: bytes, sentence: str) -> None:
    path_of(tmp_path, "dev").write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        settings_in(tmp_path, AWS | {"namespace": "default"})
    message = str(caught.value)
    assert "2 mistakes;" in message
    assert f"  images.dev.toml: {sentence}" in message
    assert "fix: git checkout -- images.dev.toml, or remove it and run trainyard images build -s dev --push" in message
    with pytest.raises(ImageLockError, match=r"images\.dev\.toml"):
        record(tmp_path, "dev", "controller", CONTROLLER)
    assert path_of(tmp_path, "dev").read_bytes() == content, "what cannot be read is not overwritten"


@pytest.mark.parametrize("config", [AWS, KUBECONFIG])
def test_controller_and_etcd_come_from_their_locks_unless_they_are_named(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    record(tmp_path, "dev", "controller", CONTROLLER)
    images = settings_in(tmp_path, config).images
    assert (images.controller, images.etcd) == (CONTROLLER, versions().image("etcd"))
    assert images.built
    assert from_engine(told(config), "dev", tmp_path).images == images, "the program takes the same"
    named = settings_in(tmp_path, config | {"images": {"controller": "mine:1", "etcd": "etcd:2"}}).images
    assert (named.controller, named.etcd) == ("mine:1", "etcd:2")


def test_the_local_target_has_its_images_and_reads_no_lock(tmp_path: Path) -> None:
    path_of(tmp_path, "dev").write_text("damaged")
    images = settings_in(tmp_path, {"target": "local"}).images
    assert (images.controller, images.etcd) == ("trainyard/controller:local", "trainyard/etcd:local")


@pytest.mark.parametrize(
    ("config", "fix"),
    [
        (AWS, "fix: trainyard images build -s dev --push, or pulumi config set"),
        (KUBECONFIG, "fix: trainyard images build -s dev --push --registry REGISTRY/PATH, or pulumi config set"),
    ],
)
def test_a_stack_that_was_not_built_can_be_looked_at_and_not_brought_up(
    tmp_path: Path, config: dict[str, Any], fix: str
) -> None:
    settings = settings_in(tmp_path, config)
    assert settings.images.controller == NOT_BUILT
    with pytest.raises(SettingsError) as for_the_command:
        require_images(settings, "dev")
    with pytest.raises(SettingsError) as for_the_program:
        from_engine(told(config), "dev", tmp_path)
    for caught in (for_the_command, for_the_program):
        assert "1 mistake;" in str(caught.value)
        assert "images.controller: is missing, and images.dev.toml has none: it was not built yet" in str(caught.value)
        assert fix in str(caught.value)
    assert not from_engine(told(config), "dev", tmp_path, need_images=False).images.built
    rehearsed = told(config | {"images": {"controller": NOT_BUILT}})
    assert from_engine(rehearsed, "dev", tmp_path).images.controller == NOT_BUILT, "as in a rehearsal's own stack file"
