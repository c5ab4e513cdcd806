"""The images that this computer has: complete or absent, each found by its names."""

import contextlib
import errno
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from infra.local.engines.cache import cache_directory
from infra.local.errors import LocalClusterError
from infra.local.folders import remove_tree
from infra.local.images.archive import Archive
from infra.local.images.names import normalised
from infra.local.images.unpack import Unpacker, described

_UNFINISHED: Final = ".unfinished-"
_ARRIVING: Final = ".arriving-"
_ABANDONED: Final = 86400.0  # seconds after which nobody waits for an archive any more
_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700
_ID = re.compile(r"(?:sha256:)?[0-9a-f]{12,64}")  # of an image, which build tools take instead of a name


@dataclass(frozen=True)
class StoredImage:
    """An image under one of its names.

    Attributes:
        name: As the image table spells it; by digest where pods still run in what another image has replaced.
        digest: Of the manifest: what the name is pinned by.
        image_id: Of the configuration: what its folder is called by.
        rootfs: Its root file system.
        architecture: E.g. "amd64".
        created: When it was built, as it says itself.
        size: Bytes of its files.
        config: Its configuration: entrypoint, environment, user, …
        notes: What of it could not be taken over.
    """

    name: str
    digest: str
    image_id: str
    rootfs: Path
    architecture: str
    created: str
    size: int
    config: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def pinned(self) -> str:
        """The name by digest, for manifests."""
        return self.name if _is_pinned(self.name) else f"{self.name.rpartition(':')[0]}@{self.digest}"

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.name,
            "digest": self.digest,
            "id": self.image_id,
            "pinned": self.pinned,
            "architecture": self.architecture,
            "created": self.created,
            "size": self.size,
            "rootfs": str(self.rootfs),
            "notes": list(self.notes),
        }


def _by_nobody(_: StoredImage) -> bool:
    return False


def _is_pinned(name: str) -> bool:
    return "@" in name


class ImageStore:
    """The store in `folder`, the user's own unless another one is named."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_directory() / "images"

    def images(self) -> list[StoredImage]:
        """All images that are complete, by name."""
        found = (self._stored(name, entry) for name, entry in sorted(self._names().items()))
        return [image for image in found if image is not None]

    def find(self, name: str) -> StoredImage:
        """The image of a name.

        Raises:
            LocalClusterError: there is none.
        """
        wanted = name if _is_pinned(name) else normalised(name)
        known = self.images()
        for image in known:
            if image.name == wanted:
                return image
        raise LocalClusterError(
            f"there is no loaded image {wanted}",
            why=f"loaded are: {', '.join(image.name for image in known) or 'none'}",
            remedy="trainyard images list",
        )

    def load(
        self,
        path: Path,
        name: str | None = None,
        *,
        tag: str | None = None,
        reserved: frozenset[str] = frozenset(),
        in_use: Callable[[StoredImage], object] = _by_nobody,
        progress: Callable[[int, int], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> StoredImage:
        """Take an archive's image in, under a name.

        An image that is there already is not unpacked again. One that had the name goes, or keeps a name by digest for
        as long as it is in use. When this is interrupted, by whatever, the store stays as it was.

        Args:
            path: An OCI archive.
            name: Its name; else the tag, else the one that the archive says.
            tag: What the build tool that just wrote the archive calls the image; messages name it, not the file.
            reserved: Names that only a caller who says `name` may give away.
            in_use: Says whether pods run in an image.
            progress: Told how many bytes of all have been read.
            note: Told who is waited for.

        Raises:
            LocalClusterError: the archive or the disk is not good for it.
        """
        wanted = normalised(name) if name else None
        with self._plain_errors(), Archive(path, tag) as archive:
            wanted = wanted or _own_name(archive, tag, reserved)
            with self._changing(note):
                if self._read(archive.image_id) is None:
                    self._unpack(archive, progress)
                names = self._names()
                if (replaced := names.get(wanted)) and replaced["digest"] != archive.digest:
                    names[f"{wanted.rpartition(':')[0]}@{replaced['digest']}"] = replaced
                names[wanted] = {"id": archive.image_id, "digest": archive.digest}
                self._keep(names, in_use)
        return self.find(wanted)

    def remove(
        self,
        name: str,
        *,
        in_use: Callable[[StoredImage], object] = _by_nobody,
        note: Callable[[str], None] | None = None,
    ) -> StoredImage:
        """Forget a name, and the image with its last one.

        Args:
            name: One of its names.
            in_use: Says whether pods run in an image; asked of those that others have replaced.
            note: Told who is waited for.

        Returns:
            What was removed.

        Raises:
            LocalClusterError: there is no such image, or it cannot be deleted.
        """
        with self._plain_errors(), self._changing(note):
            image = self.find(name)
            self._keep({other: entry for other, entry in self._names().items() if other != image.name}, in_use)
        return image

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder for an archive on its way in, which may be large; what killed commands left goes after a day."""
        with self._plain_errors():
            self.folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
            for path in self.folder.glob(f"{_ARRIVING}*"):
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    remove_tree(path)
            folder = Path(tempfile.mkdtemp(dir=self.folder, prefix=_ARRIVING))
        try:
            yield folder
        finally:
            remove_tree(folder)

    def _keep(self, names: dict[str, dict[str, str]], in_use: Callable[[StoredImage], object]) -> None:
        """Make these the names, but for replaced images that nobody uses; for who holds the lock."""
        kept = {}
        for name, entry in names.items():
            image = self._stored(name, entry)
            if image and (not _is_pinned(name) or in_use(image)):
                kept[name] = entry
        self._write_names(kept)
        self._remove_nameless()

    def _stored(self, name: str, entry: dict[str, str]) -> StoredImage | None:
        facts = self._read(entry["id"])
        if facts is None:
            return None
        return StoredImage(
            name=name,
            digest=entry["digest"],
            image_id=entry["id"],
            rootfs=self._place(entry["id"]) / "rootfs",
            architecture=facts["architecture"],
            created=facts["created"],
            size=facts["size"],
            config=facts["config"],
            notes=tuple(facts["notes"]),
        )

    def _place(self, image_id: str) -> Path:
        return self.folder / image_id.replace(":", "-")

    def _read(self, image_id: str) -> dict[str, Any] | None:
        """What is known of an image; None where it is not complete."""
        try:
            facts: Any = json.loads((self._place(image_id) / "image.json").read_bytes())
        except (OSError, ValueError):
            return None
        return facts if isinstance(facts, dict) and (self._place(image_id) / "rootfs").is_dir() else None

    def _names(self) -> dict[str, dict[str, str]]:
        try:
            return dict(json.loads((self.folder / "names.json").read_bytes())["names"])
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise LocalClusterError(
                f"{self.folder / 'names.json'} can't be read: {error.strerror}",
                why="the names of the loaded images are in it",
                remedy="mend that, or name another folder in TRAINYARD_CACHE_DIR",
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise LocalClusterError(
                f"{self.folder / 'names.json'} is damaged: {error}",
                why="the names of the loaded images are in it",
                remedy=f"delete {self.folder} and load the images again",
            ) from error

    def _write_names(self, names: dict[str, dict[str, str]]) -> None:
        text = json.dumps({"names": names}, indent=2, sort_keys=True) + "\n"
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=_UNFINISHED)
        try:
            with os.fdopen(handle, "w") as stream:
                stream.write(text)
                stream.flush()
                os.fchmod(stream.fileno(), _PRIVATE_FILE)
                os.fsync(stream.fileno())
            Path(temporary).replace(self.folder / "names.json")
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _unpack(self, archive: Archive, progress: Callable[[int, int], None] | None) -> None:
        begun = Path(tempfile.mkdtemp(dir=self.folder, prefix=_UNFINISHED))
        done = 0

        def read(count: int) -> None:
            nonlocal done
            done += count
            if progress:
                progress(done, archive.size)

        try:
            (begun / "rootfs").mkdir(mode=0o755)
            (begun / "rootfs").chmod(0o755)
            unpacker = Unpacker(begun / "rootfs")
            with archive.plain_errors():
                for layer in archive.layers(read):
                    unpacker.layer(layer)
            unpacker.finish()
            facts = {
                "architecture": archive.architecture,
                "created": archive.created,
                "size": unpacker.size,
                "config": archive.config,
                "notes": [f"left out: {what}" for what in described(unpacker.left_out)],
            }
            (begun / "image.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")
            place = self._place(archive.image_id)
            if place.exists():  # incomplete: somebody else's work
                remove_tree(place)
            begun.rename(place)
        except BaseException:
            remove_tree(begun)
            raise

    def _remove_nameless(self) -> None:
        """Delete images without a name, and what interrupted commands left; for who holds the lock."""
        kept = {self._place(entry["id"]).name for entry in self._names().values()}
        found = list(self.folder.iterdir())
        for path in found:  # first, for one of them may have the name that another one gets
            if path.name.startswith(_UNFINISHED):
                if path.is_dir():
                    remove_tree(path)
                else:
                    path.unlink()
        for path in found:
            if path.name.startswith("sha256-") and path.name not in kept:
                hidden = path.with_name(f"{_UNFINISHED}{path.name}")
                path.rename(hidden)  # gone at once, whatever happens while its files are deleted
                remove_tree(hidden)

    @contextlib.contextmanager
    def _changing(self, note: Callable[[str], None] | None) -> Iterator[None]:
        """One command at a time; ends with the process, whatever way that ends."""
        self.folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        lock = FileLock(self.folder / "lock", mode=_PRIVATE_FILE)
        try:
            lock.acquire(timeout=0.05)
        except Timeout:
            if note:
                note("waiting for another command that changes the loaded images")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise LocalClusterError(
                f"the image store {self.folder} can't be written: {error.strerror or error}",
                why="the disk is full, or would be" if full else str(error.filename or ""),
                remedy="free some space (trainyard images remove NAME), or name another folder in TRAINYARD_CACHE_DIR"
                if full
                else "mend that, or name another folder in TRAINYARD_CACHE_DIR",
            ) from error


def _own_name(archive: Archive, tag: str | None, reserved: frozenset[str]) -> str:
    if tag is not None:
        # buildah and podman put localhost/ before names without a registry; pods are written without it.
        said = "" if _ID.fullmatch(tag) or _is_pinned(tag) else tag.removeprefix("localhost/")
        named = bool(said)
    else:
        said = archive.name or ""
        named = "/" in said or ":" in said  # else a tag alone, or nothing
    if not named:
        raise LocalClusterError(
            f"{archive.called} is an id, not what the image is called"
            if tag
            else f"the archive {archive.called} doesn't say what its image is called",
            remedy=f"trainyard images load {archive.called} --name trainyard/training:cpu",
        )
    name = normalised(said)
    if name in reserved:
        raise LocalClusterError(
            f"{name}, as the image in {archive.called} is called, is this checkout's own on the local cluster",
            why="it would take its place in every pod that says so",
            remedy="give it another name, or replace the checkout's: "
            f"trainyard images load {archive.called} --name {name}",
        )
    return name
