"""A disk that is soon full, for a process that is thrown away afterwards."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000


def use_small_disk(folder: Path, num_bytes: int, inodes: int = 0) -> bool:
    """Give this process, and no other, a file system of so many bytes, and inodes if given, at a folder.

    Where the system does not let it mount one, files of that size are the largest that the process can write.

    Returns:
        Whether it was mounted.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    mounted = False
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        options = f"size={num_bytes}" + (f",nr_inodes={inodes}" if inodes else "")
        mounted = libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, options.encode()) == 0
    if not mounted:
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
    return mounted
