"""Checkpoints: whole or absent, damaged ones are told from good ones, old ones go."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from dataprep.errors import FormatError, UsageError
from dataprep.storage import open_storage
from tests.selection import ROOT
from train.checkpoints.checkpoint import CheckpointFolder, OrbaxFolder, load_any
from train.checkpoints.files import ARRAYS, NUMPY


def state(step: int) -> dict:
    weights = torch.arange(1000.0) + step
    return {"step": step, "weights": weights, "loader": {"position": 3 * step, "keys": ["a", None]}, "lr": 0.1 * step}


def test_a_saved_state_is_loaded_as_it_was(storage_url):
    folder = CheckpointFolder(storage_url)
    saved = folder.save(7, state(7))
    (found,) = folder.list()
    assert found == saved
    loaded = folder.load(found)
    assert torch.equal(loaded.pop("weights"), state(7)["weights"])
    assert loaded == {key: value for key, value in state(7).items() if key != "weights"}
    assert load_any(f"{storage_url}/{saved.name}")["step"] == 7


def test_saving_keeps_the_newest_checkpoints_and_does_not_remove_later_ones(storage_url):
    folder = CheckpointFolder(storage_url, keep=2)
    for step in (1, 2, 9, 3, 4):
        folder.save(step, state(step))
    assert [each.step for each in folder.list()] == [9, 4, 3]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:900] + b"?" + data[901:]]
)
def test_damaged_checkpoints_are_skipped_and_the_reason_is_printed(tmp_path, damage):
    folder = CheckpointFolder(str(tmp_path))
    for step in (1, 2):
        saved = folder.save(step, state(step))
    path = tmp_path / saved.name
    path.write_bytes(damage(path.read_bytes()))
    told = []
    found, loaded = folder.newest_valid(told.append)
    assert (found.step, loaded["step"]) == (1, 1)
    (line,) = told
    assert line.startswith(str(path))
    assert line.endswith(f"expected {saved.digest}: damaged; skipped")
    with pytest.raises(FormatError, match="damaged"):
        load_any(str(path))


def test_a_damaged_checkpoint_is_moved_aside_and_can_be_saved_again(storage_url):
    folder, told = CheckpointFolder(storage_url, keep=2), []
    for step in (1, 2):
        saved = folder.save(step, state(step))
    storage = open_storage(storage_url)
    data = storage.read(saved.name)[:-1]
    storage.delete(saved.name)
    storage.create(saved.name, data)
    for _ in range(2):  # an evaluation changes nothing
        assert folder.newest_valid(told.append)[0].step == 1
    assert folder.newest_valid(told.append, move_damaged=True)[0].step == 1
    assert told[-1] == f"moved to {storage.url_of(f'damaged/{saved.name}')}"
    assert [each.step for each in folder.list()] == [1]
    assert storage.read(f"damaged/{saved.name}") == data
    assert folder.save(2, state(2)) == saved
    assert [each.step for each in folder.list()] == [2, 1]
    storage.delete(saved.name)
    storage.create(saved.name, b"")
    assert folder.newest_valid(told.append, move_damaged=True)[0].step == 1
    assert storage.read(f"damaged/{saved.name}") == b""


def test_where_all_checkpoints_are_damaged_they_stay_where_they_are(tmp_path):
    folder = CheckpointFolder(str(tmp_path))
    saved = folder.save(1, state(1))
    (tmp_path / saved.name).write_bytes(b"")
    assert folder.newest_valid(print, move_damaged=True) is None
    assert folder.list() == [saved]


def test_an_unfinished_file_is_no_checkpoint(tmp_path, monkeypatch):
    folder = CheckpointFolder(str(tmp_path))
    folder.save(1, state(1))

    def stop(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("train.checkpoints.checkpoint.crc32c_of_file", stop)
    with pytest.raises(KeyboardInterrupt):
        folder.save(2, state(2))
    assert [each.step for each in folder.list()] == [1]


def arrays(step: int) -> dict:
    return {"step": step, ARRAYS: {"params/w": np.arange(3, dtype=np.float32) + step}}


def test_the_newest_checkpoint_of_every_kind_is_found_and_read_by_every_folder_of_jax(tmp_path):
    url = str(tmp_path)
    folders = [CheckpointFolder(url, codec=NUMPY), OrbaxFolder(url), OrbaxFolder(url, like={})]
    writers = [(CheckpointFolder(url), state), (folders[0], arrays), (folders[1], arrays), (folders[0], arrays)]
    for step, (writer, made) in enumerate(writers, start=1):
        writer.save(step, made(step))
        for folder in folders:
            found, loaded = folder.newest_valid(pytest.fail)
            assert (found.step, loaded["step"]) == (step, step)
            if made is arrays:
                assert np.array_equal(loaded[ARRAYS]["params/w"], arrays(step)[ARRAYS]["params/w"])
    assert [each.step for each in folders[0].list()] == [4, 3, 2, 1]


def test_pytorch_refuses_a_newer_checkpoint_of_jax_and_does_not_take_an_older_one(tmp_path):
    url = str(tmp_path)
    ours = CheckpointFolder(url)
    ours.save(1, state(1))
    for step, folder in ((2, CheckpointFolder(url, codec=NUMPY)), (3, OrbaxFolder(url))):
        saved = folder.save(step, arrays(step))
        with pytest.raises(UsageError, match=f"{saved.name}: the newest checkpoint here is of JAX; continue it with"):
            ours.newest_valid(pytest.fail)
    ours.save(4, state(4))
    assert ours.newest_valid(pytest.fail)[0].step == 4


def test_old_checkpoints_of_both_kinds_of_jax_are_removed_and_those_of_pytorch_are_left(tmp_path):
    url = str(tmp_path)
    CheckpointFolder(url).save(1, state(1))
    for step, kind in ((2, NUMPY), (3, None), (4, NUMPY), (5, None)):
        folder = OrbaxFolder(url, keep=2) if kind is None else CheckpointFolder(url, keep=2, codec=kind)
        folder.save(step, arrays(step))
    assert [each.step for each in folder.list()] == [5, 4, 1]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_place_that_is_only_read_is_refused_before_the_first_step():
    with pytest.raises(UsageError, match="s3://bucket/run: dataprep only reads from there; write to a folder or gs://"):
        CheckpointFolder("s3://bucket/run").remove_unfinished()


FULL = """
import sys
from pathlib import Path
import torch
from dataprep.errors import FullError
from tests.support.small_disk import use_small_disk
from train.checkpoints.checkpoint import CheckpointFolder
use_small_disk(Path(sys.argv[1]), 2_000_000)
try:
    CheckpointFolder(sys.argv[1]).save(1, {"model": {"weight": torch.zeros(1_000_000)}})
except FullError as error:
    print(error)
"""


def test_a_disk_that_fills_while_a_checkpoint_is_written_is_named(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (line,) = run.stdout.splitlines()
    assert f"{tmp_path}/_build/tmp/checkpoint.pth-" in line


def test_only_whole_checkpoints_by_orbax_are_listed_the_newest_first(tmp_path):
    for name in ("checkpoint-000000002.orbax", "checkpoint-000000010.orbax", "checkpoint-000000011.orbax.tmp-1", "x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    assert [each.step for each in OrbaxFolder(str(tmp_path)).list()] == [10, 2]
    assert OrbaxFolder(str(tmp_path / "none")).list() == []
