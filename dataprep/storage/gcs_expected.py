"""A bucket of originals whose archives are looked for before their dataset is opened, all at once, and which knows the
versions of all objects that were listed."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dataprep.storage.base import ObjectInfo, Storage
from dataprep.storage.gcs import MAX_STATS, GCSStorage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ExpectedGCS(GCSStorage):
    """Storage that knows the metadata of the objects that were expected, and sizes and versions of all listed ones."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._known: dict[str, ObjectInfo | None] = {}
        # 24 bytes for each object: with those of a million, the names would take 150 MB.
        self._listed = array("q"), array("q"), array("q")
        """Hash of the name, size and version of each listed object."""
        self._order: NDArray[np.int64] | None = None
        """Positions of the listed objects, sorted by their hashes; None where others were listed since."""

    def expect(self, names: Sequence[str]) -> None:
        """Read the metadata of some objects, with one request each at the same time, for later calls of `stat`."""
        new = [name for name in dict.fromkeys(names) if name not in self._known]
        if new:
            with ThreadPoolExecutor(len(new)) as threads:
                self._known |= dict(zip(new, threads.map(super().stat, new), strict=True))

    def stat(self, name: str) -> ObjectInfo | None:
        """Return the object's metadata; with one request if it was not expected."""
        return self._known[name] if name in self._known else super().stat(name)

    def list(self, prefix: str = "", first: str = "") -> Iterator[ObjectInfo]:
        """List objects, and remember their sizes and versions."""
        for info in super().list(prefix, first):
            for column, value in zip(self._listed, (hash(info.name), info.num_bytes, info.version), strict=True):
                column.append(value)
            self._order = None
            yield info

    def stats(self, names: Sequence[str]) -> Sequence[ObjectInfo | None]:
        """Return what is known of each object, and ask for the others."""
        found = {name: self._known.get(name) or self._as_listed(name) for name in dict.fromkeys(names)}
        unknown = [name for name, info in found.items() if info is None]
        asked = dict(zip(unknown, super().stats(unknown), strict=True))
        found |= asked
        if len(asked) <= MAX_STATS:  # of more, the listing was remembered
            self._known |= asked
        return [found[name] for name in names]

    def _as_listed(self, name: str) -> ObjectInfo | None:
        """Return an object as it was first listed, without its checksum; None if it was not."""
        hashes, sizes, versions = self._listed
        if not hashes:
            return None
        import numpy as np

        if self._order is None:
            self._order = np.argsort(np.array(hashes), kind="stable")
        at = int(np.searchsorted(np.frombuffer(hashes, np.int64), hash(name), sorter=self._order))
        if at == len(self._order) or hashes[position := int(self._order[at])] != hash(name):
            return None
        return ObjectInfo(name, sizes[position], None, version=versions[position])


def expected(storage: Storage) -> Storage:
    """Return a storage to which names can be given that are looked for: a bucket's, or any other as it is."""
    return ExpectedGCS(storage.url) if type(storage) is GCSStorage else storage
