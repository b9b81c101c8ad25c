"""A disk that is soon full, for a process that is thrown away afterwards."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000


def use_small_disk(folder: Path, num_bytes: int) -> None:
    """Give this process, and no other, a file system of so many bytes at a folder.

    Where the system does not let it mount one, files of that size are the largest that the process can write.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    mounted = False
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        mounted = libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, f"size={num_bytes}".encode()) == 0
    if not mounted:
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
