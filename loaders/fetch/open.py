"""Choice of the fetcher for a storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.fetch.disk import DiskFetcher
from loaders.fetch.fetcher import Fetcher, FetchSettings
from loaders.fetch.index import SplitIndex, with_deadline

if TYPE_CHECKING:
    from dataprep.storage.base import Storage


def open_fetcher(storage: Storage, index: SplitIndex, settings: FetchSettings | None = None) -> Fetcher:
    """Start a fetcher for the samples in a storage."""
    settings = settings or FetchSettings()
    if storage.is_local:
        return DiskFetcher(storage, index, settings)
    from loaders.fetch.bucket import BucketFetcher

    return BucketFetcher(with_deadline(storage, settings.deadline_s), index, settings)
