"""Published models: versions that never change, one that is current, two who decide at once; in a folder and in S3."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from infra.workflow.definition import Gate
from infra.workflow.errors import GateError, StoreError
from infra.workflow.models import Models

GATE = Gate(metric="accuracy", limit=0.8, tolerance=0.05)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        return str(tmp_path / "models")
    address = request.getfixturevalue("s3")
    settings = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    bucket = f"b{abs(hash(str(tmp_path)))}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return f"s3://{bucket}/models"


def model(folder: Path, weights: str) -> Path:
    made = folder / f"model-{weights}"
    (made / "sub").mkdir(parents=True, exist_ok=True)
    (made / "weights").write_text(weights)
    (made / "sub/words").write_text("words")
    return made


def publish(place: str, folder: Path, run: str, accuracy: float, gate: Gate = GATE) -> str:
    metrics = {"accuracy": accuracy}
    version, _ = Models(place).publish(model(folder, run), run=run, job=f"j-{run}", metrics=metrics, gate=gate)
    return version.name


def test_a_model_is_published_whole_and_becomes_current(place: str, tmp_path: Path) -> None:
    first = publish(place, tmp_path, "monday", 0.9)
    models = Models(place)
    version = models.verify(first)
    assert set(version.files) == {"weights", "sub/words"}
    assert (version.run, version.job, version.metrics) == ("monday", "j-monday", {"accuracy": 0.9})
    assert [(each.number, each.version) for each in models.decisions()] == [(1, first)]


def test_publishing_again_changes_nothing(place: str, tmp_path: Path) -> None:
    assert publish(place, tmp_path, "monday", 0.9) == publish(place, tmp_path, "monday", 0.9)
    assert len(Models(place).decisions()) == 1


def test_a_model_that_is_not_good_enough_stays_out(place: str, tmp_path: Path) -> None:
    first = publish(place, tmp_path, "monday", 0.9)
    with pytest.raises(GateError, match=r"at least 0\.8"):
        publish(place, tmp_path, "tuesday", 0.7)
    with pytest.raises(GateError, match="worse by more than"):
        publish(place, tmp_path, "tuesday", 0.84)
    with pytest.raises(GateError, match="nothing was measured that is called loss"):
        publish(place, tmp_path, "tuesday", 0.95, Gate(metric="loss", limit=1))
    models = Models(place)
    assert [each.version for each in models.decisions()] == [first]
    assert publish(place, tmp_path, "wednesday", 0.86) == models.decisions()[-1].version, "within the tolerance"


def test_rollback_goes_to_what_was_current_before_and_stays_on_record(place: str, tmp_path: Path) -> None:
    first, second = publish(place, tmp_path, "monday", 0.9), publish(place, tmp_path, "tuesday", 0.92)
    models = Models(place)
    assert models.rollback().version == first
    assert models.rollback(second).version == second
    assert [each.version for each in models.decisions()] == [first, second, first, second]
    assert models.decisions()[2].reason == f"rollback from {second}"
    with pytest.raises(StoreError, match=f"current before were {first}"):
        models.rollback("other")


def test_rollback_to_a_damaged_version_is_refused(tmp_path: Path) -> None:
    place = str(tmp_path / "models")
    first, second = publish(place, tmp_path, "monday", 0.9), publish(place, tmp_path, "tuesday", 0.92)
    weights = tmp_path / "models/versions" / first / "weights"
    weights.write_text("other")
    models = Models(place)
    with pytest.raises(StoreError, match="weights is damaged"):
        models.rollback()
    weights.unlink()
    with pytest.raises(StoreError, match="weights is missing"):
        models.rollback()
    current = models.current()
    assert current is not None
    assert current.version == second


def test_there_is_nothing_to_go_back_to(place: str, tmp_path: Path) -> None:
    models = Models(place)
    assert models.current() is None
    with pytest.raises(StoreError, match="has no published model"):
        models.rollback()
    publish(place, tmp_path, "monday", 0.9)
    with pytest.raises(StoreError, match="cannot go back to an earlier version: current before were none"):
        models.rollback()


def test_of_two_who_publish_at_once_the_slower_one_meets_the_faster_one_s_figures(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have passed the gate when nothing was published; only one is first."""
    slow = Models(place)
    faster: list[str] = []
    decide = slow._decide

    def late(decision: Any) -> bool:
        if not faster:
            faster.append(publish(place, tmp_path, "fast", 0.99))
        return decide(decision)

    monkeypatch.setattr(slow, "_decide", late)
    with pytest.raises(GateError, match=r"that of the current model 0\.99"):
        slow.publish(model(tmp_path, "slow"), run="slow", job="j", metrics={"accuracy": 0.85}, gate=GATE)
    assert [each.version for each in Models(place).decisions()] == faster


def test_a_rollback_that_somebody_else_has_overtaken_changes_nothing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(place, tmp_path, "monday", 0.9)
    publish(place, tmp_path, "tuesday", 0.92)
    models = Models(place)
    decide = models._decide

    def late(decision: Any) -> bool:
        publish(place, tmp_path, "wednesday", 0.95)
        return decide(decision)

    monkeypatch.setattr(models, "_decide", late)
    with pytest.raises(StoreError, match="somebody has just made another version current"):
        models.rollback()
    assert [each.version.split("-")[0] for each in models.decisions()] == ["monday", "tuesday", "wednesday"]


def test_many_who_publish_at_once_all_get_a_place_of_their_own(place: str, tmp_path: Path) -> None:
    errors: list[Exception] = []

    def go(number: int) -> None:
        try:
            publish(place, tmp_path, f"run-{number}", 0.9)
        except Exception as error:  # noqa: BLE001 - a thread's errors are the test's
            errors.append(error)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    models = Models(place)
    assert [each.number for each in models.decisions()] == [1, 2, 3, 4, 5]
    assert len({models.verify(each.version).name for each in models.decisions()}) == 5


def test_what_is_damaged_is_said(tmp_path: Path) -> None:
    place = tmp_path / "models"
    first = publish(str(place), tmp_path, "monday", 0.9)
    manifest = place / "versions" / first / "manifest.json"
    manifest.write_text(json.dumps({"files": []}))
    with pytest.raises(StoreError, match=r"manifest\.json is damaged"):
        Models(str(place)).version(first)
    (place / "current/000000001.json").write_text("{")
    with pytest.raises(StoreError, match=r"000000001\.json is damaged"):
        Models(str(place)).current()


def test_a_place_must_be_one_where_two_notice_each_other(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="ftp://host/models") as error:
        Models("ftp://user:secret@host/models")
    assert "secret" not in str(error.value)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be used"):
        publish(str(tmp_path / "file/models"), tmp_path, "monday", 0.9)


def test_a_model_has_files(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="holds no model"):
        Models(str(tmp_path / "m")).publish(tmp_path / "empty", run="r", job="j", metrics={"accuracy": 1}, gate=GATE)
