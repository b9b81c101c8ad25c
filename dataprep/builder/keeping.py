"""Where a build keeps its lists of originals for a run that goes on, and when it may store them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from dataprep.builder.enumerations import (
    Spooled,
    forget_enumeration,
    publish_enumeration,
    spool_enumeration,
    store_splits,
)
from dataprep.builder.source_listing import store_listing
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.paths import PLAN_JSON
from dataprep.dataset.records import Enumeration
from dataprep.errors import StorageError
from dataprep.storage import Storage


class Keeping:
    """Stores the lists of originals in the output of a build: in a bucket while the build goes on.

    Args:
        storage: The output; None stores nothing.
        is_empty: Nothing was there when the build began.
    """

    def __init__(self, storage: Storage | None, *, is_empty: bool = False) -> None:
        self.storage = storage
        self._is_empty = is_empty
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="dataprep-keep")
        self._under_way: list[Future[None]] = []

    def is_under_way(self) -> bool:
        """Return whether a build owns the output."""
        return self.storage is not None and self.storage.stat(PLAN_JSON) is not None

    @property
    def earlier(self) -> Storage | None:
        """Storage in which an earlier run may have stored lists; None if none did."""
        return None if self._is_empty else self.storage

    def is_allowed(self) -> bool:
        """Return whether files may be stored: beside a finished dataset none may be left."""
        return self.storage is not None and (self._is_empty or self.storage.stat(MANIFEST) is None)

    def keep(self, name: str, enumeration: Enumeration, *, afresh: bool) -> None:
        """Store a list under a name; `afresh` removes the one that is there."""
        storage = self.storage
        if storage is None:
            return
        if storage.is_local:
            if self.is_allowed():
                self._put(storage, name, spool_enumeration(storage, name, enumeration), afresh=afresh)
            return
        spooled = spool_enumeration(storage, name, enumeration)
        self._under_way.append(self._threads.submit(self._put_if_allowed, storage, name, spooled, afresh=afresh))

    def note(self, name: str, listing: str) -> None:
        """Store what the source had, after all lists of its images."""
        if self.storage is not None and self.storage.is_local:
            store_listing(self.storage, name, listing)
        elif self.storage is not None:
            self._under_way.append(self._threads.submit(store_listing, self.storage, name, listing))

    def keep_splits(self, name: str, splits: tuple[str, ...]) -> None:
        """Store the names of all splits under a name, once the lists are stored."""
        storage = self.storage
        if storage is None:
            return
        stored = self._threads.submit(store_splits, storage, name, splits)
        self._under_way.append(stored)
        if storage.is_local:
            stored.result()

    def wait(self) -> None:
        """Wait until all lists are stored."""
        while self._under_way:
            self._under_way.pop().result()

    def _put_if_allowed(self, storage: Storage, name: str, spooled: Spooled | None, *, afresh: bool) -> None:
        # A list only saves a rerun time: no build that is whole meanwhile ends with this error.
        with suppress(StorageError):
            if storage.stat(MANIFEST) is None:
                self._put(storage, name, spooled, afresh=afresh)

    def _put(self, storage: Storage, name: str, spooled: Spooled | None, *, afresh: bool) -> None:
        if afresh:
            forget_enumeration(storage, name)
        publish_enumeration(storage, name, spooled)
