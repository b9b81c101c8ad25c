"""Rates of our loader on data of any origin: what is read, what is measured, and what is refused."""

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.commands.bench import BenchProgress
from dataprep.errors import DataprepError, UsageError
from loaders.bench.round import Round
from loaders.bench.run import BenchRequest, expand_braces, grouped, open_data, run_bench, section_of, stage_shares
from loaders.dataset import open_dataset

QUIET = BenchProgress(quiet=True)
RATES = st.floats(0.1, 1e6)


def bench_of(*urls, folder, **options):
    small = {"batch_size": 8, "image_size": 32, "workers": 2, "batches": 2, "rounds": 1}
    return run_bench(BenchRequest(urls=tuple(map(str, urls)), **small | options), folder, QUIET)


def measured(**changes):
    values = dict.fromkeys(("images_per_s", "cpu_ms_per_image", "first_batch_s", "largest_mb", "sum_mb"), 1.0)
    return Round(**{**values, "images": 10, "stages": {}, **changes})


def test_a_section_has_rates_memory_and_stages(dataset, tmp_path):
    table = bench_of(dataset("webdataset"), folder=tmp_path, rounds=2)
    (section,) = table.sections
    assert (section.layout, section.split, len(section.rounds_images_per_s)) == ("webdataset", "train", 2)
    assert section.slowest_images_per_s <= section.images_per_s <= section.fastest_images_per_s
    assert 5e3 < section.bytes_per_image < 5e5
    assert section.mb_per_s == pytest.approx(section.images_per_s * section.bytes_per_image / 1e6)
    assert 0 < section.cpu_ms_per_image < 5e3
    assert section.first_batch_s > 0
    assert 20 < section.largest_mb <= section.sum_mb
    stages = {stage.name: stage for stage in section.stages}
    assert {"fetch", "decode"} <= stages.keys()
    assert stages["decode"].busy_ms_per_image > 0
    assert not list(tmp_path.iterdir())


def test_a_loader_that_fails_is_an_error(dataset, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(dataset("webdataset"), data)
    for shard in (data / "train").iterdir():
        shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(DataprepError, match=r"StorageError|FileNotFoundError|FormatError"):
        bench_of(data, folder=tmp_path / "work")


def test_requests_out_of_range_are_refused(dataset, tmp_path):
    with pytest.raises(UsageError, match="`batch_size` must be 1 or more, got 0"):
        BenchRequest(urls=("x",), batch_size=0)
    with pytest.raises(UsageError, match="`rounds` must be 1 or more, got 0"):
        BenchRequest(urls=("x",), rounds=0)
    with pytest.raises(UsageError, match=r"images in train, but a batch takes 4,096; choose `batch_size`"):
        bench_of(dataset("webdataset"), folder=tmp_path, batch_size=4096)


def test_data_that_cannot_be_opened_are_errors(dataset, tmp_path):
    (tmp_path / "two").mkdir()
    for name in ("train-0000.tar", "train-0000.tfrecord"):
        (tmp_path / "two" / name).touch()
    for urls, split, message in (
        ((str(tmp_path / "none"),), "train", "no files found"),
        ((str(tmp_path / "none.tar"), str(tmp_path / "x.tar")), "train", r"none\.tar and 1 more: not found"),
        ((str(tmp_path / "two"),), "train", "choose one with `format`. These are options of `dataprep adopt`: run it"),
        ((str(dataset("webdataset")),), "test", "no split 'test'; it has train, val"),
    ):
        with pytest.raises(UsageError, match=message):
            open_data(urls, split, tmp_path / "index", QUIET, 0)


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


def test_a_section_has_the_median_and_the_spread(dataset):
    opened = open_dataset(str(dataset("tfrecord")), "train")

    @given(st.lists(RATES, min_size=1, max_size=9), st.floats(1, 1e6))
    def check(rates, bytes_per_image):
        found = section_of("x", opened, [measured(images_per_s=rate) for rate in rates], bytes_per_image)
        assert found.rounds_images_per_s == tuple(rates)
        assert (found.slowest_images_per_s, found.fastest_images_per_s) == (min(rates), max(rates))
        below = sum(rate <= found.images_per_s for rate in rates)
        above = sum(rate >= found.images_per_s for rate in rates)
        assert min(below, above) * 2 >= len(rates)

    check()


@given(st.lists(st.tuples(RATES, RATES, RATES), min_size=1, max_size=4))
def test_stage_shares_add_up(times):
    rounds = [
        measured(stages={"decode": {"items": 5, "busy_s": busy_s, "get_wait_s": get_s, "put_wait_s": put_s}})
        for busy_s, get_s, put_s in times
    ]
    (share,) = stage_shares(rounds)
    assert share.busy_share + share.get_wait_share + share.put_wait_share == pytest.approx(1)
    assert share.busy_ms_per_image == pytest.approx(1e3 * sum(busy_s for busy_s, _, _ in times) / (10 * len(times)))
