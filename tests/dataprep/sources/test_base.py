"""What all datasets have in common: names, published facts, the check of archives, and what users say of their own."""

import hashlib
from dataclasses import replace

import pytest

from dataprep.dataset.records import Enumeration, SampleRef
from dataprep.errors import SourceError, UsageError
from dataprep.sources import BUILT, DATASETS, OWN, SplitFacts, configured, dataset_named, own_name_fault
from dataprep.sources.base import MAX_IMAGE_BYTES, UNSTATED, ArchiveFacts, Member, OwnData, RefCollector, name_from
from dataprep.storage import open_storage

COCO = dataset_named("coco-dup5")
DATA = b"archive" * 1_000_000


@pytest.mark.parametrize(
    ("name", "near"), [("coco_dup5", "coco-dup5"), ("imagnet", "imagenet"), ("ImageNet-Fake", "imagenet-fake")]
)
def test_an_unknown_name_lists_the_choices_and_the_nearest(name, near):
    known = "coco, coco-dup5, imagenet, imagenet-21k, imagenet-fake"
    words = rf"unknown dataset '{name}': expected one of {known}; did you mean {near}\?$"
    with pytest.raises(UsageError, match=words):
        dataset_named(name)


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=lambda dataset: dataset.name)
def test_facts_are_complete(dataset):
    assert set(dataset.default_splits) <= set(dataset.splits)
    assert dataset.licence
    assert dataset.origin
    assert dataset.description
    assert dataset.default_max_reject_ratio == 0
    for split in dataset.splits:
        facts = dataset.split_facts(split)
        assert facts.samples
        assert all(len(archive.md5) == 32 for archive in facts.archives)


def checked(tmp_path, md5, num_bytes):
    (tmp_path / "a.zip").write_bytes(DATA)
    facts = SplitFacts(samples=1, archives=(ArchiveFacts(name="a.zip", md5=md5, num_bytes=num_bytes),))
    dataset = replace(COCO, facts={"train": facts})
    calls = []
    return list(dataset.check_source(open_storage(str(tmp_path)), "train", lambda *call: calls.append(call))), calls


def test_check_source_compares_digests_and_reports_progress(tmp_path):
    md5 = hashlib.md5(DATA).hexdigest()
    lines, calls = checked(tmp_path, md5, len(DATA))
    assert lines == [f"a.zip: md5 {md5} as published"]
    assert calls[-1] == ("a.zip", len(DATA), len(DATA))
    assert len(calls) == 2
    with pytest.raises(SourceError, match=rf"7,000,000 bytes, md5 {md5}; published: \? bytes, md5 {md5[::-1]}\."):
        checked(tmp_path, md5[::-1], None)


def test_check_source_does_not_read_files_of_another_size(tmp_path):
    with pytest.raises(SourceError, match="7,000,000 bytes, md5 not computed; published: 7 bytes"):
        checked(tmp_path, hashlib.md5(DATA).hexdigest(), 7)


def test_check_source_refuses_a_folder_without_files_to_check(tmp_path):
    words = r"nothing to check: coco-dup5 train has published digests of train2017\.zip, unlabeled2017\.zip"
    with pytest.raises(SourceError, match=words):
        next(COCO.check_source(open_storage(str(tmp_path)), "train"))


def test_a_source_without_images_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(type(COCO), "_find", lambda *_, **__: Enumeration([], []))
    with pytest.raises(SourceError, match="no image of coco-dup5 train; check `source`"):
        COCO.enumerate(open_storage(str(tmp_path)), "train", allow_partial=True)


def test_an_image_of_absurd_size_is_refused():
    collector = RefCollector(open_storage("/originals"), "train")
    collector.add(("a.jpg",), "x.zip", Member("a.jpg", 5, MAX_IMAGE_BYTES))
    assert list(collector.refs) == [SampleRef("a", "x.zip", 5, MAX_IMAGE_BYTES)]
    with pytest.raises(
        SourceError, match=r"^/originals/x\.zip: 'b\.jpg' at byte 7 has 134,217,729 bytes; at most 134,217,728"
    ):
        collector.add(("b.jpg",), "x.zip", Member("b.jpg", 7, MAX_IMAGE_BYTES + 1))


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("/home/me/My Pictures/", "my-pictures"),
        ("gs://bucket/a/Pets_2024", "pets-2024"),
        ("x/cats.zip", "cats"),
        ("2024", "data-2024"),
        ("/", "data"),
        ("/päts/größe", "gr-e"),
        ("x" * 300, "x" * 60),
    ],
)
def test_names_are_made_of_the_source(url, name):
    assert name_from(url) == name
    assert own_name_fault(name) == ""


@pytest.mark.parametrize("name", [*BUILT, "Cats", "a_b", "-a", "a-", "1a", "", "x" * 65, "a/b", "..", "a\n"])
def test_names_that_are_refused(name):
    assert own_name_fault(name)


def test_datasets_of_the_users_own_are_not_published():
    for name, dataset in OWN.items():
        assert not dataset.is_published
        assert (dataset.name, dataset.licence, dataset.origin) == (name, UNSTATED, UNSTATED)
        own = OwnData(name="pets", licence="CC0-1.0", origin="my garden")
        described = configured(name, own=own)
        assert (described.name, described.licence, described.origin) == ("pets", "CC0-1.0", "my garden")


@pytest.mark.parametrize("options", [{"val_fraction": 1.0}, {"val_fraction": -0.1}, {"group_by": "patient"}])
def test_options_that_contradict_themselves(options):
    with pytest.raises(UsageError):
        OwnData(name="pets", **options)
