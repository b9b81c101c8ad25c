"""Requests and bytes that a build asks of buckets, against sums made by hand."""

from dataclasses import replace

from dataprep.builder.traffic import archives_traffic, output_traffic
from tests.support.plans import small_plan


def plan_of(num_shards: int, *, source: str = "images.tar", fmt: str = "webdataset"):
    plan = small_plan((100,) * num_shards, fmt)
    split = replace(plan.splits[0], sources=({"name": source, "bytes": 100 * 2**20},), source_bytes=100 * 2**20)
    return replace(plan, splits=(split,))


def test_a_tar_is_streamed_once_and_every_image_read():
    found = archives_traffic(plan_of(4))
    assert (found.gets, found.num_bytes) == (400 + 25 + 2, 200 * 2**20)
    of_zip = archives_traffic(plan_of(4, source="images.zip"))
    assert of_zip.gets - found.gets == 2  # its directory
    folder = archives_traffic(plan_of(4, source="train"))
    assert (folder.inserts, folder.gets, folder.num_bytes) == (1, 400, 100 * 2**20)


def test_image_folders_cost_an_insert_per_image_and_shards_an_upload_and_a_copy():
    packed = output_traffic(plan_of(4), metadata_files=0, workers=2)
    loose = output_traffic(plan_of(4, fmt="imagefolder"), metadata_files=0, workers=2)
    assert loose.inserts - packed.inserts == 400 + 1 - 2 * 4
    assert loose.gets - packed.gets == 4 * (2 - 1)  # a look for each 64 images of a shard, in place of one for its copy


def test_each_worker_with_a_shard_reads_its_references():
    one, two, many = (output_traffic(plan_of(2), metadata_files=0, workers=count) for count in (1, 2, 8))
    assert (two.gets - one.gets, many.gets - two.gets) == (2, 0)


def test_references_of_many_images_are_read_in_parts():
    shards = 2 * 2**20 // 80 // 100 + 1  # a few more than two MiB of them
    few, many = (output_traffic(plan_of(count), metadata_files=0, workers=1) for count in (1, shards))
    assert many.gets - few.gets == 3 * (shards - 1) + 2 * (3 - 1)  # the worker, and the build when it writes the index


def test_listings_have_a_page_for_each_thousand_objects():
    few, many = (output_traffic(plan_of(count), metadata_files=0, workers=1) for count in (1, 1001))
    # Each shard is uploaded and copied, and has a receipt; shards and receipts are listed twice, receipts once more.
    assert many.inserts - few.inserts == 3 * 1000 + 2 * 2 + 1


def test_each_split_keeps_what_was_listed_and_its_digest_while_it_is_built():
    one = plan_of(2)
    both = replace(one, splits=(one.splits[0], replace(one.splits[0], name="train")))
    found, more = (output_traffic(plan, metadata_files=0, workers=1).inserts for plan in (plan_of(4), both))
    assert more - found == 2 * 2 + 2  # its index and events are written and copied


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
