"""Lists of parts: a damaged list or part makes a checkpoint that is skipped, and nothing else is lost."""

import hashlib
import json

import pytest
import torch

from dataprep.errors import FormatError, UsageError
from tests.support.parted_states import cut_state, same, save, state
from train.checkpoints.checkpoint import CheckpointFolder
from train.checkpoints.parts import FOLDER, PartFolder, Pieces, part_of, whole_of


@pytest.mark.parametrize("what", ["list", "part"])
def test_damaged_checkpoints_are_skipped_and_the_reason_is_printed(tmp_path, what):
    for step in (1, 2):
        save(str(tmp_path), step, 2)
    pattern = {"list": "checkpoint-000000002-*.json", "part": f"{FOLDER}checkpoint-000000002-*-00001-of-*.pth"}[what]
    (path,) = tmp_path.glob(pattern)
    path.write_bytes(path.read_bytes()[:-1])
    told = []
    found, loaded = CheckpointFolder(str(tmp_path)).newest_valid(told.append)
    assert (found.step, loaded["step"]) == (1, 1)
    (line,) = told
    assert line.startswith(str(path))
    assert line.endswith("damaged; skipped")


def test_a_missing_part_is_named(tmp_path):
    save(str(tmp_path), 1, 2)
    (path,) = tmp_path.glob(f"{FOLDER}*-00001-*.pth")
    path.unlink()
    told = []
    assert CheckpointFolder(str(tmp_path)).newest_valid(told.append) is None
    assert path.name in told[0]


@pytest.mark.parametrize("document", [[], "parts", {"version": 1}, {"version": 1, "parts": [{}]}])
def test_a_list_without_names_of_parts_is_skipped_and_other_checkpoints_are_kept(tmp_path, document):
    save(str(tmp_path), 1, 2)
    data = json.dumps(document).encode()
    name = f"checkpoint-000000009-{hashlib.sha256(data).hexdigest()[:16]}.json"
    (tmp_path / name).write_bytes(data)
    told = []
    folder = PartFolder(str(tmp_path), rank=0, world_size=2)
    found, _ = folder.newest_valid(told.append)
    assert found.step == 1
    assert told[0].startswith(str(tmp_path / name))
    folder.remove_unfinished()
    assert same(folder.load(found), state(1))


def test_a_list_of_a_newer_version_is_neither_skipped_nor_moved(tmp_path):
    save(str(tmp_path), 1, 2)
    data = json.dumps({"version": 2}).encode()
    name = f"checkpoint-000000009-{hashlib.sha256(data).hexdigest()[:16]}.json"
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match="version 2, this program reads 1"):
        CheckpointFolder(str(tmp_path)).newest_valid(print, move_damaged=True)
    assert (tmp_path / name).exists()


def test_values_in_two_parts_are_named():
    twice = [part_of(cut_state(state(1), 0, 2), has_rest=rank == 0) for rank in range(2)]
    with pytest.raises(FormatError, match=r"^model/a: the values \[0:\d+, 0:\d+\] are in two parts$"):
        whole_of(twice)
    pieces = [Pieces((4,), [((start,), torch.zeros(3))]) for start in (0, 1)]
    overlapping = [part_of({"a": piece}, has_rest=rank == 0) for rank, piece in enumerate(pieces)]
    with pytest.raises(FormatError, match=r"^a: 2 values are in two parts$"):
        whole_of(overlapping)


def test_pieces_without_values_may_begin_at_the_same_place():
    pieces = [Pieces((2,), [((start,), torch.ones(length))]) for start, length in ((0, 2), (2, 0), (2, 0))]
    parts = [part_of({"a": piece}, has_rest=rank == 0) for rank, piece in enumerate(pieces)]
    assert same(whole_of(parts), {"a": torch.ones(2)})
