"""Plain data, such as a folder of pictures or tars, which are indexed when a loader first opens them.

The index is what `dataprep adopt` writes. It is kept in the user's cache, in a folder whose name is a digest of the
data's URL, so that the data need not be writable and the next run finds it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from dataprep.adoption import Adoption, AdoptRequest, adopt
from dataprep.dataset.manifest import no_dataset
from dataprep.dataset.paths import PLAN_JSON
from dataprep.errors import UsageError
from dataprep.host.heartbeat import STALL_S
from dataprep.messages import counted, human_bytes
from dataprep.storage import Storage


def indexed(data: Storage, index: str | None) -> str:
    """Index plain data, unless they are indexed and unchanged, and return the URL of the index.

    Args:
        data: Place of the data.
        index: Folder or gs:// URL for the index; None: one in the user's cache.

    Raises:
        UsageError: The data do not exist.
        SourceError: The data are damaged; the text says where.
    """
    if data.is_local and not Path(data.url).exists():
        raise UsageError(
            f"{data.url}: no such folder; expected a dataset of `dataprep build`, an image folder, tars or a TFDS "
            "directory, on a disk or gs://, or the .json file of a mixture"
        )
    if data.stat(PLAN_JSON) is not None:
        raise no_dataset(data)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dataprep" / "adopted"
    index = index or str(cache / hashlib.sha256(data.url.encode()).hexdigest()[:16])
    adoption = adopt(AdoptRequest(url=data.url, index_url=index), _Lines())
    if adoption.changes:
        say(f"{data.url}: changed since it was indexed ({adoption.changes}); indexing it again")
        adoption = adopt(AdoptRequest(url=data.url, index_url=index, overwrite=True), _Lines())
    say(f"{data.url}: {_understood(adoption)}; index in {adoption.url}")
    return adoption.url


def _understood(adoption: Adoption) -> str:
    """Return a summary of the data, such as `imagefolder, train of 95 images and val of 5, 2 classes`."""
    found = adoption.manifest
    splits = " and ".join(f"{split.name} of {counted(split.samples, 'image')}" for split in found.splits)
    classes = counted(len(found.classes), "class") if found.classes else "no labels"
    return f"{found.format}, {splits}, {classes}"


class _Lines:
    """Progress of indexing, as lines on stderr."""

    stall_s = STALL_S

    def step(self, what: str) -> None:
        say(f"index: {what}")

    def started(self, shards: int, num_bytes: int) -> None:
        say(f"index: reading where each image is in {human_bytes(num_bytes)}, once; later runs use the index")

    def shard_done(self, samples: int, num_bytes: int) -> None:
        pass

    def log(self, line: str) -> None:
        say(line)

    warn = log


def say(line: str) -> None:
    """Print a line for the user, on stderr."""
    print(line, file=sys.stderr)
