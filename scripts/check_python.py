"""Print in one line why this interpreter cannot make .venv, or nothing if it can.

Any Python may run this, so the syntax must be valid in Python 2.7 as well.
"""

import ctypes
import platform
import sys

SUPPORTED = ("3.11", "3.12", "3.13")


def problem():
    version = ".".join(str(part) for part in sys.version_info[:2]) + getattr(sys, "abiflags", "")
    if platform.python_implementation() != "CPython" or version not in SUPPORTED:
        return "is " + platform.python_implementation() + " " + version
    library = "libpython" + version + ".so.1.0"
    try:
        ctypes.CDLL(library)
    except OSError:
        return "has no shared library " + library + ", which torch_xla loads"
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        return "has no ensurepip to make .venv with (Debian: apt install python3-venv)"
    return ""


if __name__ == "__main__":
    print(problem())
