"""A bucket of originals that requests the archives of a dataset together, and remembers listed objects."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from dataprep.arrays import NDArray, np
from dataprep.storage import base


class Expected:
    """Wrapper of a storage that remembers the metadata of expected objects, and sizes and versions of listed ones. It
    pickles as the wrapped storage."""

    def __init__(self, storage: base.Storage) -> None:
        self._storage = storage
        self._known: dict[str, base.ObjectInfo | None] = {}
        # 24 bytes for each object; the names of a million objects would take 150 MB.
        self._listed = array("q"), array("q"), array("q")
        """Hash of the name, size and version of each listed object."""
        self._order: NDArray[np.int64] | None = None
        """Positions of the listed objects, sorted by their hashes; None after further objects were listed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def __reduce__(self) -> Any:
        return self._storage.__reduce__()

    def expect(self, names: Sequence[str]) -> None:
        """Request the metadata of some objects concurrently, for later calls of `stat`."""
        new = [name for name in dict.fromkeys(names) if name not in self._known]
        if new:
            with ThreadPoolExecutor(len(new)) as threads:
                self._known |= dict(zip(new, threads.map(self._storage.stat, new), strict=True))

    def stat(self, name: str) -> base.ObjectInfo | None:
        """Return the object's metadata; with one request if it was not expected."""
        return self._known[name] if name in self._known else self._storage.stat(name)

    def list(self, prefix: str = "", first: str = "") -> Iterator[base.ObjectInfo]:
        """List objects, and remember their sizes and versions."""
        for info in self._storage.list(prefix, first):
            for column, value in zip(self._listed, (hash(info.name), info.num_bytes, info.version), strict=True):
                column.append(value)
            self._order = None
            yield info

    def stats(self, names: Sequence[str]) -> Sequence[base.ObjectInfo | None]:
        """Return the known metadata of each object, and request the others."""
        found = {name: self._known.get(name) or self._as_listed(name) for name in dict.fromkeys(names)}
        unknown = [name for name, info in found.items() if info is None]
        if len(unknown) > base.MAX_STATS:
            found |= dict(zip(unknown, base.listed(cast(base.Storage, self), unknown), strict=True))
        else:
            asked = dict(zip(unknown, self._storage.stats(unknown), strict=True))
            found |= asked
            self._known |= asked
        return [found[name] for name in names]

    def _as_listed(self, name: str) -> base.ObjectInfo | None:
        """Return an object as it was first listed, without its checksum; None if it was not listed."""
        hashes, sizes, versions = self._listed
        if not hashes:
            return None
        if self._order is None:
            self._order = np.argsort(np.array(hashes), kind="stable")
        at = int(np.searchsorted(np.frombuffer(hashes, np.int64), hash(name), sorter=self._order))
        if at == len(self._order) or hashes[position := int(self._order[at])] != hash(name):
            return None
        return base.ObjectInfo(name, sizes[position], None, version=versions[position])
