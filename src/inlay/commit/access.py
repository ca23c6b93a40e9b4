"""Access rights of the files and directories that a commit creates: as those that they replace or stand beside."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence

__all__ = ["copy_access", "share_access"]


def share_access(model: str, directory: str) -> None:
    """Copy group, mode and default ACL from another directory to a new one, so that the same users can write to it."""
    status = os.stat(model)
    with contextlib.suppress(OSError):
        os.chown(directory, -1, status.st_gid)
    with contextlib.suppress(OSError):
        os.chmod(directory, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
    _copy_attributes(model, directory, ["system.posix_acl_default"])


def copy_access(replaced: str | int, path: str) -> None:
    """Copy owner, group, mode and ACL of a replaced or open file to another file, as far as permitted."""
    try:
        status = os.stat(replaced)
    except (FileNotFoundError, NotADirectoryError):
        return
    for owner in (status.st_uid, -1):  # Only root can change the owner. Other users can keep the group.
        with contextlib.suppress(PermissionError):
            os.chown(path, owner, status.st_gid)
            break
    os.chmod(path, stat.S_IMODE(status.st_mode))
    with contextlib.suppress(OSError):
        _copy_attributes(replaced, path, os.listxattr(replaced))


def _copy_attributes(source: str | int, target: str, names: Sequence[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):  # The attribute does not exist, or only root may set it.
            os.setxattr(target, name, os.getxattr(source, name))
