"""Removing folders whose content others made, with whatever rights they gave it."""

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path


def remove_tree(folder: Path, *, ignore_errors: bool = False) -> None:
    """Delete a folder with all that is in it; links are not followed, and one that is not there is no mistake.

    An image has folders that nobody may write to, and so has what its containers leave behind: an ordinary user gives
    himself the right first. root needs none.

    Args:
        folder: What to delete.
        ignore_errors: Leave what cannot be deleted.

    Raises:
        OSError: something cannot be deleted.
    """

    def with_rights(_: Callable[..., object], path: str, details: tuple[object, BaseException, object]) -> None:
        error = details[1]
        if isinstance(error, FileNotFoundError):
            return
        # An entry is removed by who may write to its folder, and listed by who may read it.
        closed = [one for one in (Path(path).parent, Path(path)) if one.is_relative_to(folder) and _open_up(one)]
        if not isinstance(error, PermissionError) or not closed:
            if ignore_errors:
                return
            raise error
        if Path(path).is_dir() and not Path(path).is_symlink():
            remove_tree(Path(path), ignore_errors=ignore_errors)
        else:
            Path(path).unlink(missing_ok=True)

    try:
        # `onexc` takes its place in Python 3.12, `onerror` stays.
        shutil.rmtree(folder, onerror=with_rights)
    except RecursionError:  # a program of a pod went round in a circle; rm has no stack that ends
        done = subprocess.run(["rm", "-rf", "--", folder], capture_output=True, text=True, check=False)
        if done.returncode and not ignore_errors:
            raise OSError(errno.ENOTEMPTY, done.stderr[-300:].strip(), str(folder)) from None


def _open_up(folder: Path) -> bool:
    """Give the owner all rights; returns whether some were missing."""
    mode = os.lstat(folder).st_mode
    if not stat.S_ISDIR(mode) or mode & stat.S_IRWXU == stat.S_IRWXU:
        return False
    folder.chmod(stat.S_IMODE(mode) | stat.S_IRWXU)
    return True
