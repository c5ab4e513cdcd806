"""Who can know that this node will be taken: each cloud's metadata service, and a file that the kubelet keeps.

| source     | asks                                  | every | save and go on            | save and leave             |
| ---------- | ------------------------------------- | ----- | ------------------------- | -------------------------- |
| aws        | instance metadata, version 2          | 5 s   | rebalance recommendation  | terminate, stop, hibernate |
| gcp        | `preempted`, which waits for a change |       | live migration            | preempted, maintenance     |
| azure      | Scheduled Events                      | 1 s   | Freeze                    | Preempt, Terminate, Reboot |
| kubernetes | annotations of the pod (downward API) | 1 s   | `trainyard.dev/rebalance` | `trainyard.dev/reclaim-at` |

The intervals are those that the clouds advise. A node that is drained by Kubernetes needs none of this: its pods get
SIGTERM, which the launcher takes as a notice anyway.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlencode

from training.launch.environment import POD_ANNOTATIONS
from training.launch.notices import Notice
from training.launch.notices.metadata import Answer, MetadataError, ask


class Source(Protocol):
    """Somebody who knows of this node's end."""

    @property
    def name(self) -> str:
        """As in `--notices`."""

    @property
    def interval(self) -> timedelta:
        """From one look to the next, at least."""

    def look(self) -> list[Notice]:
        """All that is known now.

        Raises:
            MetadataError: nobody answers, or not in a way that makes sense.
        """


class Aws:
    """EC2: spot interruption and rebalance recommendation.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html and
    .../rebalance-recommendations.html. The first comes two minutes ahead (none for hibernation, which begins at once).
    """

    name = "aws"
    interval = timedelta(seconds=5)
    TOKEN_LIFE: Final = timedelta(hours=6)  # the longest that the service gives

    def __init__(self) -> None:
        self._token = ""
        self._renew_at = 0.0

    def look(self) -> list[Notice]:
        """See `Source`."""
        found = []
        if (answer := self._get("/latest/meta-data/spot/instance-action")) is not None:
            told = answer.json()
            action = str(told.get("action", "terminate"))
            deadline = _seconds(told.get("time")) if action != "hibernate" else time.time()
            found.append(Notice(kind="leave", deadline=deadline, source=self.name, detail=f"instance-action {action}"))
        if (answer := self._get("/latest/meta-data/events/recommendations/rebalance")) is not None:
            detail = f"rebalance recommendation of {answer.json().get('noticeTime', 'unknown time')}"
            found.append(Notice(kind="rebalance", deadline=None, source=self.name, detail=detail))
        return found

    def _get(self, path: str) -> Answer | None:
        """None: there is nothing of this kind."""
        for _ in range(2):
            answer = ask(path, headers={"X-aws-ec2-metadata-token": self._valid_token()})
            if answer.status != 401:
                break
            self._token = ""  # old, or of this instance's life before a stop
        if answer.status == 404:
            return None
        _check(answer, path)
        return answer

    def _valid_token(self) -> str:
        if not self._token or time.monotonic() >= self._renew_at:
            seconds = int(self.TOKEN_LIFE.total_seconds())
            path = "/latest/api/token"
            answer = ask(path, method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": str(seconds)})
            _check(answer, path)
            self._token = answer.text
            self._renew_at = time.monotonic() + seconds * 0.9
        return self._token


class Gcp:
    """Compute Engine: preemption of a spot machine, and maintenance of its host.

    https://cloud.google.com/compute/docs/instances/preemptible and .../metadata/getting-live-migration-notice. A
    machine is switched off 30 s after `preempted` has become TRUE.
    """

    name = "gcp"
    interval = timedelta(seconds=1)  # where the service does not wait as it should
    NOTICE: Final = timedelta(seconds=30)
    # How long the service holds a question about `preempted`; in between we look for maintenance.
    WAIT: Final = timedelta(seconds=5)
    # Ahead of its answer, by which we know that it waits and is not gone.
    DELAY: Final = timedelta(seconds=5)

    def __init__(self) -> None:
        self._etag = ""

    def look(self) -> list[Notice]:
        """See `Source`. Waits for a change, except at the first time."""
        found = []
        query = {"wait_for_change": "true", "timeout_sec": int(self.WAIT.total_seconds()), "last_etag": self._etag}
        answer = self._get("preempted", query if self._etag else {})
        self._etag = answer.headers.get("etag", "")
        if not self._etag:
            raise MetadataError("an answer without ETag: this is not Google's metadata service")
        if answer.text.strip() == "TRUE":
            deadline = time.time() + self.NOTICE.total_seconds()
            found.append(Notice(kind="leave", deadline=deadline, source=self.name, detail="preempted"))
        event = self._get("maintenance-event", {}).text.strip()
        if event == "TERMINATE_ON_HOST_MAINTENANCE":
            found.append(Notice(kind="leave", deadline=None, source=self.name, detail=event))
        elif event not in {"NONE", ""}:
            found.append(Notice(kind="rebalance", deadline=None, source=self.name, detail=event))
        return found

    def _get(self, key: str, query: dict[str, object]) -> Answer:
        path = f"/computeMetadata/v1/instance/{key}{'?' if query else ''}{urlencode(query)}"
        patience = self.WAIT + self.DELAY if query else self.DELAY
        answer = ask(path, headers={"Metadata-Flavor": "Google"}, patience=patience)
        _check(answer, path)
        if answer.headers.get("metadata-flavor") != "Google":
            raise MetadataError(f"{path}: the answer is not marked as Google's")
        return answer


class Azure:
    """Virtual machines and scale sets: Scheduled Events.

    https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events. Preempt comes 30 s ahead at least, Reboot
    and Redeploy 15 minutes. Events are not acknowledged: that would only bring the end forward.
    """

    name = "azure"
    interval = timedelta(seconds=1)
    EVENTS: Final = "/metadata/scheduledevents?api-version=2020-07-01"
    NAME: Final = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    # The first question switches the service on, which takes up to two minutes.
    FIRST_PATIENCE: Final = timedelta(minutes=2)
    LEAVE: Final = frozenset({"Preempt", "Terminate", "Reboot", "Redeploy"})

    def __init__(self) -> None:
        self._machine = ""
        self._incarnation: object = None
        self._known: list[Notice] = []

    def look(self) -> list[Notice]:
        """See `Source`."""
        headers = {"Metadata": "true"}
        if not self._machine:
            answer = ask(self.NAME, headers=headers)
            _check(answer, self.NAME)
            self._machine = answer.text.strip()
        patience = self.FIRST_PATIENCE if self._incarnation is None else timedelta(seconds=10)
        answer = ask(self.EVENTS, headers=headers, patience=patience)
        _check(answer, self.EVENTS)
        document = answer.json()
        if "DocumentIncarnation" not in document or not isinstance(document.get("Events"), list):
            raise MetadataError(f"{self.EVENTS}: no list of events: {answer.text[:80]!r}")
        if document["DocumentIncarnation"] != self._incarnation:
            self._incarnation = document["DocumentIncarnation"]
            self._known = list(self._notices(document["Events"]))
        return self._known

    def _notices(self, events: list[dict[str, Any]]) -> Iterator[Notice]:
        """Of the events of a whole group of machines, those of ours."""
        for event in events:
            kind, status = str(event.get("EventType")), event.get("EventStatus")
            if self._machine not in event.get("Resources", ()) or status not in {"Scheduled", "Started"}:
                continue
            detail = f"{kind} {event.get('EventId', '')}".strip()
            deadline = time.time() if status == "Started" else _seconds(event.get("NotBefore"))
            if kind in self.LEAVE:
                yield Notice(kind="leave", deadline=deadline, source=self.name, detail=detail)
            elif kind == "Freeze":
                yield Notice(kind="rebalance", deadline=deadline, source=self.name, detail=detail)


class Kubernetes:
    """Annotations of our pod, as the kubelet writes them into a file of a downward API volume.

    A pod needs no rights for that, but the kubelet may take a minute to bring the file up to date. What the controller
    knows comes sooner: it deletes the pod, which is SIGTERM.
    """

    name = "kubernetes"
    interval = timedelta(seconds=1)
    USUAL: Final = "/etc/podinfo/annotations"
    LEAVE: Final = "trainyard.dev/reclaim-at"
    SAVE: Final = "trainyard.dev/rebalance"

    @classmethod
    def file(cls) -> Path:
        """Where the annotations are."""
        return Path(os.environ.get(POD_ANNOTATIONS) or cls.USUAL)

    def look(self) -> list[Notice]:
        """See `Source`."""
        try:
            text = self.file().read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise MetadataError(f"{self.file()}: {error}") from error
        found = []
        annotations = dict(_annotations(text))
        if at := annotations.get(self.LEAVE):
            found.append(
                Notice(kind="leave", deadline=_seconds(at), source=self.name, detail=f"annotation {self.LEAVE}={at}")
            )
        if at := annotations.get(self.SAVE):
            detail = f"annotation {self.SAVE}={at}"
            found.append(Notice(kind="rebalance", deadline=None, source=self.name, detail=detail))
        return found


SOURCES: Final[dict[str, type[Aws | Gcp | Azure | Kubernetes]]] = {
    source.name: source for source in (Aws, Gcp, Azure, Kubernetes)
}

# What firmware calls the machines of a cloud: file below /sys/class/dmi/id, how its text begins.
_FIRMWARE: Final = {
    Aws.name: ("sys_vendor", "Amazon EC2"),
    Gcp.name: ("product_name", "Google"),
    # Hyper-V elsewhere has another one
    Azure.name: ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
}


def here(root: Path = Path("/")) -> list[str]:
    """The sources of this node: its cloud, by its firmware, and the pod's annotations, where there is such a file."""
    found = []
    for name, (file, beginning) in _FIRMWARE.items():
        try:
            text = (root / "sys/class/dmi/id" / file).read_text()
        except (OSError, UnicodeDecodeError):
            continue
        if text.startswith(beginning):
            found.append(name)
    return [*found, *([Kubernetes.name] if Kubernetes.file().is_file() else [])]


def _check(answer: Answer, path: str) -> None:
    if answer.status != 200:
        raise MetadataError(f"{path}: status {answer.status}: {answer.text[:80]!r}")


def _seconds(text: object) -> float | None:
    """A moment in ISO 8601 or as in a mail, in seconds since the epoch; None if it is none."""
    if not isinstance(text, str) or not text:
        return None
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(text)
        except ValueError:
            continue
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None


_LINE: Final = re.compile(r'([^=\s]+)=("(?:[^"\\]|\\.)*")')


def _annotations(text: str) -> Iterator[tuple[str, str]]:
    """Of lines `key="value"`, the value quoted as in Go."""
    for line in text.splitlines():
        if found := _LINE.fullmatch(line.strip()):
            try:
                yield found[1], json.loads(found[2])
            except ValueError:  # an escape that only Go has; none is in a time
                continue
