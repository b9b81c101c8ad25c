"""System calls that the kernel refuses a process and all that it starts, by a seccomp filter; needs no permission."""

from __future__ import annotations

import ctypes
import platform
import struct

NUMBERS = {
    "x86_64": {"link": 86, "linkat": 265, "renameat2": 316, "fsync": 74, "fdatasync": 75},
    "aarch64": {"linkat": 37, "renameat2": 276, "fsync": 82, "fdatasync": 83},
}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOWED, REFUSED_WITH = 0x7FFF0000, 0x00050000


def refuse(refusals: dict[str, int]) -> None:
    """Have the kernel refuse calls, each with its error number, from now on and for ever."""
    numbers = NUMBERS[platform.machine()]
    program = [(LOAD, 0, 0, 0)]  # the call's number
    for name, code in refusals.items():
        if name in numbers:
            program += [(JUMP_IF_EQUAL, 0, 1, numbers[name]), (RETURN, 0, 0, REFUSED_WITH | code)]
    program.append((RETURN, 0, 0, ALLOWED))
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    filter_of_them = struct.pack("HxxxxxxP", len(program), ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter_of_them, 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "seccomp")
