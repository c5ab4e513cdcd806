"""Layers of an image become a folder: whiteouts, links and modes as the image format says, and nothing beside it.

Names in a layer are walked part by part from the folder, and a link on the way is followed as if the folder were `/`.
Nothing that is there is ever opened for writing: it is removed and made anew. So whatever the names and links of a
layer are, they lead to nothing outside.
"""

import errno
import os
import shutil
import stat
import tarfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from infra.local.errors import LocalClusterError
from infra.local.folders import remove_tree

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
_MOST_LINKS = 40
_DEEPEST = 256  # folders in each other; none but a hostile image has more, and deleting them would need a stack as deep
_IMPOSSIBLE = (errno.ENAMETOOLONG, errno.ENOENT, errno.EINVAL, errno.EILSEQ, errno.ELOOP)  # the fault of what is made
_CAPABILITIES = "SCHILY.xattr.security.capability"
_BLOCK = 1 << 20
_LOOK_AT_DISK = 64 << 20  # bytes between two looks at how much is free
_RESERVE = 256 << 20  # bytes of the disk that are never filled
_LATEST = 1 << 33  # seconds: the year 2242, for times that no file system can hold


class RefusedError(LocalClusterError):
    """A layer does what no honest one does."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"the image was refused: its file {name[:200]!r} {why}",
            why="nothing of it was kept; images that common tools build have no such files",
            remedy="build the image anew, and don't trust where this one came from",
        )


class Unpacker:
    """Unpacks layers, one after the other, into one folder.

    Args:
        root: An empty folder that nobody else writes to meanwhile.

    Attributes:
        size: Bytes of all files written.
        left_out: What was not taken over, by what it is.
        owners: Whether files have the owners that the image gives them, which only root can do.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.size = 0
        self.left_out: Counter[str] = Counter()
        self.owners = os.geteuid() == 0
        self._folders: dict[Path, tarfile.TarInfo] = {}  # rights and times are theirs at the end only
        self._parents: dict[
            tuple[str, ...], Path
        ] = {}  # of names; forgotten whenever a link or a folder may have changed
        self._made: set[Path] = set()  # by the layer at hand
        self._unlooked = 0

    def layer(self, layer: tarfile.TarFile) -> None:
        """Lay the next layer over the ones before.

        Raises:
            RefusedError: it is hostile or broken.
            OSError: the folder cannot be written.
        """
        self._made = set()
        while member := layer.next():
            layer.members = []  # type: ignore[attr-defined]  # else all headers stay in memory
            try:
                self._entry(layer, member)
            except ValueError as error:  # a zero byte in a name
                raise RefusedError(member.name, f"has an impossible name: {error}") from error
            except OSError as error:
                if error.errno not in _IMPOSSIBLE:
                    raise
                raise RefusedError(member.name, f"cannot be made: {error.strerror}") from error

    def finish(self) -> None:
        """Give the folders their rights: with these nothing more could be put into some of them.

        They are looked for anew, from the root: a later layer may have put a link in the place of a folder above them,
        and then their old path leads out of the image.
        """
        for name, _, _ in os.walk(self._root, topdown=False):
            path = Path(name)
            if member := self._folders.get(path):
                self._own(path, member)
                path.chmod(member.mode & 0o7777)
                _set_time(path, member)

    def _entry(self, layer: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if not parts:
            if not member.isdir():
                raise RefusedError(member.name, "would take the place of the image itself")
            self._folders[self._root] = member
            return
        parent, name = self._parent(parts, member.name), parts[-1]
        path = parent / name
        if name.startswith(WHITEOUT):
            self._white_out(parent, name, member.name)
        elif member.isdir():
            self._folder(path, member)
        elif member.isreg():
            self._file(path, layer, member)
        elif member.issym():
            self._replace(path)
            path.symlink_to(member.linkname)
            self._own(path, member)
            _set_time(path, member)
        elif member.islnk():
            self._hard_link(path, member)
        elif member.type not in tarfile.SUPPORTED_TYPES:
            raise RefusedError(member.name, f"is of a kind that nobody knows: {member.type!r}")
        else:
            self.left_out["device files" if member.isdev() and not member.isfifo() else "pipes and sockets"] += 1
            self._replace(path)
            return
        while (
            path not in self._made and path != self._root
        ):  # a folder that something was put into is this layer's, too
            self._made.add(path)
            path = path.parent

    def _parent(self, parts: tuple[str, ...], name: str) -> Path:
        """The folder of the last part, made where it is missing."""
        known = self._parents.get(parts[:-1])
        if known is not None:
            return known
        current, links, rest = self._root, 0, list(parts[:-1])
        while rest:
            part = rest.pop(0)
            if part == "..":  # of a link; the folder is its own parent, as `/` is
                current = current if current == self._root else current.parent
                continue
            following = current / part
            try:
                mode = following.lstat().st_mode
            except FileNotFoundError:
                self._make_folder(following, name)
                following.chmod(0o755)
                self._folders.pop(following, None)  # rights of one that had this name before
                mode = stat.S_IFDIR
            if stat.S_ISLNK(mode):
                links += 1
                if links > _MOST_LINKS:
                    raise RefusedError(name, "lies behind links that lead in a circle")
                target = str(following.readlink())
                if target.startswith("/"):
                    current = self._root
                rest[:0] = [one for one in target.split("/") if one not in ("", ".")]
            elif stat.S_ISDIR(mode):
                current = following
            else:
                raise RefusedError(name, "lies in something that is no folder")
        self._parents[parts[:-1]] = current
        return current

    def _white_out(self, parent: Path, name: str, whole: str) -> None:
        """Remove what layers below have: one name, or all of a folder. What this layer made stays."""
        if name == OPAQUE:
            self._make_opaque(parent)
            return
        hidden = name.removeprefix(WHITEOUT)
        if hidden in ("", ".", ".."):
            raise RefusedError(whole, "would remove a folder that it lies in")
        if hidden.startswith(WHITEOUT):
            return  # notes of an old file system to itself
        path = parent / hidden
        if path not in self._made:
            self._remove(path)
        elif _is_folder(path):
            self._make_opaque(path)

    def _make_opaque(self, folder: Path) -> None:
        for path in list(folder.iterdir()):
            if path not in self._made:
                self._remove(path)
            elif _is_folder(path):
                self._make_opaque(path)

    def _folder(self, path: Path, member: tarfile.TarInfo) -> None:
        if not _is_folder(path):
            self._replace(path)
            self._make_folder(path, member.name)
        self._folders[path] = member

    def _make_folder(self, path: Path, name: str) -> None:
        if len(path.parts) - len(self._root.parts) > _DEEPEST:
            raise RefusedError(name, f"lies in more than {_DEEPEST} folders")
        path.mkdir(mode=0o700)

    def _file(self, path: Path, layer: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        if member.issparse():
            raise RefusedError(member.name, "is stored with holes")
        self._replace(path)
        if member.size >= _LOOK_AT_DISK:
            self._require_space(member.size)
        content = layer.extractfile(member)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            while content is not None and (block := content.read(_BLOCK)):
                file.write(block)
                self._written(len(block))
            self._own(descriptor, member)
            if member.mode & (stat.S_ISUID | stat.S_ISGID):
                self.left_out["set-user-ID and set-group-ID bits"] += 1
            if _CAPABILITIES in member.pax_headers:
                self.left_out["file capabilities"] += 1
            os.fchmod(descriptor, member.mode & 0o1777)
            _set_time(descriptor, member)

    def _hard_link(self, path: Path, member: tarfile.TarInfo) -> None:
        parts = _parts(member.linkname)
        if not parts:
            raise RefusedError(member.name, "is a hard link to the image itself")
        source = self._parent(parts, member.linkname) / parts[-1]
        try:
            mode = source.lstat().st_mode
        except FileNotFoundError:
            mode = 0
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise RefusedError(member.name, f"is a hard link to {member.linkname[:200]!r}, which is no file of it")
        if source == path:
            return
        self._replace(path)
        os.link(source, path, follow_symlinks=False)

    def _replace(self, path: Path) -> None:
        """Make room for something else than a folder, or for a folder in place of something else."""
        try:
            path.unlink()
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            self._remove(path)
            return
        self._parents.clear()

    def _remove(self, path: Path) -> None:
        self._parents.clear()
        if _is_folder(path):
            remove_tree(path)
        else:
            path.unlink(missing_ok=True)

    def _own(self, path: Path | int, member: tarfile.TarInfo) -> None:
        if not self.owners:
            return
        try:
            os.chown(path, member.uid, member.gid, follow_symlinks=isinstance(path, int))
        except OverflowError as error:
            raise RefusedError(member.name, f"has an impossible owner: {error}") from error
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EPERM):
                raise
            self.owners = False  # root of a container, who has few users or one
            self.left_out["owner that cannot be given here, and all after it"] += 1

    def _written(self, count: int) -> None:
        self.size += count
        self._unlooked += count
        if self._unlooked >= _LOOK_AT_DISK:
            self._require_space(0)

    def _require_space(self, size: int) -> None:
        """End before a disk is full to the brim, and before writing what does not fit anyway."""
        self._unlooked = 0
        disk = shutil.disk_usage(self._root)
        if disk.free - size < min(_RESERVE, disk.total // 20):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._root)


def _parts(name: str) -> tuple[str, ...]:
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts:
        raise RefusedError(name, "has a name that leads out of the image")
    return parts


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _set_time(path: Path | int, member: tarfile.TarInfo) -> None:
    when = min(max(0.0, float(member.mtime)), float(_LATEST))  # in this order 0 stands for what is no number, too
    os.utime(path, (when, when), follow_symlinks=isinstance(path, int))


def described(left_out: Counter[str]) -> Iterable[str]:
    """What was not taken over, for people."""
    return (f"{count} {what}" for what, count in sorted(left_out.items()))
