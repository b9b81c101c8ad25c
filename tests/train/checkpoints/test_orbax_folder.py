"""Checkpoints by Orbax: which folders are whole; that runs resume from them, test_jax_transformer_steps.py shows."""

from train.checkpoints.orbax_folder import OrbaxFolder


def test_only_whole_checkpoints_are_listed_the_newest_first(tmp_path):
    for name in ("checkpoint-000000002.orbax", "checkpoint-000000010.orbax", "checkpoint-000000011.orbax.tmp-1", "x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    found = OrbaxFolder(str(tmp_path), keep=3, like={}).list()
    assert [each.step for each in found] == [10, 2]
    assert OrbaxFolder(str(tmp_path / "none"), keep=3, like={}).list() == []
