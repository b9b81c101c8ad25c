"""Build on a disk that is too small, make it larger, build again; say what happened.

    python -m tests.support.filling FOLDER SMALL_BYTES LARGE_BYTES build …

The disk is a tmpfs at FOLDER in a mount namespace of this process: it needs no root, and is gone when this ends. The
builds are children of this process, since no other one sees the disk.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

from tests.support.builds import dataprep_anew, digests, is_finished
from tests.support.small_disk import use_small_disk

MS_REMOUNT = 32


def main(folder: str, small_bytes: str, large_bytes: str, *arguments: str) -> None:
    output = arguments[arguments.index("--output") + 1]
    use_small_disk(Path(folder), int(small_bytes))
    full = dataprep_anew(*arguments)
    finished = is_finished(output)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", MS_REMOUNT, f"size={large_bytes}".encode()) != 0:
        sys.exit(f"the disk could not be made larger: {os.strerror(ctypes.get_errno())}")
    again = dataprep_anew(*arguments)
    result = {"code": full.returncode, "stderr": full.stderr, "finished": finished}
    result |= {"again_code": again.returncode, "again_stderr": again.stderr, "digests": digests(output)}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
