"""The cards of a dataset: pure functions of its manifest, which users may edit."""

from dataclasses import replace

import pytest
import yaml

from dataprep.builder.cards import cards_of, hub_licence, own_cards, readme, replace_cards, write_cards
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.paths import CROISSANT, README, WDS_INFO
from dataprep.storage import open_storage
from tests.support.own_data import build_own, class_folders
from tests.support.shared import made_once, shared_folder


@pytest.fixture(scope="module", params=["webdataset", "tfrecord", "imagefolder"])
def pets(request, tmp_path_factory):
    """A dataset with classes in two splits."""

    def make(path):
        build_own(class_folders(path.with_name(f"{path.name}-source")), path, request.param, licence="CC BY 4.0")

    return made_once(shared_folder(tmp_path_factory) / f"cards-{request.param}", make)


def head_of(manifest):
    return yaml.safe_load(readme(manifest).split("---\n")[1])


def manifest_of(url):
    return read_manifest(open_storage(str(url)))


def test_the_head_says_licence_tasks_size_and_files(pets):
    manifest = manifest_of(pets)
    head = head_of(manifest)
    assert head["license"] == "cc-by-4.0"
    assert head["task_categories"] == ["image-classification"]
    assert head["size_categories"] == ["n<1K"]
    patterns = {"webdataset": "train/*.tar", "imagefolder": "train/**", "tfrecord": "pets-train.tfrecord-*"}
    (config,) = head["configs"]
    assert config["data_files"][0] == {"split": "train", "path": [patterns[manifest.format]]}


@pytest.mark.parametrize(
    ("licence", "name"),
    [("", "unknown"), ("CC-BY-4.0", "cc-by-4.0"), ("Apache 2.0", "apache-2.0"), ("for research only", "other")],
)
def test_licences_have_the_names_of_the_hub(licence, name):
    assert hub_licence(licence) == name


def test_another_licence_is_named(pets):
    head = head_of(replace(manifest_of(pets), licence='"for" research\nonly'))
    assert (head["license"], head["license_name"]) == ("other", '"for" research\N{REPLACEMENT CHARACTER}only')
    assert head_of(replace(manifest_of(pets), licence="unknown, not stated"))["license"] == "unknown"


def test_what_a_stranger_wrote_is_text_and_no_markup(pets):
    hostile = replace(manifest_of(pets), name="a|b\n---\n# <script>", origin="[x](javascript:1)")
    text = readme(hostile)
    assert "<script>" not in text.replace("\\<script\\>", "").split("---\n", 2)[2]
    assert "](" not in text.replace("\\]\\(", "")
    assert head_of(hostile)["license"] == "cc-by-4.0"


def test_datasets_loads_the_folder_by_its_card(pets, tmp_path):
    """TFRecords are refused: the index beside them is not taken for the data."""
    manifest = manifest_of(pets)
    write_cards(open_storage(str(pets)), manifest)
    import datasets

    if manifest.format == "tfrecord":
        with pytest.raises(datasets.exceptions.DataFilesNotFoundError):
            datasets.load_dataset(str(pets), cache_dir=str(tmp_path))
        return
    found = datasets.load_dataset(str(pets), cache_dir=str(tmp_path))
    assert {name: len(split) for name, split in found.items()} == {"train": 14, "val": 6}
    found = datasets.load_dataset(manifest.format, data_dir=str(pets), cache_dir=str(tmp_path))
    assert {name: len(split) for name, split in found.items()} == {"train": 14, "validation": 6}


def test_cards_are_written_once_and_what_users_edit_stays(pets, tmp_path):
    manifest, storage = manifest_of(pets), open_storage(str(tmp_path))
    cards = [README, CROISSANT, WDS_INFO][: 3 if manifest.format == "webdataset" else 2]
    assert write_cards(storage, manifest) == cards
    assert not (tmp_path / "_build").exists()
    assert write_cards(storage, manifest) == []
    assert list(own_cards(storage, manifest)) == cards
    (tmp_path / README).write_text("mine")
    assert write_cards(storage, manifest) == []
    own = own_cards(storage, manifest)
    assert list(own) == cards[1:]
    later = replace(manifest, revision=2)
    assert replace_cards(storage, later, own) == [CROISSANT]
    assert ((tmp_path / README).read_text(), [*own_cards(storage, later)]) == ("mine", cards[1:])
    assert replace_cards(storage, later) == [README]
    assert cards_of(later)[README] == (tmp_path / README).read_bytes()
