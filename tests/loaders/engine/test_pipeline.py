"""From picks to rows: transforms, and shards that are missing or damaged."""

import itertools
import shutil

import pytest

from dataprep.build.images import ImagePolicy
from dataprep.errors import DataprepError
from loaders import open_loader
from tests.support.own_data import build_own, picture, write_files

SMALL = {"batch_size": 12, "image_size": 64}
HOURS_S = 36_000.0
"""A limit that the suite's own, of a test that hangs, comes long before."""


def wrong_size(image_HWC, rng):
    return image_HWC[:10]


def test_a_transform_of_another_size_is_refused(dataset):
    with open_loader(str(dataset("webdataset")), **SMALL, transform=wrong_size) as loader:
        with pytest.raises(DataprepError, match=r"transform gave uint8 of shape \(10, 64, 3\), expected"):
            next(iter(loader))


# What goes wrong in the middle of an epoch


@pytest.fixture
def broken(dataset, tmp_path):
    """A copy of the dataset, to break."""
    shutil.copytree(dataset("webdataset"), tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("processes", [0, 2])
def test_a_deleted_shard_is_named(broken, processes):
    shard = sorted(broken.glob("train/*.tar"))[1]
    with open_loader(str(broken), **SMALL, processes=processes, stall_s=HOURS_S) as loader:
        shard.unlink()
        whole = list(itertools.takewhile(lambda pick: pick.piece.shard != 1, loader.order.picks(0)))
        batches = iter(loader)
        given = [next(batches) for _ in range(len(whole) // SMALL["batch_size"])]
        with pytest.raises(DataprepError, match=shard.name):
            next(batches)
    assert sum(len(batch.keys) for batch in given) == len(whole) // 12 * 12


@pytest.mark.parametrize("processes", [0, 2])
def test_a_damaged_shard_is_named_or_its_images_are_masked_and_counted(broken, processes):
    shard = sorted(broken.glob("train/*.tar"))[1]
    data = bytearray(shard.read_bytes())
    for at in range(2000, len(data), 3000):
        data[at] ^= 0xFF
    shard.write_bytes(data)
    with open_loader(str(broken), **SMALL, processes=processes) as loader:
        with pytest.raises(DataprepError, match=f"{shard.name}.*CRC32C"):
            for _ in loader:
                pass
    with open_loader(str(broken), **SMALL, processes=processes, on_error="skip") as loader:
        batches = [(batch.keys, batch.mask, batch.labels) for batch in loader]
        masked = sum(int((~mask).sum()) for _, mask, _ in batches)
        assert masked == sum(loader.stats()["skipped"].values()) > 10
        assert all((labels[~mask] == -1).all() for _, mask, labels in batches)


def test_an_error_names_a_sample_as_its_file_was_called(tmp_path):
    write_files(tmp_path / "in", {"süß 1.jpg": picture(1)[:200]})
    build_own(tmp_path / "in", tmp_path / "out", options={"images": ImagePolicy(check="none"), "num_shards": 1})
    with (
        open_loader(tmp_path / "out", batch_size=1, image_size=16) as loader,
        pytest.raises(DataprepError, match=r"\.tar: s=C3=BC=C3=9F=201 = 'süß 1': "),
    ):
        next(iter(loader))
