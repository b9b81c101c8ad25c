"""The data of a benchmark, as our loader and as others read it."""

from pathlib import Path

import pytest
from PIL import Image

from dataprep.adoption import AdoptRequest, adopt
from dataprep.commands.bench import BenchProgress
from dataprep.errors import UsageError
from loaders.bench.compare import BenchRequest, run_bench
from loaders.bench.copies import Copy
from loaders.bench.data import expand_braces, grouped, open_bench_data
from loaders.bench.runs import BenchSettings
from loaders.bench.table import OURS
from tests.loaders.conftest import FORMATS
from tests.loaders.test_adopted import foreign

SETTINGS = BenchSettings(batch_size=8, image_size=32, workers=2, seconds=0, images=16)
QUIET = BenchProgress(quiet=True)


def bench_of(*urls, folder, **options):
    options = {"settings": SETTINGS, "rounds": 1, "loaders": (OURS,), **options}
    return run_bench(BenchRequest(urls=tuple(map(str, urls)), **options), folder, QUIET)


# Datasets


def test_tars_are_one_dataset_and_every_other_url_is_one_by_itself():
    urls = ("shards", "/data/a-{00..02}.tar", "gs://b/c", "/data/b.tar", "shards")
    tars = ("/data/a-00.tar", "/data/a-01.tar", "/data/a-02.tar", "/data/b.tar")
    assert grouped(urls) == [("shards",), tars, ("gs://b/c",)]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("x", ["x"]),
        ("{train,val}/{8..10}.tar", [f"{split}/{n}.tar" for split in ("train", "val") for n in (8, 9, 10)]),
        ("{098..101}", ["098", "099", "100", "101"]),
    ],
)
def test_braces_are_expanded_as_in_a_shell(pattern, found):
    assert list(expand_braces(pattern)) == found


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_built_dataset_names_its_files_for_other_loaders(dataset, tmp_path, fmt):
    data = open_bench_data((str(dataset(fmt)),), "train", tmp_path, QUIET, 0)
    assert (data.layout, data.is_local, data.why_unreadable) == (fmt, True, "")
    assert 5e3 < data.bytes_per_image < 5e5
    if fmt == "imagefolder":
        assert Path(data.root) == dataset(fmt) / "train"
    else:
        assert len(data.files) == 3
        assert all(Path(file).is_file() and "train" in Path(file).name for file in data.files)
    assert not list(tmp_path.iterdir())


def test_data_without_a_manifest_are_indexed_elsewhere_and_read_in_place(dataset, tmp_path):
    """Data without a manifest are indexed in another folder, and read in place."""
    folder = foreign(dataset("imagefolder"), tmp_path / "images")
    tars = foreign(dataset("webdataset"), tmp_path / "tars") / "train"
    tfds = foreign(dataset("tfrecord"), tmp_path / "tfds")
    before = sorted(tmp_path.rglob("*"))
    name = next(tars.iterdir()).name
    pattern = f"{tars}/{name.replace(name[-17:-13], '{0000..0002}')[: -len('-of-00003.tar')]}-of-00003.tar"
    work = tmp_path / "work"

    table = bench_of(folder, folder / "train", pattern, tfds, folder=work)

    whole, classes, sharded, records = table.sections
    assert [each.layout for each in table.sections] == ["imagefolder", "imagefolder", "webdataset", "tfrecord"]
    assert len({each.samples for each in table.sections}) == 1
    assert sharded.url == " ".join(str(tars / f"{name[:-18]}{n:05d}-of-00003.tar") for n in range(3))
    for section in (whole, classes, sharded, records):
        (row,) = section.rows
        assert (row.loader, row.data) == (OURS, "original")
        assert section.bytes_per_image == pytest.approx(whole.bytes_per_image, rel=1e-6)
        assert not section.left_out
    assert sorted(path for path in tmp_path.rglob("*") if work not in (path, *path.parents)) == before
    for number, url in enumerate((folder, folder / "train")):
        data = open_bench_data((str(url),), "train", tmp_path / f"index-{number}", QUIET, 0)
        assert data.root.rstrip("/") == str(folder / "train")


def test_data_without_labels_cannot_be_read_by_other_loaders(tmp_path):
    for number in range(16):
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.new("RGB", (40, 40), (number, 0, 0)).save(tmp_path / f"photos/{number}.jpg")
    adopt(
        AdoptRequest(url=str(tmp_path), index_url=str(tmp_path / "i"), labels="none", splits=(("train", "."),)), QUIET
    )
    data = open_bench_data((str(tmp_path / "i"),), "train", tmp_path / "index", QUIET, 0)
    assert "labels" in data.why_unreadable
    copied = Copy(data, tmp_path / "copies", 9, 1, QUIET)
    assert {file.parent.name for file in copied.layout("imagefolder").glob("*/*")} == {"00000"}
    assert (copied.images, copied.is_whole) == (9, False)


def test_data_that_cannot_be_opened_are_errors(dataset, tmp_path):
    for urls, split, message in (
        ((str(tmp_path / "none"),), "train", "no files found"),
        ((str(tmp_path / "none.tar"), str(tmp_path / "x.tar")), "train", r"none\.tar and 1 more: not found"),
        ((str(dataset("webdataset")),), "test", "no split 'test'; it has train, val"),
    ):
        with pytest.raises(UsageError, match=message):
            open_bench_data(urls, split, tmp_path / "index", QUIET, 0)
