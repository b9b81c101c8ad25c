"""Giving a file a name that must be free, in one step, on every file system that can do it."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable

# FAT, some network file systems and some containers refuse hard links.
NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
# The file system or the kernel has no rename that keeps an existing file.
NO_EXCLUSIVE_RENAME = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
RENAME_NOREPLACE = 1


def put_exclusively(source: str, source_folder: int, target: str, target_folder: int) -> bool:
    """Give a file a name that must be free: by a hard link, or by a rename that replaces nothing.

    Args:
        source: Name of the file in its folder. After a rename it is gone.
        source_folder: Descriptor of that folder.
        target: Name that the file gets.
        target_folder: Descriptor of the folder in which it gets that name.

    Returns:
        Whether the file got the name; False if the name is taken.

    Raises:
        OSError: With EOPNOTSUPP, if the file system can do neither.
    """
    try:
        os.link(source, target, src_dir_fd=source_folder, dst_dir_fd=target_folder, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        return _rename_exclusively(source, source_folder, target, target_folder)
    return True


def _rename_exclusively(source: str, source_folder: int, target: str, target_folder: int) -> bool:
    rename = _renameat2()
    code = errno.ENOSYS
    if rename is not None:
        arguments = source_folder, os.fsencode(source), target_folder, os.fsencode(target), RENAME_NOREPLACE
        if rename(*arguments) == 0:
            return True
        code = ctypes.get_errno()
    if code == errno.EEXIST:
        return False
    if code in NO_EXCLUSIVE_RENAME:
        code = errno.EOPNOTSUPP
    raise OSError(code, os.strerror(code), target)


@functools.lru_cache(maxsize=1)
def _renameat2() -> Callable[..., int] | None:
    """Return the C library's renameat2; None if it has none."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
        function.restype = ctypes.c_int
    return function
