"""Linux tells which files were written (inotify); Python's standard library doesn't wrap it."""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

_CREATE, _MOVED_TO, _CLOSE_WRITE = 0x100, 0x80, 0x8  # from <sys/inotify.h>
_ONLY_FOLDERS = 0x01000000
_HEADER = struct.Struct("iIII")  # watch, mask, cookie, length of the name

_libc = ctypes.CDLL(None, use_errno=True)


class FolderWatch:
    """Reports names that were created in, or written in, any of the folders added."""

    def __init__(self) -> None:
        self._descriptor = _libc.inotify_init1(os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._folders: dict[int, Path] = {}

    def add(self, folder: Path) -> bool:
        """Watch a folder (again is harmless); returns whether that is new: false too where there is no such folder.

        Raises:
            OSError: it can't be watched, e.g. because the user has too many watches (fs.inotify.max_user_watches).
        """
        mask = _CREATE | _MOVED_TO | _CLOSE_WRITE | _ONLY_FOLDERS
        watch = _libc.inotify_add_watch(self._descriptor, os.fsencode(folder), mask)
        if watch < 0:
            code = ctypes.get_errno()
            if code in {errno.ENOENT, errno.ENOTDIR}:
                return False
            raise OSError(code, os.strerror(code), str(folder))
        new = self._folders.get(watch) != folder
        self._folders[watch] = folder
        return new

    def events(self) -> Iterator[Path]:
        """Wait for and yield paths, for ever."""
        while True:
            data = os.read(self._descriptor, 64 * 1024)
            while data:
                watch, mask, _, length = _HEADER.unpack_from(data)
                name = data[_HEADER.size : _HEADER.size + length].rstrip(b"\0")
                data = data[_HEADER.size + length :]
                folder = self._folders.get(watch)
                if mask & 0x8000:  # IN_IGNORED: the folder is gone
                    self._folders.pop(watch, None)
                elif folder is not None and name:
                    yield folder / os.fsdecode(name)
