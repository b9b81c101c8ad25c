"""Producers: closed by another thread while a batch is awaited."""

import threading
import time

import pytest

from dataprep.errors import DataprepError, StorageError
from loaders import open_loader
from tests.support.waiting import LONGEST_S, wait_for

SMALL = {"batch_size": 12, "image_size": 64}


@pytest.mark.parametrize("processes", [0, 2])
def test_closing_by_another_thread_wakes_the_reader(dataset, processes):
    loader = open_loader(str(dataset("webdataset")), **SMALL, processes=processes)
    batches = iter(loader)
    next(batches)
    told: list[BaseException] = []

    def read():
        try:
            for _ in range(10_000):
                next(batches, None) or next(iter(loader))
        except Exception as error:  # noqa: BLE001
            told.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.3)
    loader._producer.close()
    reader.join(LONGEST_S)
    assert not reader.is_alive()
    assert isinstance(told[0], DataprepError), told
    loader.close()


def test_closing_by_another_thread_skips_no_image(gcs, bucket_url, bucket_dataset):
    """Reads that the closing ends are no faults of images: the batch was delivered, all of it masked."""
    patient = {"deadline_s": 3_600.0, "on_error": "skip", "threads": 12}
    with open_loader(bucket_dataset("webdataset"), **SMALL, **patient) as loader:
        for shard in range(len(loader.order.shard_samples)):
            loader.index.shard(shard)
        gcs.set_latency(10_000)
        told: list[object] = []

        def read():
            try:
                told.append(next(iter(loader)).mask.tolist())
            except StorageError as error:
                told.append(str(error))

        reader = threading.Thread(target=read)
        reader.start()
        wait_for(lambda: loader.stats()["fetch"].get("requests", 0) >= SMALL["batch_size"])
        loader.close()
        reader.join()
        assert told == ["loader: closed while a batch was awaited; iterate over it again to continue"]
        assert loader.stats()["skipped"] == {}
        assert loader.state_dict()["position"] == 0
