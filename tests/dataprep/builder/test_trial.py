"""A worker's work on a few images: as many as the limits allow, and with what the options ask for; nothing is left."""

from dataclasses import replace
from pathlib import Path

import pytest

from dataprep.builder import trial
from dataprep.builder.driver import prepare
from dataprep.builder.images import ImagePolicy
from dataprep.builder.trial import MAX_S, Measured, sample_refs, tried_of, try_images
from dataprep.dataset.records import SampleRef
from dataprep.dataset.spill import spilled
from dataprep.errors import SourceError, StorageError
from dataprep.storage import open_storage
from tests.support.build_here import Quiet
from tests.support.own_data import class_folders, picture, request, write_files
from tests.support.tables import hub


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch):
    """A busy machine decides no number of images."""
    monkeypatch.setattr(trial, "MAX_S", 3600.0)


def prepared(source, output="/nowhere/out", **own):
    return prepare(request(source, output, **own), Quiet(), keep=False)


def many(root, count=100, size=(24, 16)):
    return write_files(root, {f"{number:03d}.jpg": picture(number, size=size) for number in range(count)})


def test_a_sample_is_spread_over_all_splits_in_proportion():
    splits = [spilled([SampleRef(f"{name}{row}", "a.tar", row, 1) for row in range(rows)]) for name, rows in SIZES]
    found = [ref.key for ref in sample_refs(splits)]
    assert len(found) == len(set(found)) == trial.MAX_IMAGES
    assert sum(key.startswith("t") for key in found) == pytest.approx(48, abs=2)
    rows = sorted(int(key[1:]) for key in found if key.startswith("t"))
    assert max(after - before for before, after in zip([0, *rows], [*rows, 3000], strict=True)) < 3000 / 48 * 3
    assert sum(key.startswith("t") for key in found[:16]) == pytest.approx(12, abs=3)


SIZES = (("t", 3000), ("v", 1000))


def test_fewer_originals_are_all_in_the_sample_and_none_is_none():
    refs = [SampleRef(f"k{row}", "a.tar", row, 1) for row in range(5)]
    assert sorted(ref.key for ref in sample_refs([spilled(refs), spilled([])])) == [ref.key for ref in refs]
    assert sample_refs([]) == []


def test_images_are_read_checked_encoded_and_written_and_nothing_is_left(tmp_path):
    source = class_folders(tmp_path / "pets")
    before = sorted(tmp_path.rglob("*"))
    found = prepared(source, output=tmp_path / "to" / "out").try_images()
    assert found.sync_s > 0
    assert found.images == 20
    assert found.num_bytes == sum(path.stat().st_size for path in source.rglob("*") if path.suffix in (".jpeg", ".png"))
    assert found.cpu_s > 0 and found.transfer_s == 0 and not found.reads_ahead
    assert sorted(tmp_path.rglob("*")) == before


def test_what_the_options_ask_for_is_done(tmp_path):
    source = many(tmp_path / "in", 12, (1500, 1000))
    plain, smaller = (
        prepared(source, options={"images": policy}).try_images()
        for policy in (ImagePolicy(check="none"), ImagePolicy(short_side=700))
    )
    assert smaller.cpu_s > 10 * plain.cpu_s


def test_the_images_are_written_to_the_disk_of_the_output(tmp_path, monkeypatch):
    source, disk = many(tmp_path / "in", 12), tmp_path / "disk"
    disk.mkdir()
    asked = []

    def named_file(dir):
        asked.append(dir)
        return (dir / "kept").open("w+b")

    monkeypatch.setattr("tempfile.TemporaryFile", named_file)
    for output in (disk / "a" / "out", disk):
        found = prepared(source, output=output).try_images()
        assert (asked.pop(), asked, found.images) == (disk, [], 12)
        assert (disk / "kept").stat().st_size > found.num_bytes
        (disk / "kept").unlink()


def test_images_that_are_all_rejected_are_tried_and_none_is_written(tmp_path):
    source = write_files(tmp_path / "in", {f"{number}.jpg": b"no image" for number in range(3)})
    found = prepared(source, output=tmp_path).try_images()
    assert found.images == 3
    assert found.sync_s is not None


def test_a_trial_leaves_no_file_and_needs_no_name(tmp_path):
    source, disk = many(tmp_path / "in", 12), tmp_path / "disk"
    disk.mkdir()
    assert prepared(source, output=disk).try_images().sync_s > 0
    assert list(disk.iterdir()) == []


def test_writing_is_not_tried_to_a_bucket_to_an_image_folder_or_without_permission(tmp_path, bucket_url, gcs):
    source = many(tmp_path / "in", 3)
    assert prepared(source, output=bucket_url).try_images().sync_s is None
    assert prepared(source, output=tmp_path / "out", fmt="imagefolder").try_images().sync_s is None
    refs = [SampleRef("000", "000.jpg", 0, (source / "000.jpg").stat().st_size)]
    assert try_images(prepared(source).plan, open_storage(str(source)), refs, tmp_path / "gone").sync_s is None


def test_a_full_disk_is_the_reason_for_no_estimate(tmp_path, monkeypatch):
    source = many(tmp_path / "in", 3)
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Path("/dev/full").open("wb", buffering=0))  # noqa: SIM115 (the trial closes it)
    with pytest.raises(StorageError, match=f"^{tmp_path}: no space left on device "):
        prepared(source, output=tmp_path / "out").try_images()


def test_only_some_images_are_tried_and_fewer_when_time_is_up(tmp_path, monkeypatch):
    source = many(tmp_path / "in")
    assert prepared(source).try_images().images == trial.MAX_IMAGES
    monkeypatch.setattr(trial, "MAX_S", 0.0)
    assert prepared(source).try_images().images == 1


def test_damaged_images_count_and_missing_ones_do_not(tmp_path):
    source = write_files(tmp_path / "in", {"a.jpg": picture(1), "b.jpg": b"no picture", "c.jpg": picture(2)})
    planned = prepared(source)
    (source / "c.jpg").unlink()
    assert planned.try_images().images == 2
    (source / "a.jpg").unlink()
    (source / "b.jpg").unlink()
    with pytest.raises(SourceError, match="is gone"):
        planned.try_images()


def test_one_image_is_tried_twice_and_measured_once(tmp_path):
    source = write_files(tmp_path / "in", {"a.jpg": picture(1)})
    assert prepared(source, options={"num_shards": 1}).try_images().images == 1


def test_images_in_a_bucket_are_read_ahead_and_few_bytes_of_them(tmp_path, bucket_url, gcs, monkeypatch):
    source = many(tmp_path / "in")
    for path in source.iterdir():
        open_storage(bucket_url).create(path.name, path.read_bytes())
    planned = prepared(bucket_url)
    before = gcs.stats()["bytes_served"]
    found = planned.try_images()
    assert found.images == trial.MAX_IMAGES // 2
    assert found.reads_ahead and found.wait_s > 0 and found.cpu_s > 0
    each = found.num_bytes / found.images
    assert gcs.stats()["bytes_served"] - before == pytest.approx(trial.MAX_IMAGES * each, rel=0.1)
    monkeypatch.setattr(trial, "MAX_NETWORK_BYTES", int(10.5 * each))
    assert planned.try_images().images == 5
    monkeypatch.setattr(trial, "MAX_NETWORK_BYTES", 10)
    with pytest.raises(SourceError, match="too much to be read for an estimate"):
        planned.try_images()


def test_images_that_are_unpacked_first_are_not_tried(tmp_path):
    source = hub(tmp_path / "dogs")
    planned = prepare(request(source, tmp_path / "out", dataset="table"), Quiet(), keep=False)
    with pytest.raises(SourceError, match="unpacks its images from parquet files"):
        planned.try_images()


ALONE = Measured(images=1, num_bytes=100, cpu_s=0.001, waits_s=(0.05,))


def test_reads_on_a_disk_wait_one_after_the_other():
    found = tried_of([ALONE, ALONE, ALONE], 1)
    assert (found.images, found.num_bytes) == (3, 300)
    assert (found.cpu_s, found.wait_s, found.transfer_s) == pytest.approx((0.003, 0.15, 0))


@pytest.mark.parametrize(("usual_s", "transfer_s"), [(0.05, 0), (0.04, 0), (0.25, 21 * 0.2 / 20)])
def test_what_many_reads_take_longer_than_one_is_transfer(usual_s, transfer_s):
    together = Measured(images=20, num_bytes=2000, cpu_s=0.02, waits_s=(usual_s,) * 19 + (9.0,))
    found = tried_of([ALONE, together], 64)
    assert found.transfer_s == pytest.approx(transfer_s)
    assert found.wait_s == pytest.approx(21 * usual_s / 128)


def test_images_that_were_never_there_take_no_reading():
    found = tried_of([replace(ALONE, waits_s=()), replace(ALONE, waits_s=())], 64)
    assert (found.images, found.wait_s, found.transfer_s) == (2, 0, 0)


def test_the_document_has_the_limits():
    text = " ".join((Path(__file__).parents[3] / "DATA.md").read_text().split())
    assert (
        f"up to {trial.MAX_IMAGES} images that are spread over the listing, for about {MAX_S:.0f} s and with at "
        f"most {trial.MAX_NETWORK_BYTES // 10**6} MB from a bucket"
    ) in text
