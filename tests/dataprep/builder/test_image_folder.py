"""Images of an image folder: each a file of its own, whole in its place or not there."""

from hashlib import sha256

import pyarrow as pa

from dataprep.builder.driver import run_build
from dataprep.builder.images import ImagePolicy
from dataprep.builder.output import claim_place, open_build
from dataprep.builder.recipe import build_shard
from dataprep.builder.shard import image_names, place_images
from dataprep.storage import open_storage
from tests.support.build_here import Quiet, in_this_process, request, whole
from tests.support.builds import digests
from tests.support.plans import planned, small_plan


def test_names_are_class_and_key():
    plan = small_plan(fmt="imagefolder")
    rows = pa.table({"key": ["a", "b/c"], "label": [1, 0]})
    assert [*image_names(plan, plan.splits[0], rows)] == ["val/n01443537/a.JPEG", "val/n01440764/c.JPEG"]


def test_formats_with_a_file_per_shard_have_no_images_to_place(storage_url):
    claim = claim_place(open_storage(storage_url), planned(small_plan()))
    before = digests(storage_url)
    place_images(open_build(storage_url, claim.root))
    assert digests(storage_url) == before


def test_folder_on_disk_is_in_place_only_when_all_shards_are_done(originals, tmp_path):
    def engine(job, indexes):
        yield from (build_shard(job, index) for index in indexes[:2])
        assert not (tmp_path / "out/val").exists()
        assert list((tmp_path / "out" / job.root / "folder/val").rglob("*.JPEG"))
        yield build_shard(job, indexes[2])

    run_build(request(originals, tmp_path / "out", "imagefolder"), engine, Quiet())
    assert list((tmp_path / "out/val").rglob("*.JPEG"))
    assert not (tmp_path / "out/_build").exists()


def test_late_images_of_an_overwritten_build_in_a_bucket_are_replaced_or_removed(originals, bucket_url, tmp_path):
    """As a request of the overwritten build does that was under way all the while: before this one puts the image, and
    under names that this one rejects."""
    whole(request(originals, bucket_url, "imagefolder", splits=("train",), images=ImagePolicy(check="none")))
    storage = open_storage(bucket_url)
    old = {info.name: storage.read(info.name) for info in storage.list("train/")}
    whole(request(originals, tmp_path / "alone", "imagefolder", splits=("train",)))
    expected = digests(tmp_path / "alone")
    rejected = [name for name in old if name not in expected]
    repaired = [name for name in old if sha256(old[name]).hexdigest() != expected.get(name) and name in expected]
    assert rejected
    assert repaired

    def engine(job, indexes):
        for name in (*rejected, *repaired):
            assert storage.create(name, old[name])
        yield from in_this_process(job, indexes)

    run_build(request(originals, bucket_url, "imagefolder", splits=("train",), overwrite=True), engine, Quiet())
    assert digests(bucket_url) == expected
