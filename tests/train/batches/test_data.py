"""Data of a run: the splits that are trained on and judged by, and plain data that are indexed first."""

import itertools
import json

import pytest

from dataprep.errors import UsageError
from loaders.config import LoaderConfig
from tests.support.adoption import adopt_here, image_of, tar_of
from tests.support.training import TINY_VIT
from train.batches.data import TRAINING_IMAGES, VALIDATION_IMAGES, Data, classes_of, open_data
from train.train_vit import TrainViT, open_training

CONFIG = LoaderConfig(batch_size=4, image_size=32)


def test_training_reads_a_shuffled_split_and_evaluation_an_unshuffled_one(dataset):
    data = open_data(dataset)
    assert (data.url, data.splits) == (dataset, ("train", "val"))
    training, validation = data.training_loader(CONFIG), data.validation_loader(CONFIG)
    assert (training.dataset.split.name, training.config) == ("train", CONFIG)
    assert validation.dataset.split.name == "val"
    assert (validation.config.shuffle, validation.config.augment) == (False, False)


def test_the_only_split_is_trained_on_and_several_need_a_name(dataset):
    one = Data(dataset, ("val",), None)
    assert one.training_loader(LoaderConfig(batch_size=2, image_size=32)).dataset.split.name == "val"
    assert Data(dataset, ("train",), None).validation_loader(CONFIG) is None
    with pytest.raises(UsageError, match="no split 'train' among a, b; give one by its own folder"):
        Data(dataset, ("a", "b"), None).training_loader(CONFIG)


def test_one_rank_says_that_there_is_no_evaluation(dataset, capsys):
    for rank in (0, 1):
        config = LoaderConfig(batch_size=4, rank=rank, world_size=2)
        Data(dataset, ("train", "extra"), None).loaders(config, config)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{dataset}: no evaluation, because there is no split val (only train, extra); dataprep ")


def test_plain_folders_are_indexed_into_the_cache_or_where_it_is_asked_for(photographs, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = open_data(photographs)
    assert data.url == photographs
    assert data.index_url.startswith(str(tmp_path / "cache/dataprep/adopted/"))
    assert (data.splits, data.num_classes) == (("train",), 2)
    assert open_data(photographs, index_dir=str(tmp_path / "index")).index_url == str(tmp_path / "index")


def test_a_mixtures_file_is_trained_on(dataset, tmp_path):
    datasets = [{"url": dataset, "weight": 3}, {"url": dataset, "split": "val", "name": "more"}]
    (tmp_path / "mix.json").write_text(json.dumps({"version": 1, "datasets": datasets}))
    data = open_data(str(tmp_path / "mix.json"))
    assert (data.splits, data.num_classes) == (("train",), open_data(dataset).num_classes)
    with data.training_loader(CONFIG) as loader:
        names = [name for batch in itertools.islice(loader, 4) for name in batch.fields["dataset"]]
        assert abs(names.count("more") - 4) <= 1
    assert data.validation_loader(CONFIG) is None
    datasets[1]["at_end"] = "stop"
    (tmp_path / "mix.json").write_text(json.dumps({"version": 1, "datasets": datasets}))
    with open_data(str(tmp_path / "mix.json")).training_loader(CONFIG) as loader:
        taken = [batch.mask for _ in range(9) for batch in loader]
        assert loader.order.end % CONFIG.batch_size  # so that a batch would have rows without a sample
        assert len(taken) == loader.order.end // CONFIG.batch_size
        assert all(mask.all() for mask in taken)
    del datasets[1]["at_end"]
    del datasets[1]
    (tmp_path / "mix.json").write_text(json.dumps({"version": 1, "datasets": datasets}))
    with open_data(str(tmp_path / "mix.json")).validation_loader(CONFIG) as loader:
        assert loader.dataset.split.name == "val"


def half_labelled(folder, *splits):
    """A tar of three images for each split; the first one has a label, and those of `train-whole` all have one."""
    folder.mkdir()
    for split in splits:
        members = [(f"{number}.jpg", image_of(number)) for number in range(3)]
        for number in (2, 1, 0) if split.endswith("whole") else (0,):
            members.insert(number + 1, (f"{number}.cls", b"1"))
        tar_of(folder / f"{split}.tar", members)
    return str(folder)


def test_a_classifier_refuses_images_without_a_label(tmp_path):
    data = open_data(half_labelled(tmp_path / "half", "train"), index_dir=str(tmp_path / "index"))
    with pytest.raises(UsageError, match=r"half: 2 images of train without a label; a classifier needs one of every"):
        classes_of(data, 5)
    assert data.training_loader(LoaderConfig(batch_size=1, image_size=32)).dataset.split.samples == 3  # as MAE needs it
    evaluated = half_labelled(tmp_path / "other", "train-whole", "test")
    adopt_here(evaluated)
    with pytest.raises(UsageError, match="2 images of test without a label"):
        classes_of(open_data(evaluated), None)
    assert classes_of(open_data(evaluated), None, evaluates=False) == 2


def test_a_classifier_refuses_a_mixture_with_images_without_a_label(tmp_path):
    for name in ("one", "two"):
        adopt_here(half_labelled(tmp_path / name, f"train-{name}"))
    datasets = [{"url": str(tmp_path / name), "weight": 1} for name in ("one", "two")]
    (tmp_path / "mix.json").write_text(json.dumps({"version": 1, "datasets": datasets}))
    with pytest.raises(UsageError, match=r"mix\.json: 4 images of train without a label"):
        classes_of(open_data(str(tmp_path / "mix.json")), None)


def test_data_that_are_not_there_are_refused_with_what_is_expected(tmp_path):
    with pytest.raises(UsageError, match=r"nothere: no such folder; expected the folder or URL of a dataset"):
        open_data(str(tmp_path / "nothere"))


def test_an_empty_folder_is_refused_as_data(tmp_path):
    with pytest.raises(UsageError):
        open_data(str(tmp_path))


def test_fake_images_are_as_many_as_imagenet_has_and_read_nothing(tmp_path, monkeypatch):
    flags = {**TINY_VIT, "device": "cpu", "batch_size": 1024, "warmup_steps": 3, "max_steps": 3, "output_dir": ""}
    flags |= {"fake_data": True, "data_path": str(tmp_path / "none")}
    training = open_training(TrainViT(**flags))
    loader, validation = training.loader, training.backend.task.validation
    assert (loader.order.num_samples, validation.order.num_samples) == (TRAINING_IMAGES, VALIDATION_IMAGES)
    assert loader.order.first_batch(1) == 1_281_167 // 1024
    *_, before, last = iter(validation)
    assert (int(last.mask.sum()), int((last.labels == -1).sum())) == (50_000 % 1024, 1024 - 50_000 % 1024)
    validation.load_state_dict(before.state)
    assert [batch.keys for batch in validation] == [last.keys]
    batches = iter(loader)
    state = [next(batches) for _ in range(3)][-1].state
    again = open_training(TrainViT(**flags)).loader
    again.load_state_dict(state)
    assert next(iter(again)).keys[0] == next(batches).keys[0] == "fake-3072"
    assert not (tmp_path / "none").exists()
