"""Copies of real datasets between emulated buckets and disks: whole or nothing, resumed, and never over other bytes."""

import itertools
import json
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from dataprep.builder.cards import write_cards
from dataprep.builder.finished import shape_faults
from dataprep.cloud.region import describe
from dataprep.cloud.replicate import Copying, copy_dataset, dataset_phases, plan_copy, record_copies
from dataprep.dataset.replicas import REPLICAS, Replica, read_replicas, record_replicas
from dataprep.errors import ConflictError, FormatError, StorageError, UsageError, VerificationError
from dataprep.storage import ObjectInfo, open_storage
from dataprep.storage.gcs_location import BucketLocation
from tests.support.adoption import upload
from tests.support.finished import details, kinds, verify_here
from tests.support.own_data import annotated, build_own
from tests.support.replication import cards_at, checksums, flip_byte, kill_replicate, remove_all

_numbers = itertools.count()
FORMATS = ("webdataset", "tfrecord", "imagefolder")


@pytest.fixture(scope="module", autouse=True)
def buckets(gcs) -> None:
    gcs.create_bucket("copies-eu", location="EUROPE-WEST4")
    gcs.create_bucket("copies-us", location="US-CENTRAL1")
    gcs.create_bucket("copies-asia", location="ASIA-EAST1")


@pytest.fixture(scope="module")
def sources(gcs, finished):
    """A dataset in Europe by its format; only ever read."""
    uploaded = cache(lambda fmt: upload(finished(f"imagenet-{fmt}"), f"gs://copies-eu/{fmt}"))
    return lambda fmt="webdataset": uploaded(fmt)


@pytest.fixture
def target(gcs):
    url = f"gs://copies-us/{next(_numbers)}"
    yield url
    gcs.set_rewrite_bytes(None)
    gcs.set_latency(0)
    gcs.set_faults(0)
    remove_all(url)


def replicate(source: str, *targets: str, workers: int = 8) -> list[Copying]:
    phases = dataset_phases(open_storage(source), shape_faults)
    plans = [plan_copy(source, target, phases) for target in targets]
    for plan in plans:
        copy_dataset(plan, workers=workers, copied=lambda objects, num_bytes: None)
    warnings: list[str] = []
    record_copies(open_storage(source), [plan.target for plan in plans], warnings.append)
    assert warnings == []
    return plans


def listed(url: object) -> list[str]:
    return [each.url for each in read_replicas(open_storage(str(url)))]


# Copies


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_server_copies_a_dataset_of_every_format(sources, target, gcs, fmt):
    source = sources(fmt)
    before = gcs.stats()
    (plan,) = replicate(source, target)
    assert plan.objects == len(checksums(source))
    assert checksums(target) == checksums(source)
    assert gcs.stats()["bytes_served"] - before["bytes_served"] < 300_000  # manifests and lists of copies alone
    assert verify_here(target).verdict == "complete"


def test_copies_on_disk_alone_leave_no_list(finished, tmp_path):
    source, copy = str(finished("imagenet-webdataset")), str(tmp_path / "copy")
    replicate(source, copy)
    assert checksums(copy) == checksums(source)
    assert open_storage(copy).stat(REPLICAS) is None
    assert open_storage(source).stat(REPLICAS) is None


def test_a_copy_from_disk_to_disk_leaves_no_folder_of_its_own_even_where_an_earlier_one_did(finished, tmp_path):
    source, copy = str(finished("imagenet-webdataset")), tmp_path / "copy"
    replicate(source, str(copy))
    assert not (copy / "_build").exists()
    (copy / "_build/tmp").mkdir(parents=True)
    replicate(source, str(copy))
    assert not (copy / "_build").exists()


def test_the_list_of_a_copy_on_disk_has_those_in_buckets_alone(sources, target, tmp_path):
    copy = str(tmp_path / "copy")
    replicate(sources(), target, copy)
    urls = {each.url for each in read_replicas(open_storage(copy))}
    assert {sources(), target} <= urls
    assert all(url.startswith("gs://") for url in urls)


def test_the_annotations_of_an_image_folder_are_copied_with_it(target, tmp_path):
    build_own(annotated(tmp_path / "pets"), tmp_path / "out", "imagefolder")
    replicate(str(tmp_path / "out"), target)
    assert checksums(target) == checksums(str(tmp_path / "out"))
    assert verify_here(target).verdict == "complete"


def test_cards_are_copied_edited_or_not_and_others_at_the_target_stay(target, tmp_path):
    source = open_storage(str(tmp_path / "out"))
    write_cards(source, build_own(annotated(tmp_path / "pets"), source.url))
    source.replace("README.md", b"edited", source.read("README.md"))
    replicate(source.url, target)
    assert cards_at(target) == cards_at(source.url)
    assert open_storage(target).read("README.md") == b"edited"
    source.replace("README.md", b"edited again", b"edited")
    open_storage(target).delete("croissant.json")
    (plan,) = replicate(source.url, target)
    assert (plan.objects, plan.kept) == (1, ("README.md",))
    assert cards_at(target) == cards_at(source.url) | {"README.md": b"edited"}
    assert verify_here(target).verdict == "complete"


def test_a_card_at_the_target_is_in_nobodys_way(target, tmp_path):
    """Somebody's own README, where the source has none."""
    build_own(annotated(tmp_path / "pets"), tmp_path / "out")
    open_storage(target).create("README.md", b"about this bucket")
    (plan,) = replicate(str(tmp_path / "out"), target)
    assert (plan.existing, plan.kept) == (0, ())
    assert cards_at(target) == {"README.md": b"about this bucket"}


def test_objects_beyond_one_call_are_copied_by_several(sources, target, gcs):
    gcs.set_rewrite_bytes(300_000)
    seen: list[tuple[int, int]] = []
    lock = threading.Lock()

    def copied(objects: int, num_bytes: int) -> None:
        with lock:
            seen.append((objects, num_bytes))

    plan = plan_copy(sources(), target, dataset_phases(open_storage(sources()), shape_faults))
    copy_dataset(plan, workers=4, copied=copied)
    assert checksums(target) == checksums(sources())
    assert (sum(objects for objects, _ in seen), sum(part for _, part in seen)) == (plan.objects, plan.num_bytes)
    assert max(part for _, part in seen) <= 300_000


def test_a_copy_from_a_bucket_to_disk_and_from_disk_to_a_bucket(sources, target, tmp_path):
    disk = tmp_path / "disk"
    replicate(sources(), str(disk))
    assert checksums(str(disk)) == checksums(sources())
    assert not (disk / "_build").exists()
    assert verify_here(disk).verdict == "complete"
    replicate(str(disk), target, str(tmp_path / "second"))
    assert checksums(target) == checksums(str(tmp_path / "second")) == checksums(sources())


def test_nothing_is_copied_twice(sources, target, gcs):
    replicate(sources(), target)
    before = gcs.stats()["operations"]["A"]
    (plan,) = replicate(sources(), target)
    assert (plan.objects, plan.existing) == (0, len(checksums(sources())))
    assert gcs.stats()["operations"]["A"] - before <= 3  # lists


def test_a_copy_killed_at_random_and_resumed_equals_its_source(sources, target, gcs):
    gcs.set_rewrite_bytes(100_000)
    gcs.set_latency(10)
    assert kill_replicate(random.Random(7), sources(), target, kills=1) > 0


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_two_concurrent_copies_make_one_copy(sources, target, gcs, tmp_path, place):
    gcs.set_rewrite_bytes(300_000)
    gcs.set_latency(5)
    url = str(tmp_path / "copy") if place == "disk" else target
    sources()
    with ThreadPoolExecutor(2) as people:
        for done in [people.submit(replicate, sources(), url, workers=3) for _ in range(2)]:
            done.result()
    assert checksums(url) == checksums(sources())


def test_an_interrupted_copy_ends_soon_and_has_no_manifest(sources, target, gcs):
    gcs.set_rewrite_bytes(50_000)
    count = itertools.count()

    def stop(objects: int, num_bytes: int) -> None:
        if next(count) == 8:
            gcs.set_latency(1_000)  # whoever copies the others is not done before this one has failed
            raise RuntimeError("enough")

    plan = plan_copy(sources(), target, dataset_phases(open_storage(sources()), shape_faults))
    with pytest.raises(RuntimeError, match="enough"):
        copy_dataset(plan, workers=4, copied=stop)
    assert next(count) < 20
    assert "dataset.json" not in checksums(target)


# What is refused


def test_other_bytes_are_never_overwritten(sources, target):
    shard = next(name for name in checksums(sources()) if name.endswith(".tar"))
    num_bytes = checksums(sources())[shard][0]
    open_storage(target).create(shard, bytes(num_bytes))
    with pytest.raises(ConflictError, match=r"another object exists there already: .* it was left unchanged"):
        replicate(sources(), target)
    assert list(checksums(target)) == [shard]
    assert open_storage(target).read(shard) == bytes(num_bytes)


def test_an_object_created_during_the_copy_is_not_overwritten(sources, target):
    plan = plan_copy(sources(), target, dataset_phases(open_storage(sources()), shape_faults))
    open_storage(target).create("dataset.json", b"{}")
    with pytest.raises(ConflictError, match=r"dataset\.json: another object exists there already"):
        copy_dataset(plan, workers=2, copied=lambda objects, num_bytes: None)
    assert open_storage(target).read("dataset.json") == b"{}"


def test_a_conflict_of_an_upload_says_what_to_do(finished, target):
    source = str(finished("imagenet-tfrecord"))
    plan = plan_copy(source, target, dataset_phases(open_storage(source), shape_faults))
    open_storage(target).create("dataset.json", b"{}")
    with pytest.raises(ConflictError, match="choose another place, or remove it and run the same command again"):
        copy_dataset(plan, workers=2, copied=lambda objects, num_bytes: None)


def test_a_strangers_file_inside_would_be_taken_for_data(sources, target):
    open_storage(target).create("train/more.tar", b"x")
    open_storage(target).create("notes/README", b"x")  # is not in the way
    with pytest.raises(ConflictError, match=r"train/more\.tar: not part of .*, but readers would take it for data"):
        plan_copy(sources(), target, dataset_phases(open_storage(sources()), shape_faults))


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("{0}", "{0}", "it is, contains or is inside"),
        ("{0}", "{0}/copy", "it is, contains or is inside"),
        ("{0}", "gs://copies-eu", "it is, contains or is inside"),
        ("gs://copies-eu/none", "gs://copies-us/none", "no dataset there"),
    ],
)
def test_a_copy_into_its_source_and_a_missing_dataset_are_refused(sources, source, target, said):
    with pytest.raises(UsageError, match=said):
        replicate(source.format(sources()), target.format(sources()))


def test_an_unfinished_build_is_neither_copied_nor_overwritten(sources, target):
    open_storage(target).create("_build/plan.json", b"{}")
    with pytest.raises(UsageError, match="a build is under way there"):
        replicate(sources(), target)
    with pytest.raises(UsageError, match="a build there is not finished: run it again"):
        replicate(target, "gs://copies-us/elsewhere")


@pytest.mark.parametrize("name", ["coco-links"])
def test_repeats_that_are_links_are_refused(finished, name, tmp_path):
    with pytest.raises(UsageError, match="it stores repeated images as symbolic links"):
        replicate(str(finished(name)), str(tmp_path / "copy"))


def test_a_source_that_differs_from_its_manifest_is_not_copied(damaged, target):
    copy = damaged("imagenet-webdataset")
    shard = copy.shards()[0]
    data = (copy.root / shard).read_bytes()
    copy.write(shard, data[:-1] + b"x")
    with pytest.raises(StorageError, match="the copy was dropped"):
        replicate(str(copy.root), target)
    assert "dataset.json" not in checksums(target)
    copy.write(shard, data[:-1])
    with pytest.raises(VerificationError, match="run dataprep verify"):
        replicate(str(copy.root), target)
    copy.write("dataset.json", b"[]")
    with pytest.raises(FormatError, match="not a dataset manifest"):
        replicate(str(copy.root), target)


# Verify


@pytest.mark.parametrize("at", [0, 12345, -1])
def test_a_flipped_byte_of_a_copy_is_found(sources, target, at):
    replicate(sources(), target)
    shard = random.Random(at).choice([name for name in checksums(target) if name.endswith(".tar")])
    flip_byte(target, shard, at)
    assert {"digest"} <= kinds(verify_here(target))
    report = verify_here(sources(), replicas=True)
    assert kinds(report) == {"digest"}
    assert f"digest {target}/{shard}: crc32c" in details(report)


# The list


def test_every_copy_lists_all_copies(sources, target):
    source, asia = sources("imagefolder"), f"gs://copies-asia/{next(_numbers)}"
    replicate(source, target)
    replicate(target, asia)
    assert listed(source) == listed(target) == listed(asia) == sorted([source, target, asia])
    assert [describe(each.bucket) for each in read_replicas(open_storage(source))] == [
        "asia-east1", "europe-west4", "us-central1",
    ]  # fmt: skip
    remove_all(asia)
    second = f"gs://copies-asia/{next(_numbers)}"
    replicate(source, second)
    assert listed(target) == sorted([source, target, second])  # what is gone is off the list
    assert list(open_storage(asia).list()) == []


def test_a_copy_that_cannot_be_recorded_is_warned_of_and_the_others_are_recorded(sources, tmp_path):
    """A file is in the place of a folder, so that not even root can write."""
    warnings: list[str] = []
    target = open_storage(str(tmp_path / "file" / "inside"))
    (tmp_path / "file").write_text("")
    source = open_storage(sources())
    record_copies(source, [target], warnings.append)
    assert any(str(tmp_path / "file") in warning for warning in warnings)
    assert sources() in listed(sources())


def test_replicas_json_has_the_documented_form(tmp_path):
    record_replicas(open_storage(str(tmp_path)), [_replica("gs://x-y-z/x")])
    assert json.loads(Path(tmp_path / REPLICAS).read_text()) == {
        "version": 1,
        "replicas": [
            {"url": "gs://x-y-z/x", "location": "EUROPE-WEST4", "location_type": "region", "data_locations": []}
        ],
    }


def _replica(url: str) -> Replica:
    return Replica(url, BucketLocation(location="EUROPE-WEST4", location_type="region"))


def test_a_copy_that_fails_says_what_stays_and_that_the_same_command_goes_on(sources, tmp_path):
    source, target = open_storage(sources()), str(tmp_path / "copy")
    copying = plan_copy(source.url, target, dataset_phases(source, shape_faults))
    copying.target.create("index/train.parquet", b"another one")
    left = "what was copied stays at .*/copy, and the same command continues from there"
    with pytest.raises(ConflictError, match=left):
        copy_dataset(copying, workers=2, copied=lambda objects, num_bytes: None)
    copying.target.delete("index/train.parquet")
    [again] = replicate(source.url, target)
    assert 0 < again.objects < copying.objects
    assert verify_here(target).verdict == "complete"


@pytest.fixture
def own_copy(finished, tmp_path):
    """A dataset on a disk, to change."""

    def copied(kind: str) -> Path:
        return Path(shutil.copytree(finished(kind), tmp_path / kind))

    return copied


@pytest.mark.parametrize("name", ["README.md", "croissant.json"])
def test_a_private_file_behind_a_link_is_not_copied(own_copy, tmp_path, name):
    source = own_copy("imagenet-webdataset")
    (tmp_path / "key").write_text("private")
    (source / name).unlink(missing_ok=True)
    (source / name).symlink_to("../key")
    with pytest.raises(UsageError, match=f"{name} is a link out of {source}, to {tmp_path}/key"):
        dataset_phases(open_storage(str(source)), shape_faults)


@pytest.mark.parametrize("name", ["index/train.parquet", "index/train-events.parquet"])
def test_an_index_of_the_same_size_and_other_bytes_is_not_copied(own_copy, name):
    source = own_copy("imagenet-webdataset")
    flip_byte(str(source), name, 9)
    with pytest.raises(VerificationError, match=rf"{name}: sha256 \w+…, the manifest has \w+…; run dataprep verify"):
        dataset_phases(open_storage(str(source)), shape_faults)


def test_an_image_of_the_same_size_and_other_bytes_is_not_copied(own_copy, tmp_path):
    source = own_copy("imagenet-imagefolder")
    image = next((source / "train").rglob("*.JPEG"))
    flip_byte(str(source), image.relative_to(source).as_posix(), 9)
    with pytest.raises(StorageError, match=f"{image.name}: .* were copied, .* were expected"):
        replicate(str(source), str(tmp_path / "copy"))
    assert not (tmp_path / "copy/dataset.json").exists()


def test_a_source_that_is_overwritten_while_it_is_listed_is_refused(own_copy, monkeypatch):
    source = open_storage(str(own_copy("imagenet-webdataset")))
    listed = list(source.list())

    def listing() -> list[ObjectInfo]:
        flip_byte(source.url, "dataset.json", 40)
        return listed

    monkeypatch.setattr(source, "list", listing)
    with pytest.raises(VerificationError, match="it is being overwritten; run the same command again"):
        dataset_phases(source, shape_faults)
