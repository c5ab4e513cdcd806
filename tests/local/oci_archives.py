"""OCI archives for tests, honest and other ones, and what an ordinary user makes of them."""

import gzip
import hashlib
import io
import json
import os
import tarfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from infra.local.images.archive import this_architecture

NOBODY = 65534
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def entry(name: str, content: bytes | str = b"", **attributes: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A file of a layer; `type`, `linkname`, `mode`, … make it something else."""
    data = content.encode() if isinstance(content, str) else content
    made = tarfile.TarInfo(name)
    made.size, made.mode = len(data), 0o644
    for key, value in attributes.items():
        setattr(made, key, value)
    return made, data


def folder(name: str, mode: int = 0o755, **attributes: Any) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.DIRTYPE, mode=mode, **attributes)


def link(name: str, to: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.SYMTYPE, linkname=to, mode=0o777)


def hard_link(name: str, to: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.LNKTYPE, linkname=to)


def layer(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Layout:
    """An archive in the making; tests change what they want before it is written."""

    def __init__(
        self, *layers: bytes, name: str | None = "trainyard/small:1", zipped: bool = True, **config: Any
    ) -> None:
        self.blobs: dict[str, bytes] = {}
        self.config: dict[str, Any] = {
            "architecture": this_architecture(),
            "os": "linux",
            "created": "2026-11-30T00:00:00Z",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [sha256(one) for one in layers]},
        }
        self.layers = [self.add(gzip.compress(one, mtime=0) if zipped else one) for one in layers]
        self.name = name
        self.platform: dict[str, str] | None = None
        self.others: list[dict[str, Any]] = []
        self.index: dict[str, Any] | None = None

    def add(self, data: bytes) -> dict[str, Any]:
        self.blobs[sha256(data)] = data
        return {"mediaType": "application/octet-stream", "digest": sha256(data), "size": len(data)}

    def document(self, value: object, **more: Any) -> dict[str, Any]:
        return self.add(json.dumps(value).encode()) | more

    def manifest(self) -> dict[str, Any]:
        """The descriptor of the manifest; its blobs are added."""
        content = {"schemaVersion": 2, "config": self.document(self.config), "layers": self.layers}
        described = self.document(content, mediaType=MANIFEST)
        if self.name:
            described["annotations"] = {"org.opencontainers.image.ref.name": self.name}
        if self.platform:
            described["platform"] = self.platform
        return described

    def write(self, path: Path, leave_out: Sequence[str] = ()) -> Path:
        made = {"schemaVersion": 2, "manifests": [self.manifest(), *self.others]}
        index = made if self.index is None else self.index
        files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode()}
        files |= {f"blobs/sha256/{digest.removeprefix('sha256:')}": data for digest, data in self.blobs.items()}
        with tarfile.open(path, "w") as tar:
            for name, data in files.items():
                if name not in leave_out:
                    tar.addfile(entry(name, data)[0], io.BytesIO(data))
        return path


def as_ordinary_user(place: Path, act: Callable[[], None]) -> None:
    """Run something as a user without rights, in a process of its own where root runs the tests.

    Args:
        place: A folder that becomes the user's.
        act: What to do; fails the test by an exception.
    """
    if os.geteuid() != 0:
        act()
        return
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            act()
        except BaseException:  # noqa: BLE001 - the parent raises it
            os.write(writer, traceback.format_exc().encode()[-60000:])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as text:
        said = text.read()
    os.waitpid(child, 0)
    assert not said, said
