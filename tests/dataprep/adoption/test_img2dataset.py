"""img2dataset's output, adopted: its rows are counted, TFDS reads it, and nothing of it is changed."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dataprep.adoption import AdoptRequest, adopt
from dataprep.dataset.index import open_index_file
from dataprep.dataset.manifest import MANIFEST, read_manifest
from dataprep.formats.example import FRAME_HEAD_BYTES, FRAME_TAIL_BYTES, features_of
from dataprep.formats.img2dataset import STATUSES
from dataprep.formats.tfds import DATASET_INFO, FEATURES
from dataprep.storage import open_storage
from loaders import open_loader
from tests.support.adoption import upload
from tests.support.build_here import in_formats
from tests.support.builds import dataprep, digests, succeeds
from tests.support.img2dataset import MADE, run_img2dataset, write_img2dataset
from tests.support.interop import read_features_with_tfds
from tests.support.own_data import Notes

ROWS = 34
REASONS = {"http 404": 2, "http 429": 1, "http 500": 1, "http 503": 3, "success": 27}


def adopt_here(url, index=None, **options):
    """The manifest, and the lines that were told."""
    told = Notes()
    request = AdoptRequest(url=str(url), index_url=index and str(index), **options)
    return adopt(request, told).manifest, told.lines


def rows_of(folder):
    """By key, the rows that have an image, as the parquet files say."""
    rows = [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    return {row["key"]: row for row in rows if row["status"] == "success"}


def as_features(row):
    """What img2dataset's TFRecords hold of a row."""
    row = row | ({"txt": row["caption"]} if "caption" in row else {})
    return {
        name: value.encode() if isinstance(value, str) else b"" if value is None else value
        for name, value in row.items()
    }


def check_tfds(folder, rows):
    """TFDS gives the features of exactly these rows, and a JPEG each."""
    read = read_features_with_tfds(folder)
    images = [example.pop("jpg") for example in read]
    assert all(image.startswith(b"\xff\xd8") for image in images)
    assert len(read) == len(rows)
    for example in read:
        expected = as_features(rows[example["key"].decode()])
        similarity = pytest.approx(expected["similarity"])  # kept in 32 bits
        assert example == expected | {"similarity": similarity}
    return read


@in_formats("tfrecord", webdataset=[], tfrecord=[])
def test_rows_are_counted_and_no_file_is_changed(web, tmp_path, storage_url, fmt):
    folder = write_img2dataset(web, tmp_path / "cc3m", fmt, ROWS)
    before = digests(upload(folder, storage_url))
    manifest, lines = adopt_here(storage_url)
    assert lines == []
    (split,) = manifest.splits
    assert (manifest.options["adopted"]["kind"], manifest.format, split.samples) == ("img2dataset", fmt, 27)
    assert split.statuses == dict.fromkeys(STATUSES, 0) | {"success": 27, "failed_to_download": 7}
    assert split.reasons == REASONS
    after = digests(storage_url)
    assert {name: after[name] for name in before} == before
    written = {MANIFEST, "index/train.parquet", "index/train-events.parquet"}
    assert after.keys() - before.keys() == written | ({DATASET_INFO, FEATURES} if fmt == "tfrecord" else set())
    assert {entry["file"]: entry["sha256"] for entry in manifest.files} == {
        name: after[name] for name in ({DATASET_INFO, FEATURES} if fmt == "tfrecord" else ())
    }


@pytest.mark.long
def test_tfds_reads_every_feature(web, tmp_path):
    columns = {"flag": [n % 2 == 0 for n in range(ROWS)], "boxes": [[n, n + 1] for n in range(ROWS)], "id": range(ROWS)}
    folder = write_img2dataset(web, tmp_path / "CC-3M", "tfrecord", ROWS, columns=columns)
    adopt_here(folder)
    read = check_tfds(folder, rows_of(folder))
    assert {"similarity", "LICENSE", "txt", "url", "sha256", "exif", "original_width", "flag", "boxes"} <= read[
        0
    ].keys()
    assert json.loads((folder / DATASET_INFO).read_text())["name"] == "cc_3m"
    with open_loader(str(folder), batch_size=5, image_size=32, shuffle=False, fields=("caption",)) as loader:
        keys = [key for batch in loader for key, there in zip(batch.keys, batch.mask, strict=True) if there]
    assert keys == [example["key"].decode() for example in read]


@pytest.mark.long
def test_gaps_in_the_numbers_longer_numbers_and_missing_captions_are_adopted(web, tmp_path):
    """A folder with braces in its name besides, which mean something in TFDS's templates."""
    folder = write_img2dataset(web, tmp_path / "a {b}", "tfrecord", ROWS, numbers=(0, 2, 3, 7), captions=False)
    for path in sorted(folder.iterdir()):
        path.rename(folder / f"0{path.name}")
    before = digests(str(folder))
    adopt_here(folder, tmp_path / "index")
    assert digests(str(folder)) == before
    info = json.loads((tmp_path / "index" / DATASET_INFO).read_text())
    assert [int(length) for length in info["splits"][0]["shardLengths"]] == [8, 0, 7, 9, 0, 0, 0, 3]
    read = check_tfds(tmp_path / "index", rows_of(folder))
    assert "txt" not in read[0]


def test_a_feature_of_several_kinds_is_left_out_and_reported(web, tmp_path):
    size = [None if n == 4 else n for n in range(ROWS)]
    folder = write_img2dataset(web, tmp_path / "cc3m", "tfrecord", ROWS, columns={"size": size})
    _, lines = adopt_here(folder)
    assert lines == ["TFDS cannot read size: absent in some records, or of several kinds"]
    rows = {key: {name: value for name, value in row.items() if name != "size"} for key, row in rows_of(folder).items()}
    check_tfds(folder, rows)


def test_webp_images_are_described_as_undecoded_bytes(web, tmp_path):
    encode = replace(MADE, encode_format="webp")
    folder = write_img2dataset(web, tmp_path / "cc3m", "tfrecord", 10, encode=encode)
    _, lines = adopt_here(folder)
    assert lines == ["TFDS decodes no WebP: its feature webp gives the images' bytes"]
    assert {example["webp"][8:12] for example in read_features_with_tfds(folder)} == {b"WEBP"}


def test_names_that_tfds_cannot_read_are_reported(web, tmp_path):
    folder = write_img2dataset(web, tmp_path / "cc3m", "tfrecord", ROWS)
    for path in sorted(folder.iterdir()):
        path.rename(folder / path.name[1:])
    manifest, lines = adopt_here(folder)
    assert lines == ["TFDS cannot read it: 0000.tfrecord, expected numbers of one width, 5 digits or more"]
    assert manifest.files == ()
    assert manifest.splits[0].reasons == REASONS


def test_a_bucket_is_described_beside_its_files_only(web, tmp_path, bucket_url):
    url = upload(write_img2dataset(web, tmp_path / "cc3m", "tfrecord", ROWS), bucket_url)
    manifest, (line,) = adopt_here(url, tmp_path / "index")
    assert line.startswith("TFDS needs its description next to files in a bucket")
    assert manifest.files == ()


@pytest.mark.parametrize("name", [FEATURES, DATASET_INFO])
def test_an_existing_description_of_another_tool_is_left_alone(web, tmp_path, name):
    folder = write_img2dataset(web, tmp_path / "cc3m", "tfrecord", ROWS)
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / name).write_text("{}")
    manifest, (line,) = adopt_here(folder, tmp_path / "index")
    assert line.endswith(f"{name} exists already and is left as it is")
    assert manifest.files == ()
    assert (tmp_path / "index" / name).read_text() == "{}"


def test_adopting_again_and_after_an_interruption_gives_the_same_dataset(web, tmp_path, monkeypatch):
    folder = write_img2dataset(web, tmp_path / "cc3m", "tfrecord", ROWS)
    first, _ = adopt_here(folder)
    before = digests(str(folder))
    second, _ = adopt_here(folder, overwrite=True)
    assert (second.revision, second.options["adopted"]["kind"]) == (2, "img2dataset")
    assert replace(second, revision=1) == first
    import dataprep.adoption.run as module

    with monkeypatch.context() as patch:
        patch.setattr(module, "manifest_bytes", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            adopt_here(folder, overwrite=True)
    assert not (folder / MANIFEST).exists()
    adopt_here(folder)
    assert digests(str(folder)) == before


def test_without_sidecars_data_are_adopted_and_rows_are_not_counted(web, tmp_path):
    folder = write_img2dataset(web, tmp_path / "cc3m", "webdataset", ROWS)
    (folder / "00002.parquet").unlink()
    manifest, (line,) = adopt_here(folder)
    assert "00002.parquet: not a readable parquet file" in line
    assert line.endswith("without it rows are not counted")
    assert (manifest.splits[0].samples, manifest.splits[0].statuses) == (27, {})


def test_adopt_on_the_command_line_counts_rows_by_their_status(web, tmp_path):
    folder = write_img2dataset(web, tmp_path / "cc3m", "tfrecord", ROWS)
    (folder / "00001_stats.json").write_text("[]")
    run = succeeds("adopt", folder, "--workers", 2)
    assert "00001_stats.json: not the stats of img2dataset" in run.stderr
    assert "27 images in 4 shards" in run.stdout
    (folder / "00001_stats.json").write_text("{}")
    assert dataprep("adopt", folder, "--overwrite").returncode == 0
    run = dataprep("inspect", folder)
    assert "34: failed to download 7, success 27" in run.stdout


# The tool itself


@pytest.mark.long
def test_output_of_img2dataset_itself_is_adopted_and_read_by_tfds(web, tmp_path):
    """The tool writes what `write_img2dataset` makes, except for the order of records and rows. TFDS reads it."""
    real = run_img2dataset(web, tmp_path / "real", "tfrecord", ROWS)
    made = write_img2dataset(web, tmp_path / "made", "tfrecord", ROWS)
    manifest, lines = adopt_here(real)
    assert (lines, manifest.splits[0].reasons) == ([], REASONS)
    adopt_here(made)
    assert records_of(real) == records_of(made)
    for name in ("00000.parquet", "00003.parquet"):
        ours, theirs = pq.read_table(made / name), pq.read_table(real / name)
        assert ours.schema.equals(theirs.schema)
        assert ours.sort_by("key").to_pylist() == theirs.sort_by("key").to_pylist()
    assert (real / FEATURES).read_bytes() == (made / FEATURES).read_bytes()
    check_tfds(real, rows_of(real))


def records_of(folder):
    """By key, the kind and the bytes of each feature."""
    found = {}
    storage = open_storage(str(folder))
    split = read_manifest(storage).splits[0]
    for place, shard in enumerate(split.shards):
        data = Path(folder, shard["file"]).read_bytes()
        for row in open_index_file(storage, "index/train.parquet").read_group(place).to_pylist():
            start, stop = row["record_offset"], row["record_offset"] + row["record_bytes"]
            features = features_of(
                lambda at, count, data=data: data[at : at + count], start + FRAME_HEAD_BYTES, stop - FRAME_TAIL_BYTES
            )
            found[row["key"]] = {
                name: (feature.kind, data[feature.start : feature.stop]) for name, feature in features.items()
            }
    return found
