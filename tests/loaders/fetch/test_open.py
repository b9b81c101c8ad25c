"""Choice of the fetcher for a storage."""

from dataprep.storage import open_storage
from loaders.fetch.bucket import BucketFetcher
from loaders.fetch.disk import DiskFetcher
from tests.support.slow_storage import SlowStorage


def test_a_disk_is_read_by_the_waiting_thread_and_anything_else_ahead(dataset, fetching):
    path = dataset("webdataset")
    assert isinstance(fetching(open_storage(str(path))).fetcher, DiskFetcher)
    assert isinstance(fetching(SlowStorage(path)).fetcher, BucketFetcher)
