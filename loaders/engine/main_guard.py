"""Worker processes of a program without `if __name__ == "__main__":`, which would start workers of their own.

A worker is a new interpreter that imports the user's program before it works. Code that opens a loader at the top of
that program is then run again, in the worker. Here the worker ends there without a word, with an exit code by which the
loader's process knows what is wrong, and says it once.
"""

from __future__ import annotations

import os
import sys

from dataprep.errors import UsageError
from loaders.decode.seeding import UNGUARDED, is_worker

_ADVICE = 'put what uses the loader under `if __name__ == "__main__":`, or leave `processes` out'


def end_if_worker() -> None:
    """End this process if it is a worker, which opens no loader unless it imports a program that opens one."""
    if is_worker():
        os._exit(UNGUARDED)  # nothing that the program does at its end is to happen twice


def check_program(processes: int) -> None:
    """Raise UsageError if workers could not import the program, which came through a pipe."""
    if getattr(sys.modules["__main__"], "__file__", None) == "<stdin>":
        raise UsageError(
            f"processes={processes}: each worker process imports the program, which must be a file, got <stdin>; "
            f"write it to a file and {_ADVICE}"
        )


def unguarded(processes: int) -> UsageError:
    """Return the error about a worker that ended with UNGUARDED."""
    return UsageError(
        f"processes={processes}: each worker process imports the program, and came to its loader again; {_ADVICE}"
    )
