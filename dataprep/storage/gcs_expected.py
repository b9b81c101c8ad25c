"""A bucket of originals whose archives are looked for before their dataset is opened, all at once.

Originals do not change while they are listed: a build compares their sizes with its plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from dataprep.storage.base import ObjectInfo, Storage
from dataprep.storage.gcs import GCSStorage


class ExpectedGCS(GCSStorage):
    """Storage that knows the metadata of the objects that were expected."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._known: dict[str, ObjectInfo | None] = {}

    def expect(self, names: Sequence[str]) -> None:
        """Read the metadata of some objects, with one request each at the same time, for later calls of `stat`."""
        new = [name for name in dict.fromkeys(names) if name not in self._known]
        if new:
            with ThreadPoolExecutor(len(new)) as threads:
                self._known |= dict(zip(new, threads.map(super().stat, new), strict=True))

    def stat(self, name: str) -> ObjectInfo | None:
        """Return the object's metadata; with one request if it was not expected."""
        return self._known[name] if name in self._known else super().stat(name)


def expected(storage: Storage) -> Storage:
    """Return a storage to which names can be given that are looked for: a bucket's, or any other as it is."""
    return ExpectedGCS(storage.url) if type(storage) is GCSStorage else storage
