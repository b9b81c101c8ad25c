"""Producers: closed by another thread while a batch is awaited."""

import threading
import time

import pytest

from dataprep.errors import DataprepError
from loaders import open_loader
from tests.support.waiting import LONGEST_S

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
