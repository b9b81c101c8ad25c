"""The recipe of archives and folders: what it plans to write is what is there in the end."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from dataprep.builder.archives import output_traffic
from dataprep.builder.driver import run_build
from dataprep.builder.finished import dataset_names, readable_manifest
from dataprep.builder.growth import ARCHIVES
from dataprep.builder.output import read_claim
from dataprep.builder.plan import BuildOptions, BuildRequest, plan_from_document
from dataprep.builder.receipts import read_receipt, receipt_file, write_receipt
from dataprep.commands.progress import BuildProgress
from dataprep.dataset.index import ANNOTATIONS
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.replicas import REPLICAS
from dataprep.errors import FormatError
from dataprep.storage import open_storage
from tests.support.build_here import Quiet, in_formats, in_this_process
from tests.support.finished import verify_here
from tests.support.own_data import annotated, build_own, class_folders, planned
from tests.support.own_data import request as own_request
from tests.support.plans import small_plan


def request(originals, output, fmt="webdataset", dataset="imagenet", **more):
    options = BuildOptions(
        dataset=dataset, format=fmt, num_shards=2, allow_partial=True, **({"splits": ("train",)} | more)
    )
    return BuildRequest(
        options=options,
        source_url=str(originals[dataset.partition("-")[0]]),
        output_url=str(output),
        max_reject_ratio=1.0,
    )


@in_formats("webdataset")
def test_every_written_file_is_among_the_planned_names(originals, storage_url, fmt):
    planned = []

    def engine(job, indexes):
        storage = open_storage(job.output_url)
        planned.extend(ARCHIVES.planned_files(storage, read_claim(storage)))
        yield from in_this_process(job, indexes)

    run_build(request(originals, storage_url, fmt), engine, BuildProgress(quiet=True))
    storage = open_storage(storage_url)
    own = {"index/train.parquet", "index/train-events.parquet", MANIFEST, REPLICAS}
    written = set(dataset_names(storage, readable_manifest(storage))) - own
    assert written <= set(planned)
    assert len(set(planned) - written) <= 20  # images that were rejected
    assert fmt == "imagefolder" or written == set(planned)


def test_plan_depends_on_the_originals_and_not_on_their_place(originals, tmp_path):
    quiet = BuildProgress(quiet=True)
    plan, tables = ARCHIVES.plan_references(request(originals, tmp_path / "a"), quiet)
    assert [table.num_rows for table in tables] == list(plan.splits[0].shard_samples)
    again = ARCHIVES.plan(request(originals, tmp_path / "b"), quiet, keep=True).plan
    assert again.plan_hash == plan.plan_hash
    other = ARCHIVES.plan(request(originals, tmp_path / "c", seed=1), quiet, keep=False).plan
    assert other.plan_hash != plan.plan_hash


def test_physical_repeats_have_keys_of_their_own(originals, tmp_path):
    asked = request(originals, tmp_path / "out", dataset="coco-dup5", repeat="physical")
    plan, tables = ARCHIVES.plan_references(asked, BuildProgress(quiet=True))
    keys = [key for table in tables for key in table.column("key").to_pylist()]
    assert len(set(keys)) == len(keys) == sum(plan.splits[0].shard_samples)
    assert {key.rpartition("-")[2] for key in keys} == {f"r{index}" for index in range(5)}
    linked = ARCHIVES.plan(
        request(originals, tmp_path / "out", "imagefolder", "coco-dup5", repeat="physical"),
        BuildProgress(quiet=True),
        keep=False,
    ).plan
    assert 5 * sum(linked.splits[0].shard_samples) == len(keys)


def test_a_plan_with_features_comes_back(tmp_path):
    plan = planned(annotated(tmp_path / "pets"))
    document = json.loads(json.dumps(plan.document()))
    assert list(document["features"]) == sorted(plan.features)
    assert document["options"]["own"]["name"] == "pets"
    assert plan_from_document(document) == plan
    document["features"]["key"] = document["features"].pop("caption")
    with pytest.raises(FormatError, match="the name 'key' is taken"):
        plan_from_document(document)


def test_another_caption_is_another_plan(tmp_path):
    source = annotated(tmp_path / "pets")
    before = planned(source).plan_hash
    metadata = source / "metadata.jsonl"
    metadata.write_text(metadata.read_text().replace("a cat on a mat", "a dog on a mat"))
    assert planned(source).plan_hash != before


def test_a_receipt_with_other_annotations_is_refused(tmp_path):
    def engine(job, indexes):
        yield from in_this_process(job, indexes)
        storage = open_storage(job.output_url)
        receipt, rows = read_receipt(storage, 0, job.root)
        changed = rows.set_column(
            rows.num_columns - 1, rows.field(ANNOTATIONS), [pa.array([0] * len(rows), pa.uint32())]
        )
        storage.delete(receipt_file(0, job.root))
        write_receipt(storage, receipt, changed, job.root)

    with pytest.raises(FormatError, match="with their keys; start over with `overwrite`"):
        run_build(own_request(annotated(tmp_path / "pets"), tmp_path / "out"), engine, Quiet())


@in_formats("imagefolder", webdataset=[], imagefolder=[])
def test_own_data_is_overwritten_as_any_other(tmp_path, storage_url, fmt):
    build_own(annotated(tmp_path / "pets"), storage_url, fmt)
    asked = replace(own_request(class_folders(tmp_path / "others"), storage_url, "imagefolder"), overwrite=True)
    run_build(asked, in_this_process, Quiet())
    assert verify_here(storage_url).verdict == "complete"
    assert not [info.name for info in open_storage(storage_url).list() if "metadata" in info.name]


def plan_of(num_shards: int, *, source: str = "images.tar", fmt: str = "webdataset"):
    plan = small_plan((100,) * num_shards, fmt)
    split = replace(plan.splits[0], sources=({"name": source, "bytes": 100 * 2**20},), source_bytes=100 * 2**20)
    return replace(plan, splits=(split,))


def test_a_tar_is_streamed_once_and_every_image_read():
    found = ARCHIVES.source_traffic(plan_of(4))
    assert (found.gets, found.num_bytes) == (400 + 25 + 2, 200 * 2**20)
    of_zip = ARCHIVES.source_traffic(plan_of(4, source="images.zip"))
    assert of_zip.gets - found.gets == 2  # its directory
    folder = ARCHIVES.source_traffic(plan_of(4, source="train"))
    assert (folder.inserts, folder.gets, folder.num_bytes) == (1, 400, 100 * 2**20)


def test_image_folders_cost_an_insert_per_image_and_shards_an_upload_and_a_copy():
    packed = output_traffic(plan_of(4), metadata_files=0, workers=2)
    loose = output_traffic(plan_of(4, fmt="imagefolder"), metadata_files=0, workers=2)
    assert loose.inserts - packed.inserts == 400 + 1 - 2 * 4 - 1  # a card less
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
    source = ARCHIVES.source_traffic(unpacked)
    assert (source.inserts, source.gets, source.num_bytes) == (0, 25, 100 * 2**20)
    ours, others = (output_traffic(plan, metadata_files=0, workers=2) for plan in (unpacked, plain))
    assert (ours.inserts - others.inserts, ours.gets - others.gets) == (1, 400)
    assert ours.num_bytes - others.num_bytes == 100 * 2**20
