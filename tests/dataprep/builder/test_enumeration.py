"""An enumeration is kept for reruns while the originals are the same."""

import io
import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.builder.enumeration import (
    enumeration_file,
    load_enumeration,
    load_splits,
    publish_enumeration,
    splits_file,
    spool_enumeration,
)
from dataprep.dataset.features import Feature
from dataprep.dataset.records import Enumeration, SourceFile
from dataprep.sources import DATASETS, configured
from dataprep.sources.base import OwnData
from dataprep.storage import open_storage
from dataprep.storage.checksums import crc32c_of_bytes
from tests.support.damage import flipped
from tests.support.plans import refs_of, refs_table, small_plan

IMAGENET = DATASETS["imagenet"]


def store_enumeration(storage, name, enumeration):
    publish_enumeration(storage, name, spool_enumeration(storage, name, enumeration))


@pytest.fixture
def places(storage, tmp_path):
    """Originals, and the dataset."""
    source = open_storage(str(tmp_path / "originals"))
    source.create("x.tar", bytes(100))
    return source, storage


def found() -> Enumeration:
    return Enumeration(refs_of(small_plan((3,)), 0), [SourceFile("x.tar", 100)], ("n01440764", "n01443537"))


def loaded(output, source, name):
    """The stored enumeration, with its references as a list."""
    enumeration = load_enumeration(output, source, name, print).enumeration
    return replace(enumeration, refs=list(enumeration.refs))


def name_of(source, classes=None, **more):
    return enumeration_file(source, IMAGENET, "val", classes, **({"allow_partial": False} | more))


def test_stored_enumeration_is_read_back(places):
    source, output = places
    store_enumeration(output, name_of(source), found())
    store_enumeration(output, name_of(source), Enumeration([], [], ()))  # one that is there stays
    assert loaded(output, source, name_of(source)) == found()


def test_annotations_and_names_of_splits_come_back(places):
    source, output = places
    folder = configured("folder", own=OwnData(name="pets"))
    refs = [ref._replace(annotations=b'{"n":%d}' % number) for number, ref in enumerate(found().refs)]
    annotated = replace(found(), refs=refs, features={"n": Feature("int64")})
    store_enumeration(output, enumeration_file(source, folder, "train", None, allow_partial=False), annotated)
    name = enumeration_file(source, folder, "train", None, allow_partial=False)
    assert loaded(output, source, name) == annotated
    assert load_splits(output, splits_file(source, folder)) == ()
    output.create(splits_file(source, folder), b'["train", "val"]')
    assert load_splits(output, splits_file(source, folder)) == ("train", "val")
    for data in (b'["../x"]', b"{}", b"x", bytes(100_000)):
        output.create("other.json", data)
        assert load_splits(output, "other.json") == ()
        output.delete("other.json")
    other = configured("folder", own=OwnData(name="pets", val_fraction=0.5))
    assert splits_file(source, other) != splits_file(source, folder)


def test_enumerations_of_other_sources_or_options_have_other_names(places):
    source, output = places
    names = {name_of(source), name_of(output), name_of(source, ("a",)), name_of(source, allow_partial=True)}
    assert len(names) == 4
    assert load_enumeration(output, source, name_of(source), print) is None


def test_enumeration_of_an_archive_that_has_changed_is_removed(places):
    source, output = places
    store_enumeration(output, name_of(source), found())
    source.delete("x.tar")
    source.create("x.tar", bytes(101))
    assert load_enumeration(output, source, name_of(source), print) is None
    assert output.stat(name_of(source)) is None


def digest_file(name):
    return name.replace(".parquet", ".json")


def keep(output, name, data):
    """Keep a file as an enumeration, with its digest."""
    output.create(name, data)
    output.create(
        digest_file(name), json.dumps({"bytes": len(data), "crc32c": crc32c_of_bytes(data), "listed": "now"}).encode()
    )


def parquet(table):
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()


@pytest.mark.parametrize("data", [b"", b"PAR1", b"x" * 1000])
def test_damaged_enumeration_is_removed(places, data):
    source, output = places
    keep(output, name_of(source), data)
    assert load_enumeration(output, source, name_of(source), print) is None
    assert list(output.list()) == []


def test_flipped_bits_of_an_enumeration_are_noticed_and_said(tmp_path):
    source, output = (open_storage(str(tmp_path / name)) for name in ("originals", "out"))
    source.create("x.tar", bytes(100))
    name = name_of(source)
    store_enumeration(output, name, found())
    whole, digest = output.read(name), output.read(digest_file(name))
    damaged = [flipped(whole, bit) for bit in range(0, 8 * len(whole), 71)]
    for data in (*damaged, whole[:-1], whole[: len(whole) // 2], b""):
        lines: list[str] = []
        output.delete(name)
        output.create(name, data)
        assert load_enumeration(output, source, name, lines.append) is None
        assert len(lines) == 1
        assert f"{name} is damaged (" in lines[0]
        assert list(output.list()) == []
        output.create(digest_file(name), digest)


@pytest.mark.parametrize("digest", [b"", b"{}", b'{"bytes": 1, "crc32c": "x"}', bytes(100_000)])
def test_an_enumeration_whose_digest_is_damaged_is_removed(places, digest):
    source, output = places
    name = name_of(source)
    store_enumeration(output, name, found())
    output.delete(digest_file(name))
    output.create(digest_file(name), digest)
    assert load_enumeration(output, source, name, print) is None
    assert list(output.list()) == []


def test_an_enumeration_whose_digest_was_not_yet_stored_is_listed_again_without_a_word(places):
    """An earlier version stored none, and a process may be killed in between."""
    source, output = places
    store_enumeration(output, name_of(source), found())
    output.delete(digest_file(name_of(source)))
    lines: list[str] = []
    assert load_enumeration(output, source, name_of(source), lines.append) is None
    assert (lines, list(output.list())) == ([], [])
    store_enumeration(output, name_of(source), found())
    assert loaded(output, source, name_of(source)) == found()


def test_an_enumeration_with_missing_values_or_too_many_rows_is_removed(places, monkeypatch):
    source, output = places
    table = refs_table(found().refs)
    labels = pa.array([None] * 3, pa.int32())
    metadata = {"sources": "[]", "classes": "[]"}
    holes = table.set_column(4, "label", labels).replace_schema_metadata(metadata)
    keep(output, name_of(source), parquet(holes))
    assert load_enumeration(output, source, name_of(source), print) is None
    store_enumeration(output, name_of(source), found())
    monkeypatch.setattr("dataprep.builder.enumeration.MAX_SAMPLES", 2)
    assert load_enumeration(output, source, name_of(source), print) is None
    assert output.stat(name_of(source)) is None


def test_an_enumeration_in_one_piece_is_read(places):
    source, output = places
    table = refs_table(found().refs)
    metadata = {"sources": json.dumps([{"name": "x.tar", "num_bytes": 100}]), "classes": json.dumps(found().classes)}
    keep(output, name_of(source), parquet(table.replace_schema_metadata(metadata)))
    assert loaded(output, source, name_of(source)) == found()
