"""Fetchers over datasets on a disk, in slow storages and in an emulated bucket."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from dataprep.dataset.manifest import read_manifest
from dataprep.storage import Storage, open_storage
from dataprep.storage.checksums import crc32c_of
from loaders.fetch.fetcher import Fetcher, FetchSettings, open_fetcher
from loaders.fetch.index import SplitIndex
from loaders.order import Order, Pick

ORDER = {"seed": 3, "global_batch": 10, "samples_per_block": 4, "num_streams": 6, "window": 2}


@dataclass
class Opened:
    storage: Storage
    index: SplitIndex
    fetcher: Fetcher
    counts: tuple[int, ...]

    def order(self, **changes: int) -> Order:
        return Order(shard_samples=self.counts, **(ORDER | changes))

    def read_index(self) -> None:
        """Read the entries of all shards, so that only images are read afterwards."""
        for shard in range(len(self.counts)):
            self.index.shard(shard)

    def crc32c(self, pick: Pick) -> int:
        return int(self.index.shard(pick.piece.shard).image_crc32c[pick.sample])


@pytest.fixture
def fetching():
    """Opens fetchers, and closes them after the test."""
    fetchers = []

    def opened(storage: Storage | str | Path, **settings) -> Opened:
        storage = open_storage(str(storage)) if isinstance(storage, str | Path) else storage
        manifest = read_manifest(storage)
        index = SplitIndex(storage, manifest, manifest.splits[0])
        fetchers.append(open_fetcher(storage, index, FetchSettings(**settings)))
        counts = tuple(shard["samples"] for shard in manifest.splits[0].shards)
        return Opened(storage, index, fetchers[-1], counts)

    yield opened
    for fetcher in fetchers:
        fetcher.close()


def fetch(opened: Opened, picks: Iterable[Pick], *, threads: int = 4, work_s: float = 0.0) -> int:
    """Fetch as a loader does, compare every image with the index, and return the number of images."""

    def use(pick: Pick, ticket) -> None:
        try:
            image = ticket.wait()
            assert crc32c_of(bytes(image)) == opened.crc32c(pick)
            assert ticket.entries.key(ticket.entry) == opened.index.shard(pick.piece.shard).key(pick.sample)
            time.sleep(work_s)
        finally:
            ticket.done()

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(use, pick, opened.fetcher.request(pick)) for pick in picks]
        for future in futures:
            future.result()
    return len(futures)
