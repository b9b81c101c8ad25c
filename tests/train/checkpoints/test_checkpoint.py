"""Checkpoints: whole or absent, damaged ones are told from good ones, old ones go."""

import pickle

import pytest
import torch

from dataprep.errors import FormatError, UsageError
from train.checkpoints.checkpoint import CheckpointFolder, load_any


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


def test_saving_leaves_checkpoints_alone_in_the_folder(tmp_path):
    saved = CheckpointFolder(str(tmp_path)).save(7, state(7))
    assert [path.name for path in tmp_path.iterdir()] == [saved.name]


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


def test_an_unfinished_file_is_no_checkpoint(tmp_path, monkeypatch):
    folder = CheckpointFolder(str(tmp_path))
    folder.save(1, state(1))

    def stop(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("train.checkpoints.checkpoint.crc32c_of_file", stop)
    with pytest.raises(KeyboardInterrupt):
        folder.save(2, state(2))
    assert [each.step for each in folder.list()] == [1]


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").touch, ())

    torch.save({"step": Evil()}, tmp_path / "stranger.pth")
    with pytest.raises(FormatError, match="not a state that torch reads"):
        load_any(str(tmp_path / "stranger.pth"))
    (tmp_path / "plain.pth").write_bytes(pickle.dumps([1]))
    with pytest.raises(FormatError):
        load_any(str(tmp_path / "plain.pth"))
    assert not (tmp_path / "ran").exists()


def test_an_empty_folder_has_no_checkpoint(tmp_path):
    assert CheckpointFolder(str(tmp_path)).newest_valid(print) is None
    with pytest.raises(UsageError, match="no checkpoint found; give the path or URL"):
        load_any(str(tmp_path / "none.pth"))
