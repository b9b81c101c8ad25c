"""Choice of the fetcher for a storage."""

from dataprep.storage import open_storage
from loaders.fetch.bucket import BucketFetcher
from loaders.fetch.disk import DiskFetcher
from tests.support.slow_storage import SlowStorage


def test_local_disks_get_a_disk_fetcher_and_other_storages_a_bucket_fetcher(dataset, fetching):
    path = dataset("webdataset")
    assert isinstance(fetching(open_storage(str(path))).fetcher, DiskFetcher)
    assert isinstance(fetching(SlowStorage(path)).fetcher, BucketFetcher)
