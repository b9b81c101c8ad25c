"""Data that changed after they were adopted: noticed, refused by the command, indexed anew by a training run."""

import pytest

from dataprep.adopt import AdoptRequest, adopt
from dataprep.commands.adopt import AdoptProgress
from loaders.config import LoaderConfig
from tests.support.builds import dataprep
from tests.support.hostile_case import jpeg
from train.batches.data import open_data


@pytest.fixture
def folder(tmp_path):
    for number in range(4):
        add(tmp_path / "data", number)
    return tmp_path / "data"


def add(folder, number):
    path = folder / "train" / "ab"[number % 2] / f"{number}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jpeg())


def adopt_here(folder):
    return adopt(AdoptRequest(url=str(folder), index_url=f"{folder}-index"), AdoptProgress(quiet=True))


def test_an_added_and_a_removed_image_are_noticed(folder):
    assert not adopt_here(folder).already
    assert adopt_here(folder).changes == ""
    add(folder, 4)
    assert adopt_here(folder).changes == "train: 5 images, 4 when they were adopted"
    (folder / "train/a/0.jpg").unlink()
    (folder / "train/b/1.jpg").unlink()
    assert adopt_here(folder).changes == "train: 3 images, 4 when they were adopted"


def test_the_command_refuses_changed_data_until_it_may_overwrite(folder):
    adopt_here(folder)
    add(folder, 4)
    run = dataprep("adopt", folder, "--index", f"{folder}-index")
    assert run.returncode == 2
    assert "the data have changed since they were adopted (train: 5 images, 4 when" in run.stderr
    assert "read them again with --overwrite" in run.stderr
    assert dataprep("adopt", folder, "--index", f"{folder}-index", "--overwrite").returncode == 0


def test_a_training_run_indexes_changed_data_anew(folder, capsys):
    for images in (4, 5):
        data = open_data(str(folder), index_dir=f"{folder}-index")
        assert data.training_loader(LoaderConfig(batch_size=1, image_size=32)).dataset.split.samples == images
        add(folder, 4)
    assert "indexing it again" in capsys.readouterr().err
