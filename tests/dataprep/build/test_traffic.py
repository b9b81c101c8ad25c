"""Requests and bytes that a build asks of buckets, against sums made by hand."""

from dataclasses import replace

from dataprep.build.traffic import archives_traffic, output_traffic
from tests.support.plans import small_plan


def plan_of(num_shards: int, *, source: str = "images.tar", fmt: str = "webdataset"):
    plan = small_plan((100,) * num_shards, fmt)
    split = replace(plan.splits[0], sources=({"name": source, "bytes": 100 * 2**20},), source_bytes=100 * 2**20)
    return replace(plan, splits=(split,))


def test_a_tar_is_streamed_once_and_every_image_read():
    found = archives_traffic(plan_of(4))
    assert (found.gets, found.num_bytes) == (400 + 25, 200 * 2**20)
    folder = archives_traffic(plan_of(4, source="train"))
    assert (folder.inserts, folder.gets, folder.num_bytes) == (1, 400, 100 * 2**20)


def test_image_folders_cost_an_insert_per_image_and_shards_an_upload_and_a_copy():
    packed = output_traffic(plan_of(4), metadata_files=0, workers=2)
    loose = output_traffic(plan_of(4, fmt="imagefolder"), metadata_files=0, workers=2)
    assert loose.inserts - packed.inserts == 400 + 1 - 2 * 4
    assert loose.gets - packed.gets == 400 // 64


def test_metadata_files_are_uploaded_and_copied():
    none, three = (output_traffic(plan_of(1), metadata_files=count, workers=1) for count in (0, 3))
    assert (three.inserts - none.inserts, three.gets - none.gets) == (6, 3)


def test_a_parquet_file_with_images_is_streamed_once_and_its_images_are_read_from_the_output():
    plain = plan_of(4, source="train.parquet")
    table = {"name": "train.parquet", "bytes": 100 * 2**20, "sha256": "0" * 64}
    unpacked = replace(plain, splits=(replace(plain.splits[0], sources=(table,)),))
    source = archives_traffic(unpacked)
    assert (source.inserts, source.gets, source.num_bytes) == (0, 25, 100 * 2**20)
    ours, others = (output_traffic(plan, metadata_files=0, workers=2) for plan in (unpacked, plain))
    assert (ours.inserts - others.inserts, ours.gets - others.gets) == (1, 400)
    assert ours.num_bytes - others.num_bytes == 100 * 2**20
