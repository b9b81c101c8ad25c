"""Small files in a folder that anyone may have written are read up to a bound: each error says what to do."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.adoption.shards import count_rows
from dataprep.builder.enumeration import load_enumeration
from dataprep.builder.finished import ChangePlan, read_change
from dataprep.builder.output import (
    OvertakenError,
    claim_place,
    look,
    make_way,
    read_claim,
    refuse_overtaken,
    removed_names,
)
from dataprep.builder.receipts import read_receipt
from dataprep.errors import DataprepError, UsageError
from dataprep.storage import open_storage
from tests.support.on_use import on_use
from tests.support.plans import planned, small_plan
from train.checkpoints.files import Checkpoint

load_parts = on_use("train.checkpoints.parts:load_parts")

HUGE = 1 << 40
LIST_OF_PARTS = "checkpoint-000000001-0123456789abcdef.json"


@pytest.fixture
def storage(tmp_path):
    return open_storage(str(tmp_path))


def make_huge(path):
    """Write a file that takes no place on the disk, and would take 1 TiB in memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(HUGE)


def stats(storage):
    table = pa.table({"status": ["success"], "error_message": pa.array([None], pa.string())})
    pq.write_table(table, storage.url_of("00000.parquet"))
    return count_rows(storage, "00000.tar")


@pytest.mark.parametrize(
    ("name", "read", "max_bytes", "advice"),
    [
        ("_build/plan.json", read_claim, 64 << 20, "start over with `overwrite`"),
        ("_build/overwriting", lambda place: make_way(place, look(place)), 1 << 30, "choose another `output`"),
        ("_build/overwritten", removed_names, 1 << 30, "choose another `output`"),
        ("_build/a/b/receipts/00003.parquet", lambda place: read_receipt(place, 3, "_build/a/b"), 512 << 20, "remove"),
        ("_change/plan.json", lambda place: read_change(place, ChangePlan), 64 << 20, "remove _change/"),
        ("00000_stats.json", stats, 16 << 20, "restore it"),
        (LIST_OF_PARTS, lambda place: load_parts(place, Checkpoint(LIST_OF_PARTS, 1, "0")), 16 << 20, "choose another"),
    ],
)
def test_a_file_larger_than_any_of_its_kind_is_not_read(storage, tmp_path, name, read, max_bytes, advice):
    make_huge(tmp_path / name)
    message = f"{tmp_path}/{name}: {HUGE:,} bytes, expected at most {max_bytes:,}.*{advice}"
    with pytest.raises(DataprepError, match=message):
        read(storage)


def test_an_enumeration_larger_than_any_is_removed_as_a_damaged_one_is(storage, tmp_path):
    lines: list[str] = []
    make_huge(tmp_path / "_build/source-val-0.parquet")
    assert load_enumeration(storage, storage, "_build/source-val-0.parquet", lines.append) is None
    assert not (tmp_path / "_build/source-val-0.parquet").exists()
    assert f"{HUGE:,} bytes" in lines[0]


def test_a_plan_of_another_size_is_known_as_anothers_without_reading_it(storage, tmp_path):
    claim = claim_place(storage, planned(small_plan()))
    make_huge(tmp_path / "_build/plan.json")
    with pytest.raises(OvertakenError, match="was overtaken"):
        refuse_overtaken(storage, claim)


def test_a_removal_that_could_not_read_its_own_mark_again_does_not_begin(storage, tmp_path, monkeypatch):
    claim_place(storage, planned(small_plan()))
    monkeypatch.setattr("dataprep.builder.output.MAX_MARK_BYTES", 10)
    with pytest.raises(UsageError, match=r"names to remove, .* bytes of them, expected at most 10; remove"):
        make_way(storage, look(storage))
    assert read_claim(storage) is not None
    assert not (tmp_path / "_build/overwriting").exists()
