"""Copies of a dataset's images in other layouts."""

import pytest

from dataprep.commands.bench import BenchProgress
from loaders import open_loader
from loaders.bench.copies import Copy
from loaders.bench.data import open_bench_data
from tests.loaders.conftest import FORMATS

QUIET = BenchProgress(quiet=True)


def open_here(url, folder):
    return open_bench_data((str(url),), "train", folder / "index", QUIET, 0)


# Copies


@pytest.mark.parametrize("layout", FORMATS)
def test_a_copy_holds_the_images_of_the_dataset(bucket_dataset, dataset, tmp_path, layout):
    """Copied from a bucket, evenly over the split; our loader reads every layout; a second copy uses the first."""
    data = open_bench_data((bucket_dataset("webdataset"),), "train", tmp_path / "index", QUIET, 0)
    copied = Copy(data, tmp_path / "copies", 30, 2, QUIET)
    with open_loader(copied.indexed(layout), batch_size=10, image_size=32) as loader:
        assert loader.order.num_samples == copied.images == 30
        assert sum(int(batch.mask.sum()) for batch in loader) == 30
    folder = copied.layout("imagefolder")
    originals = {path.read_bytes() for path in (dataset("imagefolder") / "train").rglob("*.*")}
    assert {path.read_bytes() for path in folder.rglob("*.jpg")} <= originals
    assert copied.bytes_per_image == sum(path.stat().st_size for path in folder.rglob("*.jpg")) / 30
    assert not copied.is_whole
    assert Copy(open_here(dataset(layout), tmp_path), tmp_path / "all", 2000, 2, QUIET).is_whole
    written_ns = folder.stat().st_mtime_ns
    assert Copy(data, tmp_path / "copies", 30, 2, QUIET).layout("imagefolder").stat().st_mtime_ns == written_ns
