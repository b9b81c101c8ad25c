"""The recipe of archives and folders, also over a finished dataset: its order, its names, and what it keeps."""

import hashlib
import json
import shutil
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep.builder.archives import cut, order_split
from dataprep.builder.driver import run_build
from dataprep.builder.finished import dataset_names, readable_manifest
from dataprep.builder.growth import ARCHIVES
from dataprep.builder.images import ImagePolicy
from dataprep.builder.output import read_claim
from dataprep.builder.plan import BuildOptions, BuildRequest, physical_key, plan_from_document
from dataprep.builder.receipts import read_receipt, receipt_file, write_receipt
from dataprep.builder.recipe import build_shard
from dataprep.builder.references import refs_from_table, refs_schema
from dataprep.dataset import spill
from dataprep.dataset.index import ANNOTATIONS
from dataprep.dataset.manifest import MANIFEST, read_manifest
from dataprep.dataset.randomness import permutation
from dataprep.dataset.records import SampleRef
from dataprep.dataset.replicas import REPLICAS
from dataprep.dataset.spill import spilled
from dataprep.errors import DataprepError, FormatError, SourceError, UsageError
from dataprep.storage import open_storage
from dataprep.verification.run import verify
from tests.support.adoption import adopt_here
from tests.support.build_here import Quiet, in_formats, in_this_process, request, whole
from tests.support.builds import digests
from tests.support.converting import content, converted
from tests.support.converting import request as conversion_request
from tests.support.finished import verify_here
from tests.support.own_data import annotated, build_own, class_folders, planned
from tests.support.own_data import request as own_request
from tests.support.plans import refs_table, small_plan
from tests.support.shared import made_once, shared_folder


@in_formats("webdataset")
def test_every_written_file_is_among_the_planned_names(originals, storage_url, fmt):
    planned = []

    def engine(job, indexes):
        storage = open_storage(job.output_url)
        planned.extend(ARCHIVES.planned_files(storage, read_claim(storage)))
        yield from in_this_process(job, indexes)

    run_build(request(originals, storage_url, fmt, splits=("train",)), engine, Quiet())
    storage = open_storage(storage_url)
    own = {"index/train.parquet", "index/train-events.parquet", MANIFEST, REPLICAS}
    written = set(dataset_names(storage, readable_manifest(storage))) - own
    assert written <= set(planned)
    assert len(set(planned) - written) <= 20  # images that were rejected
    assert fmt == "imagefolder" or written == set(planned)


def test_plan_depends_on_the_originals_and_not_on_their_place(originals, tmp_path):
    quiet = Quiet()
    plan, tables = ARCHIVES.plan_references(request(originals, tmp_path / "a"), quiet)
    assert [table.num_rows for table in tables] == list(plan.splits[0].shard_samples)
    again = ARCHIVES.plan(request(originals, tmp_path / "b"), quiet, keep=True).plan
    assert again.plan_hash == plan.plan_hash
    other = ARCHIVES.plan(request(originals, tmp_path / "c", seed=1), quiet, keep=False).plan
    assert other.plan_hash != plan.plan_hash


def test_physical_repeats_have_keys_of_their_own(originals, tmp_path):
    of_coco = {"dataset": "coco-dup5", "splits": ("train",), "repeat": "physical"}
    asked = request(originals, tmp_path / "out", **of_coco)
    plan, tables = ARCHIVES.plan_references(asked, Quiet())
    keys = [key for table in tables for key in table.column("key").to_pylist()]
    assert len(set(keys)) == len(keys) == sum(plan.splits[0].shard_samples)
    assert {key.rpartition("-")[2] for key in keys} == {f"r{index}" for index in range(5)}
    linked = ARCHIVES.plan(request(originals, tmp_path / "out", "imagefolder", **of_coco), Quiet(), keep=False).plan
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
    packed = ARCHIVES.output_traffic(plan_of(4), workers=2)
    loose = ARCHIVES.output_traffic(plan_of(4, fmt="imagefolder"), workers=2)
    assert loose.inserts - packed.inserts == 400 + 1 - 2 * 4 - 1  # a card less
    assert loose.gets - packed.gets == 4 * (2 - 1)  # a look for each 64 images of a shard, in place of one for its copy


def test_each_worker_with_a_shard_reads_its_references():
    one, two, many = (ARCHIVES.output_traffic(plan_of(2), workers=count) for count in (1, 2, 8))
    assert (two.gets - one.gets, many.gets - two.gets) == (2, 0)


def test_references_of_many_images_are_read_in_parts():
    shards = 2 * 2**20 // 80 // 100 + 1  # a few more than two MiB of them
    few, many = (ARCHIVES.output_traffic(plan_of(count), workers=1) for count in (1, shards))
    assert many.gets - few.gets == 3 * (shards - 1) + 2 * (3 - 1)  # the worker, and the build when it writes the index


def test_listings_have_a_page_for_each_thousand_objects():
    few, many = (ARCHIVES.output_traffic(plan_of(count), workers=1) for count in (1, 1001))
    # Each shard is uploaded and copied, and has a receipt; shards and receipts are listed twice, receipts once more.
    assert many.inserts - few.inserts == 3 * 1000 + 2 * 2 + 1


def test_each_split_keeps_what_was_listed_and_its_digest_while_it_is_built():
    one = plan_of(2)
    both = replace(one, splits=(one.splits[0], replace(one.splits[0], name="train")))
    found, more = (ARCHIVES.output_traffic(plan, workers=1).inserts for plan in (plan_of(4), both))
    assert more - found == 2 * 2 + 2  # its index and events are written and copied


def test_metadata_files_are_uploaded_and_copied():
    none, three = (ARCHIVES.output_traffic(plan_of(1, fmt=fmt), workers=1) for fmt in ("webdataset", "tfrecord"))
    assert (three.inserts - none.inserts, three.gets - none.gets) == (6 - 1, 3)  # a card less


def test_a_parquet_file_with_images_is_streamed_once_and_its_images_are_read_from_the_output():
    plain = plan_of(4, source="train.parquet")
    table = {"name": "train.parquet", "bytes": 100 * 2**20, "sha256": "0" * 64}
    unpacked = replace(plain, splits=(replace(plain.splits[0], sources=(table,)),))
    source = ARCHIVES.source_traffic(unpacked)
    assert (source.inserts, source.gets, source.num_bytes) == (0, 25, 100 * 2**20)
    ours, others = (ARCHIVES.output_traffic(plan, workers=2) for plan in (unpacked, plain))
    assert (ours.inserts - others.inserts, ours.gets - others.gets) == (1, 400)
    assert ours.num_bytes - others.num_bytes == 100 * 2**20


OPTIONS = BuildOptions(dataset="coco-dup5", format="webdataset", splits=("train",))
SIZES = st.lists(st.integers(0, 10**7), max_size=300).map(lambda sizes: np.array(sizes, dtype=np.int64))


@pytest.fixture
def small_parts(monkeypatch):
    """Every table of a few rows is on the disk, and in several parts."""
    monkeypatch.setattr(spill, "REFERENCE_ROWS", 16)
    monkeypatch.setattr(spill, "MEMORY_BYTES", 256)
    monkeypatch.setattr(spill, "PART_BYTES", 512)


def bounds_of(sizes, shards, piece=10**6):
    pieces = [sizes[start : start + piece] for start in range(0, len(sizes), piece)]
    return cut(pieces, shards, count=len(sizes), total_bytes=int(sizes.sum()))


@given(SIZES, st.integers(1, 40), st.integers(1, 400))
def test_cut_loses_nothing_and_balances_bytes(sizes, shards, piece):
    bounds = bounds_of(sizes, shards, piece)
    assert len(bounds) == shards + 1
    assert bounds[0] == 0
    assert bounds[-1] == len(sizes)
    assert all(start <= stop for start, stop in pairwise(bounds))
    share = sizes.sum() / shards
    for start, stop in pairwise(bounds):
        assert sizes[start:stop].sum() <= share + sizes.max(initial=0)
    assert bounds == bounds_of(sizes, shards)


def test_cutting_sizes_whose_products_exceed_64_bits_balances_them():
    sizes = np.full(1000, 2**52, dtype=np.int64)
    assert [stop - start for start, stop in pairwise(bounds_of(sizes, 1000))] == [1] * 1000


def refs_of(sizes):
    return [SampleRef(f"k{i}", f"{i % 3}.tar", i, int(size), i % 7) for i, size in enumerate(sizes)]


def ordered(sizes, stored=1, **options):
    return order_split(spilled(refs_of(sizes)), replace(OPTIONS, **options), "train", stored, annotated=False)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SIZES, st.integers(0, 2**40), st.sampled_from([1, 5]), st.integers(1, 10**8))
def test_every_pass_holds_every_sample_once_in_the_order_of_its_permutation(
    small_parts, sizes, seed, stored, shard_bytes
):
    refs = refs_of(sizes)
    order = ordered(sizes, stored, seed=seed, shard_bytes=shard_bytes)
    found = [refs_from_table(table) for table in order.shards()]
    assert [len(shard) for shard in found] == list(order.shard_samples)
    shards_a_pass = len(found) // stored
    for index in range(stored):
        shards = found[index * shards_a_pass : (index + 1) * shards_a_pass]
        whole = permutation(len(sizes), seed=seed, purpose="build/train", pass_index=index)
        due = [refs[position] for position in whole.tolist()]
        if stored > 1:
            due = [ref._replace(key=physical_key(ref.key, index)) for ref in due]
        assert [ref for shard in shards for ref in shard] == due
        assert [0, *np.cumsum([len(shard) for shard in shards]).tolist()] == bounds_of(sizes[whole], shards_a_pass)


@pytest.mark.parametrize("annotated", [False, True])
def test_stored_references_have_the_bytes_of_those_that_were_never_spilled(small_parts, tmp_path, annotated):
    refs = [ref._replace(annotations=b'{"n":1}' if annotated else b"") for ref in refs_of(range(1_000, 1_400))]
    order = order_split(spilled(refs), replace(OPTIONS, num_shards=7), "train", 1, annotated=annotated)
    digests = []
    whole = permutation(len(refs), seed=0, purpose="build/train").tolist()
    stops = np.cumsum(order.shard_samples).tolist()
    direct = [
        refs_table([refs[position] for position in whole[start:stop]], with_annotations=annotated)
        for start, stop in pairwise([0, *stops])
    ]
    for tables in (order.shards(), direct):
        with pq.ParquetWriter(tmp_path / "plan.parquet", refs_schema(with_annotations=annotated)) as writer:
            for table in tables:
                writer.write_table(table)
        digests.append(hashlib.sha256((tmp_path / "plan.parquet").read_bytes()).hexdigest())
    assert digests[0] == digests[1]


def test_number_of_shards_follows_bytes_or_the_user():
    sizes = [10] * 100
    assert len(ordered(sizes, shard_bytes=300).shard_samples) == 4
    assert len(ordered(sizes, num_shards=7).shard_samples) == 7
    assert len(ordered([2**20] * 70).shard_samples) == 64
    assert len(ordered([100_000] * 100).shard_samples) == 9
    assert len(ordered(sizes).shard_samples) == 1
    assert len(ordered([2**28] * 65).shard_samples) == 65
    assert len(ordered([2**20] * 70, shard_bytes=70 * 2**20).shard_samples) == 1
    with pytest.raises(UsageError, match=r"`num_shards` 101: split train has only 100 samples"):
        ordered(sizes, num_shards=101)


@pytest.fixture(scope="module")
def pets(tmp_path_factory, originals):
    """A dataset of every kind of feature, in two splits and two shards of each."""
    folder = shared_folder(tmp_path_factory) / "converted-pets"
    return made_once(folder, lambda path: build_own(originals["pets"], path))


def is_whole(url):
    return not verify(str(url), deep=True, workers=0, progress=Quiet()).findings


def test_a_tour_through_all_formats_keeps_every_byte_of_images_and_annotations(pets, tmp_path):
    before = content(pets)
    previous = pets
    for number, fmt in enumerate(("tfrecord", "imagefolder", "webdataset")):
        output = tmp_path / str(number)
        manifest = converted(previous, output, fmt)
        assert content(output) == before
        assert is_whole(output)
        assert (manifest.name, manifest.shuffled, manifest.converted_from) == ("pets", True, previous.name)
        previous = output


def test_the_manifest_says_what_was_converted_and_no_path_of_the_machine(pets, tmp_path):
    manifest = converted(pets, tmp_path / "out", "tfrecord")
    source = read_manifest(open_storage(str(pets)))
    assert manifest.options["converted"]["plan_hash"] == source.plan_hash
    assert str(tmp_path) not in (tmp_path / "out/dataset.json").read_text()
    moved = shutil.copytree(pets, tmp_path / "moved/converted-pets")
    converted(moved, tmp_path / "again", "tfrecord")
    assert digests(tmp_path / "again") == digests(tmp_path / "out")


def test_the_order_of_the_source_is_kept_if_requested(pets, tmp_path):
    from tests.support.converting import read_all_of

    converted(pets, tmp_path / "out", "tfrecord", how={"shuffle": False})
    assert read_all_of(tmp_path / "out", "train") == read_all_of(pets, "train")
    assert is_whole(tmp_path / "out")
    one = converted(pets, tmp_path / "one", splits=("val",), how={"shuffle": False, "was_shuffled": True})
    assert (one.shuffled, [split.name for split in one.splits]) == (True, ["val"])


def test_images_that_change_are_changed_as_in_a_build(pets, tmp_path):
    manifest = converted(pets, tmp_path / "out", "tfrecord", images=ImagePolicy(short_side=12, quality=80))
    keys = {key for key, _, _ in content(tmp_path / "out")["splits"]["train"][1]}
    assert keys == {key for key, _, _ in content(pets)["splits"]["train"][1]}
    assert is_whole(tmp_path / "out")
    assert manifest.splits[0].num_bytes < read_manifest(open_storage(str(pets))).splits[0].num_bytes


def members_of(manifest):
    return {name: each.member for name, each in manifest.features.items() if each.member}


def test_members_of_features_are_kept_unless_others_are_chosen(pets, tmp_path):
    first = converted(pets, tmp_path / "first", members=(("patient", "patient.txt"), ("year", "year")))
    assert members_of(first) == {"caption": "txt", "patient": "patient.txt", "year": "year"}
    again = converted(tmp_path / "first", tmp_path / "again", members=(("caption", "json"),), how={"shuffle": False})
    assert members_of(again) == {"patient": "patient.txt", "year": "year"}
    assert content(tmp_path / "again") == content(pets)
    assert is_whole(tmp_path / "again")
    assert members_of(converted(tmp_path / "first", tmp_path / "records", "tfrecord")) == {}


def test_formats_without_members_refuse_a_choice(pets, tmp_path):
    with pytest.raises(UsageError, match="`members`: tfrecord has none; leave it out, or choose `format` webdataset"):
        converted(pets, tmp_path / "out", "tfrecord", members=(("caption", "txt"),))


@pytest.fixture(scope="module")
def physical(tmp_path_factory, originals):
    """coco-dup5 with all five passes as bytes."""
    path = tmp_path_factory.mktemp("physical")
    whole(request(originals, path, dataset="coco-dup5", splits=("train",), repeat="physical", num_shards=1))
    return path


def test_stored_passes_become_one_and_the_epoch_stays_as_long(physical, tmp_path):
    virtual = converted(physical, tmp_path / "virtual", "tfrecord")
    (split,) = virtual.splits
    assert split.repeats == {"count": 5, "stored": 1}
    assert split.samples * 5 == read_manifest(open_storage(str(physical))).splits[0].samples
    again = converted(tmp_path / "virtual", tmp_path / "again", "webdataset", repeat="physical", num_shards=1)
    assert content(tmp_path / "again") == content(physical)
    assert again.splits[0].repeats == {"count": 5, "stored": 5}
    folder = converted(tmp_path / "again", tmp_path / "folder", "imagefolder", repeat="physical")
    assert folder.splits[0].samples == split.samples
    back = converted(tmp_path / "folder", tmp_path / "back", "webdataset")
    assert content(tmp_path / "back") == content(tmp_path / "virtual")
    assert back.splits[0].repeats["count"] == 5
    assert all(is_whole(tmp_path / name) for name in ("virtual", "again", "folder", "back"))


def test_a_stopped_conversion_goes_on_and_gives_the_same_bytes(pets, tmp_path):
    converted(pets, tmp_path / "whole")
    asked = conversion_request(pets, tmp_path / "stopped")

    def stopping(job, indexes):
        yield build_shard(job, indexes[0])
        raise DataprepError("stopped")

    with pytest.raises(DataprepError, match="stopped"):
        run_build(asked, stopping, Quiet())
    assert len(list((tmp_path / "stopped").rglob("receipts/*"))) == 1
    whole(asked)
    assert digests(tmp_path / "stopped") == digests(tmp_path / "whole")
    assert run_build(asked, stopping, Quiet()).shards_built == 0


def test_disk_and_bucket_give_the_same_shards(pets, tmp_path, bucket_url):
    converted(pets, tmp_path / "out")
    converted(pets, f"{bucket_url}/out", "imagefolder")
    converted(f"{bucket_url}/out", f"{bucket_url}/back")
    manifest = read_manifest(open_storage(f"{bucket_url}/back"))
    assert manifest.converted_from == f"{bucket_url}/out"
    assert content(f"{bucket_url}/back") == content(pets)
    assert is_whole(f"{bucket_url}/back")


def changed(path, at=-700):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def longer(path):
    path.write_bytes(path.read_bytes() + b"\0")


def replaced_manifest(path):
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"revision": 2}))


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("index/train.parquet", longer, "the manifest has"),
        ("index/train.parquet", partial(changed, at=10), "the manifest has"),
        ("train/pets-train-00000-of-00002.tar", longer, "dataset.json lists"),
        ("train/pets-train-00000-of-00002.tar", lambda path: path.unlink(), "missing, but dataset.json lists it"),
        ("train/pets-train-00000-of-00002.tar", partial(changed, at=515), "has CRC32C"),
        ("dataset.json", replaced_manifest, "was replaced meanwhile"),
        ("dataset.json", lambda path: path.unlink(), "no dataset there"),
    ],
)
def test_a_source_that_changed_meanwhile_is_an_error(pets, tmp_path, file, change, words):
    source = shutil.copytree(pets, tmp_path / "source")
    asked = conversion_request(source, tmp_path / "out")
    change(source / file)
    with pytest.raises(DataprepError, match=words) as raised:
        whole(asked)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out/dataset.json").exists()


def test_annotations_that_changed_are_found_by_their_checksums(pets, tmp_path):
    for fmt, file in (("imagefolder", "train/metadata.jsonl"), ("webdataset", "train/pets-train-00000-of-00002.tar")):
        converted(pets, tmp_path / fmt, fmt)
        path = tmp_path / fmt / file
        path.write_bytes(path.read_bytes().replace(b"a cat on a mat", b"a dog on a mat", 1))
        with pytest.raises(SourceError, match=r"annotations of .* do not have the checksum"):
            converted(tmp_path / fmt, tmp_path / f"{fmt}-out")


def test_adopted_data_are_converted_wherever_their_index_is(pets, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(pets / "train", data / "train")
    adopt_here(data, tmp_path / "index")
    manifest = converted(tmp_path / "index", tmp_path / "out", "tfrecord", how={"fields": ("caption", "year")})
    assert (sorted(manifest.features), manifest.splits[0].samples) == (["caption", "year"], 60)
    assert manifest.converted_from == "index"
    assert is_whole(tmp_path / "out")
    longer(next(iter(sorted((data / "train").iterdir()))))
    with pytest.raises(UsageError, match="have changed since they were adopted"):
        converted(tmp_path / "index", tmp_path / "again")


def test_an_output_that_holds_another_conversion_is_refused(pets, tmp_path):
    converted(pets, tmp_path / "out")
    with pytest.raises(UsageError, match="another"):
        converted(pets, tmp_path / "out", seed=1)


def test_a_request_of_another_command_is_refused(pets, tmp_path):
    asked = conversion_request(pets, tmp_path / "out")
    plain = BuildRequest(
        options=asked.options, source_url=str(pets), output_url=str(tmp_path / "out"), max_reject_ratio=0.0
    )
    with pytest.raises(UsageError, match="dataprep convert"):
        run_build(plain, lambda job, indexes: iter(()), Quiet())


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
def test_rows_of_the_web_keep_the_fields_that_are_named(fetched, tmp_path, fmt):
    source = fetched(fmt)
    before = read_manifest(open_storage(str(source)))
    manifest = converted(source, tmp_path / "out", "imagefolder", how={"fields": ("caption", "url")}, num_shards=1)
    assert {name: feature.kind for name, feature in manifest.features.items()} == {"caption": "text", "url": "text"}
    assert (manifest.name, manifest.splits[0].samples) == ("laion", before.splits[0].samples)
    assert is_whole(tmp_path / "out")
    lines = (tmp_path / "out/train/metadata.jsonl").read_text().splitlines()
    assert all(json.loads(line)["url"].startswith("http") for line in lines)
