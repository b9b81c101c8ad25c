"""Start of a program: supported machines and Pythons, its module path, and rare garbage collection.

Python 3.6 and newer can import this file, so that it can refuse older Pythons. It imports only the standard library.
"""

import atexit
import gc
import os
import sys

OLDEST, NEWEST = (3, 11), (3, 13)
"""First and last minor version of CPython that the tests run with."""
COLLECT_AFTER = 20_000
"""Number of new objects after which a process collects garbage; Python's default is 700 or 2,000."""


def leave_current_folder() -> None:
    """Keep the current folder, such as a downloaded dataset, off the module path of this program and its children.

    Console scripts do not have it there; `python -m` and `python -c` do, and children start so. Our own checkout stays.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
    first, checkout = sys.path[0] or ".", os.path.join(os.path.dirname(__file__), "..", "..")  # noqa: PTH118, PTH120
    if os.path.exists(first) and os.path.samefile(first, ".") and not os.path.samefile(first, checkout):  # noqa: PTH110, PTH121
        del sys.path[0]  # a module of the standard library that is not loaded yet, such as pathlib, could be planted


def names_advice() -> str:
    """Return advice, as a clause, if file names cannot have all letters; empty if they can."""
    encoding = sys.getfilesystemencoding()
    if encoding.lower().replace("-", "") == "utf8":
        return ""
    return (
        f"the locale of this process writes file names in {encoding}, which does not have all letters: set "
        "PYTHONUTF8=1, and run the same command again"
    )


def unsupported() -> str:
    """Return why dataprep does not run here, and what to do, as one line; empty if it does."""
    if sys.platform == "win32":
        return "got Windows, expected Linux: install WSL 2 (run: wsl), and install dataprep inside it"
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        return (
            f"got Python {sys.version.split()[0]} ({sys.executable}), expected CPython 3.11, 3.12 or 3.13: install "
            "dataprep with one of these (pip install .), or, in a checkout, run make setup and then .venv/bin/dataprep"
        )
    return ""


def collect_rarely() -> None:
    """Collect garbage rarely, and not when this process ends.

    Imported objects are never garbage: while modules are imported, collections take 7 % of the CPU time. At the end of
    a process the interpreter looks at all objects once more, which takes a build 0.07 s.
    """
    gc.set_threshold(COLLECT_AFTER)
    atexit.register(gc.freeze)
