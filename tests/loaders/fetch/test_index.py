"""The index in memory against the files that it describes."""

import os
import tempfile
import threading
from dataclasses import fields

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.records import SplitManifest, ViewedSplit
from dataprep.errors import FormatError
from dataprep.storage import open_storage
from dataprep.storage.checksums import crc32c_of
from loaders import open_loader
from loaders.fetch.index import ShardIndex, SplitIndex, Texts, _Rows
from loaders.order import Piece
from tests.support.faults import Damaged, linked_copy
from tests.support.finished import build_here
from tests.support.slow_storage import LATENCIES_S, SlowStorage

FORMATS = ("webdataset", "tfrecord", "imagefolder")
COLUMNS = ("record_offset", "record_bytes", "image_offset", "image_bytes", "image_crc32c", "label", "height", "width")


def split_rows(storage, **options):
    manifest = read_manifest(storage)
    return SplitIndex(storage, manifest, manifest.splits[0], **options)


@pytest.mark.parametrize("fmt", FORMATS)
def test_index_entries_give_the_offsets_of_the_images(dataset, fmt):
    storage = open_storage(str(dataset(fmt)))
    rows, table = split_rows(storage), pq.ParquetFile(dataset(fmt) / "index/train.parquet")
    for shard in range(3):
        found, expected = rows.shard(shard), table.read_row_group(shard).to_pydict()
        assert [found.key(i) for i in range(len(found))] == expected["key"]
        for name in COLUMNS:
            assert getattr(found, name).tolist() == expected[name]
        for i in range(len(found)):
            image = storage.read_range(rows.file(shard, i), int(found.image_offset[i]), int(found.image_bytes[i]))
            assert image[:2] == b"\xff\xd8"
            assert crc32c_of(image) == found.image_crc32c[i]


def test_unknown_heights_and_widths_are_zero(originals, tmp_path):
    build_here("imagenet", originals["imagenet"], tmp_path / "d", "webdataset", check="none")
    found = split_rows(open_storage(str(tmp_path / "d"))).shard(1)
    expected = pq.ParquetFile(tmp_path / "d/index/train.parquet").read_row_group(1).to_pydict()
    assert None in expected["height"]
    for name in ("height", "width"):
        assert getattr(found, name).tolist() == [side or 0 for side in expected[name]]


@given(st.lists(st.text("ab_/é", max_size=6), min_size=1, max_size=12), st.data())
def test_a_part_of_the_entries_equals_a_slice_of_the_whole(keys, data):
    first = data.draw(st.integers(0, len(keys)))
    stop = data.draw(st.integers(first, len(keys)))
    numbers = np.arange(len(keys), dtype=np.int64)
    text = [key.encode() for key in keys]
    texts = Texts(np.cumsum([len(key) for key in text]), b"".join(text))
    whole = ShardIndex(*[numbers] * 4, None, numbers, *[numbers.astype(np.int32)] * 2, texts, None)
    part = whole.part(first, stop)
    assert [part.key(i) for i in range(len(part))] == keys[first:stop]
    assert part.label.tolist() == part.record_offset.tolist() == list(range(first, stop))
    assert part.image_crc32c is None and part.label.base is None


COUNTS = st.one_of(st.integers(0, 200), st.integers(0, 2**40))
ROW = st.tuples(
    COUNTS, COUNTS, COUNTS, COUNTS, st.integers(0, 2**32 - 1), st.integers(-1, 2**31), *[st.integers(0, 2**31 - 1)] * 2
)


@st.composite
def entries_of_a_shard(draw, with_files):
    rows = draw(st.lists(ROW, min_size=1, max_size=12)) * draw(st.sampled_from([1, 5, 11, 30]))
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    texts = [
        Texts(np.cumsum([len(text) for text in column]), b"".join(column))
        for column in [[f"{name}{number}".encode() for number in range(len(rows))] for name in ("a/é", "class/")]
    ]
    columns[2] += columns[0]  # an image is in its record
    columns[1] += columns[2] - columns[0] + columns[3]
    crc32c = columns[4].astype(np.uint32) if draw(st.booleans()) else None
    sides = [column.astype(np.int32) for column in columns[6:]]
    return ShardIndex(*columns[:4], crc32c, columns[5], *sides, texts[0], texts[1] if with_files else None)


def values_of(entries):
    """Return everything that entries hold, as lists."""
    crc32c = None if entries.image_crc32c is None else entries.image_crc32c.tolist()
    numbers = [getattr(entries, name).tolist() for name in COLUMNS if name != "image_crc32c"]
    texts = [[each[i] for i in range(len(entries))] for each in (entries.keys, entries.files) if each is not None]
    return crc32c, numbers, texts


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("loaders.fetch.index.SPARE_BYTES", 0)  # the disk of the tests may be full
    return tmp_path / "cache/dataprep/index"


@settings(max_examples=30)
@given(st.booleans().flatmap(lambda files: st.lists(entries_of_a_shard(files), min_size=1, max_size=3)), st.data())
def test_rows_on_the_disk_are_the_entries_that_were_put(shards, data):
    counts = [len(entries) for entries in shards]
    places = [(shard, sample) for shard, count in enumerate(counts) for sample in range(count)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", folder)
        patch.setattr("loaders.fetch.index.SPARE_BYTES", 0)
        rows = _Rows("index", counts)
        assert rows.get([Piece(0, 0, 1, 0)]) == [None]
        for shard in data.draw(st.permutations(range(len(shards)))):
            rows.put(shard, shards[shard])
        kept = [shard for shard in range(len(shards)) if rows.has(shard)]  # larger rows begin another file
        assert kept
        for place in data.draw(st.lists(st.sampled_from(places), max_size=5)):
            stop = data.draw(st.integers(place[1] + 1, counts[place[0]]))
            for found in (rows.get([Piece(*place, stop, 0)]), _Rows("index", counts).get([Piece(*place, stop, 0)])):
                check(found, [(shards[place[0]], *place, stop)], kept)
        several = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=9))
        found = rows.get([Piece(shard, sample, sample + 1, 0) for shard, sample in several])
        check(found, [(shards[shard], shard, sample, sample + 1) for shard, sample in several], kept)


def check(found, due, kept):
    for each, (entries, shard, first, stop) in zip(found, due, strict=True):
        assert (each is None) == (shard not in kept)
        if each is not None:
            part = each.entries.part(each.at, each.at + stop - first)
            assert values_of(part) == values_of(entries.part(first, stop))


def test_a_view_has_no_rows_on_the_disk_because_their_numbers_are_others(dataset, cache):
    storage = open_storage(str(dataset("webdataset")))
    manifest = read_manifest(storage)
    split = manifest.splits[0]
    view = ViewedSplit(**{each.name: getattr(split, each.name) for each in fields(SplitManifest)}, kept=None)
    SplitIndex(storage, manifest, view, max_bytes=1).load(0)
    assert not cache.exists()
    SplitIndex(storage, manifest, split, max_bytes=1).load(0)
    assert list(cache.glob("*.rows"))


def test_rows_that_no_loader_used_for_long_are_removed(dataset, cache):
    split_rows(open_storage(str(dataset("webdataset"))), max_bytes=1).load(1)  # with the largest picture
    (path,) = cache.glob("*.rows")
    others = [cache / f"{'0' * 31}{number}{path.name[32:]}" for number in range(2)]
    for other in (*others, cache / "a file of the user"):
        other.touch()
        os.utime(other, (0, 0))
    others[1].touch()
    split_rows(open_storage(str(dataset("webdataset"))), max_bytes=1).load(0)
    assert {each.name for each in cache.iterdir()} == {path.name, others[1].name, "a file of the user"}


@pytest.mark.parametrize("fmt", FORMATS)
def test_an_index_larger_than_memory_is_read_once_by_all_processes(dataset, cache, fmt):
    storage = SlowStorage(dataset(fmt))
    rows, due = split_rows(storage, max_bytes=1), split_rows(open_storage(str(dataset(fmt))))
    counts = [entry["samples"] for entry in read_manifest(storage).splits[0].shards]
    places = [(shard, sample) for sample in range(min(counts)) for shard in range(len(counts))]
    for shard in range(len(counts)):
        rows.load(shard)
    opened = len(storage.requests)
    for index in (rows, split_rows(storage, max_bytes=1)):
        for shard, sample in places:
            entries, entry = index.find(Piece(shard, sample, sample + 1, 0))
            assert values_of(entries.part(entry, entry + 1)) == values_of(due.shard(shard).part(sample, sample + 1))
    assert len(storage.requests) <= opened + 1  # the second one has the last shard of the first in no memory
    assert sum(path.stat().st_size for path in cache.iterdir()) > 0


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: bytes(255 - each for each in data), lambda data: bytes(len(data))]
)
def test_damaged_rows_on_the_disk_are_read_from_the_index_again(dataset, cache, damage):
    storage = open_storage(str(dataset("webdataset")))
    rows = split_rows(storage, max_bytes=1)
    rows.load(1)
    (path,) = cache.glob("*.rows")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    entries, entry = split_rows(storage, max_bytes=1).find(Piece(1, 2, 3, 0))
    assert entries.key(entry) == rows.shard(1).key(2)
    assert path.read_bytes()[-50:] == whole[-50:]


def test_an_index_larger_than_memory_that_no_disk_keeps_is_said(dataset, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    rows = split_rows(open_storage(str(dataset("webdataset"))), max_bytes=1)
    with pytest.warns(UserWarning, match=r"cannot be kept in .*file/dataprep \(Not a directory\).* set XDG_CACHE_HOME"):
        entries, entry = rows.find(Piece(1, 2, 3, 0))
    assert entries.key(entry) == rows.shard(1).key(2)


def test_a_full_disk_gets_no_rows_and_gives_those_it_has(dataset, cache, monkeypatch):
    storage = open_storage(str(dataset("webdataset")))
    split_rows(storage, max_bytes=1).load(1)
    monkeypatch.setattr("loaders.fetch.index.SPARE_BYTES", 2**63)
    rows, places = split_rows(storage, max_bytes=1), [Piece(1, 0, 1, 0), Piece(0, 0, 1, 0)]
    for shard in (1, 0):
        rows.load(shard)
    assert list(rows.known(places)) == places[:1]
    (path,) = cache.glob("*.rows")
    path.unlink()
    with pytest.warns(UserWarning, match=r"cannot be kept in .*cache/dataprep \(No space left on device\)"):
        split_rows(storage, max_bytes=1).load(0)


def test_shards_are_read_lazily_and_once_by_many_threads(dataset):
    storage = SlowStorage(dataset("webdataset"), latency_s=0.05)
    rows = split_rows(storage)
    assert storage.requests == []
    found = []
    threads = [threading.Thread(target=lambda: found.append(rows.shard(1))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12 and all(each is found[0] for each in found)
    before = len(storage.requests)
    assert rows.shard(1) is found[0]
    assert len(storage.requests) == before
    rows.shard(0)
    assert len(storage.requests) <= before + 1  # one request a row group, or none where it came with the last one


def test_shards_of_a_large_index_are_read_concurrently(dataset, monkeypatch):
    monkeypatch.setattr("dataprep.dataset.index.MAX_BUFFERED_BYTES", 0)
    for latency_s in LATENCIES_S:
        storage = SlowStorage(dataset("webdataset"), latency_s)
        rows = split_rows(storage)
        threads = [threading.Thread(target=rows.shard, args=(shard,)) for shard in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if storage.most_in_flight >= 2:
            break
    assert storage.most_in_flight >= 2
    assert [len(rows.shard(shard)) for shard in range(3)] == [
        entry["samples"] for entry in read_manifest(storage).splits[0].shards
    ]


def test_memory_is_bounded_and_least_recently_used_shards_go_first(dataset, cache):
    storage = SlowStorage(dataset("webdataset"))
    one = split_rows(storage).shard(0).num_bytes
    rows = split_rows(storage, max_bytes=int(2.5 * one))
    first = {shard: rows.shard(shard) for shard in (0, 1, 0, 2)}  # 1 must go
    assert rows.shard(0) is first[0] and rows.shard(2) is first[2]
    assert rows.shard(1) is not first[1]


def damaged_copy(source, target):
    linked_copy(source, target)
    return Damaged(target)


def test_adopted_folders_name_their_files(dataset, tmp_path):
    copy = damaged_copy(dataset("imagefolder"), tmp_path / "d")
    path = copy.root / "index/train.parquet"
    groups = [pq.ParquetFile(path).read_row_group(group) for group in range(3)]
    path.unlink()
    names = [[f"any/{group}/Ümlaut {i}.PNG" for i in range(table.num_rows)] for group, table in enumerate(groups)]
    groups = [table.append_column("file", pa.array(own)) for table, own in zip(groups, names, strict=True)]
    with pq.ParquetWriter(path, groups[0].schema) as writer:
        for table in groups:
            writer.write_table(table)
    copy.sign()
    rows = split_rows(open_storage(str(copy.root)))
    assert [rows.file(1, i) for i in range(len(names[1]))] == names[1]
    assert [rows.file_of(2, rows.shard(2).part(3, 9), i) for i in range(6)] == names[2][3:9]


@pytest.mark.parametrize(
    ("column", "value"), [("image_offset", -1), ("image_bytes", 0), ("image_bytes", 1 << 40), ("record_offset", -5)]
)
def test_an_index_with_impossible_offsets_is_refused(dataset, tmp_path, column, value):
    copy = damaged_copy(dataset("webdataset"), tmp_path / "d")

    def change(table):
        values = [value, *table.column(column).to_pylist()[1:]]
        return table.set_column(table.column_names.index(column), column, pa.array(values, pa.int64()))

    copy.change_table("index/train.parquet", change)
    copy.sign()
    with pytest.raises(FormatError, match=r"index/train\.parquet: row group 0 .* build it again"):
        split_rows(open_storage(str(copy.root))).shard(0)


def test_an_index_of_another_dataset_is_refused(dataset, tmp_path):
    copy = damaged_copy(dataset("webdataset"), tmp_path / "d")
    copy.write("index/train.parquet", (copy.root / "index/val.parquet").read_bytes())
    with pytest.raises(FormatError, match=r"bytes, the manifest has .* build it again"):
        split_rows(open_storage(str(copy.root))).shard(0)
    copy.sign()
    with pytest.raises(FormatError, match=r"row group 0 has .* samples, but .* build it again"):
        split_rows(open_storage(str(copy.root))).shard(0)


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_flipped_bit_of_the_index_is_refused(dataset, tmp_path, bucket_url, place):
    """In any place: 28 of 115 flipped bits in the column of labels gave other labels."""
    storage = open_storage(str(tmp_path / "d") if place == "disk" else bucket_url)
    for name in ("dataset.json", "index/train.parquet"):
        storage.create(name, (dataset("webdataset") / name).read_bytes())
    original = storage.read("index/train.parquet")
    assert len(split_rows(storage).shard(0)) > 0
    for at in range(5, len(original), len(original) // 20):
        damaged = original[:at] + bytes([original[at] ^ 4]) + original[at + 1 :]
        storage.delete("index/train.parquet")
        storage.create("index/train.parquet", damaged)
        with pytest.raises(FormatError, match=r"train\.parquet: sha256 \w{16}, the manifest has \w{16}: it is damaged"):
            split_rows(storage).shard(0)


def test_an_index_is_read_while_a_retry_replaces_it(dataset, tmp_path):
    """The index is replaced before the manifest is; its first row groups are those of the manifest."""
    copy = damaged_copy(dataset("webdataset"), tmp_path / "d")
    before = split_rows(open_storage(str(copy.root)))
    first = before.shard(0)
    copy.change_table("index/train.parquet", lambda table: table.replace_schema_metadata({b"other": b"bytes"}))
    path = copy.root / "index/train.parquet"
    path.write_bytes(path.read_bytes()[:-4] + b"PAR1")
    copy.write("_change/plan.json", b"{}")
    found = split_rows(open_storage(str(copy.root))).shard(0)
    assert found.label.tolist() == first.label.tolist()
    assert len(before.shard(1)) > 0  # from the file that was opened first


def test_wrong_counts_of_the_manifest_are_refused_before_they_are_used(dataset, tmp_path):
    copy = damaged_copy(dataset("webdataset"), tmp_path / "d")
    document = copy.document
    document["splits"][0]["shards"][1]["samples"] = 2**31
    copy.write_document(document)
    with pytest.raises(FormatError, match=r"row group 1 has \d+ samples, but .* has 2,147,483,648; build"):
        open_loader(str(copy.root), "train", batch_size=8)


def test_a_missing_or_damaged_index_is_named_and_read_again_when_it_is_back(dataset, tmp_path):
    copy = damaged_copy(dataset("webdataset"), tmp_path / "d")
    index = copy.root / "index/train.parquet"
    data = index.read_bytes()
    rows = split_rows(open_storage(str(copy.root)))
    index.unlink()
    with pytest.raises(FormatError, match=r"index/train\.parquet: missing"):
        rows.shard(0)
    index.write_bytes(b"PAR1" + bytes(2000) + b"PAR1")
    with pytest.raises(FormatError, match=r"train\.parquet: 2,008 bytes, the manifest has [0-9,]+: it is damaged"):
        rows.shard(0)
    index.write_bytes(data)
    assert len(rows.shard(0)) > 0


def test_a_label_without_a_class_is_refused(dataset, tmp_path):
    copy = damaged_copy(dataset("imagefolder"), tmp_path / "d")
    copy.change_table(
        "index/train.parquet",
        lambda table: table.set_column(7, "label", pa.array([12345] * table.num_rows, pa.int32())),
    )
    copy.sign()
    with pytest.raises(FormatError, match=r"has label 12345, expected one of \d+ classes"):
        split_rows(open_storage(str(copy.root))).file(0, 0)
