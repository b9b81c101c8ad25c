"""`dataprep remove`: what leaves, what stays as it was, and what other readers find."""

import json
import re
import shutil
from hashlib import sha256

import numpy as np
import pytest

import dataprep
from dataprep.commands.remove import _selection_table
from dataprep.dataset.index import open_index
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.paths import CHANGE_JSON
from dataprep.dataset.revisions import changes_after, moved, removed_keys, steps_back
from dataprep.errors import FormatError, UsageError
from dataprep.storage import open_storage
from loaders import open_loader
from tests.support.builds import dataprep as command
from tests.support.builds import digests, succeeds
from tests.support.fetched import build_table, retry
from tests.support.finished import details, verify_here
from tests.support.interop import read_with_tfds
from tests.support.own_data import annotated, build_own, class_folders, picture, write_files

FORMATS = ("webdataset", "tfrecord", "imagefolder")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Pictures in class folders, and pictures with metadata."""
    root = tmp_path_factory.mktemp("sources")
    return {"classes": class_folders(root / "classes"), "annotated": annotated(root / "annotated", 30)}


@pytest.fixture(scope="module")
def made(sources, tmp_path_factory):
    """Datasets by format and source, made when they are first asked for; only ever read."""
    found = {}

    def of(fmt, source):
        if (fmt, source) not in found:
            root = tmp_path_factory.mktemp("made") / "out"
            build_own(sources[source], root, fmt, options={"num_shards": 3})
            dataprep.card(root)
            found[fmt, source] = root
        return found[fmt, source]

    return of


@pytest.fixture
def dataset(made, tmp_path):
    return lambda fmt, source: shutil.copytree(made(fmt, source), tmp_path / "out")


def listed(tmp_path, *lines):
    path = tmp_path / "takedown.txt"
    path.write_text("# asked for on Monday\n" + "".join(f"{line}\n" for line in lines))
    return path


def check(url):
    """Every byte is as the manifest says, and a retry could follow."""
    report = verify_here(url, deep=True)
    assert report.findings == (), details(report)


def keys_of(root, split="train"):
    storage = open_storage(str(root))
    (found,) = (each for each in read_manifest(storage).splits if each.name == split)
    index = open_index(storage, found, compare=True)
    return [index.read_group(at, ["key"]).column(0).to_pylist() for at in range(len(found.shards))]


def loaded(url, fields=()):
    """The images and fields that a loader delivers in an epoch, by key."""
    loader = open_loader(str(url), batch_size=2, image_size=16, shuffle=False, fields=fields, threads=1)
    with loader:
        rows = [
            (key, image.tobytes(), tuple(batch.fields[name][at] for name in fields))
            for batch in loader
            for at, (key, image, valid) in enumerate(zip(batch.keys, batch.images, batch.mask, strict=True))
            if valid
        ]
    return {key: rest for key, *rest in rows}


@pytest.mark.parametrize("source", ["classes", "annotated"])
@pytest.mark.parametrize("fmt", FORMATS)
def test_samples_vanish_and_the_others_are_as_they_were(dataset, tmp_path, fmt, source):
    root = dataset(fmt, source)
    before, keys = read_manifest(open_storage(str(root))), keys_of(root)
    splits = {split.name: [key for shard in keys_of(root, split.name) for key in shard] for split in before.splits}
    images, gone = loaded(root), [keys[0][1], keys[0][0], keys[2][-1]]
    found = dataprep.remove(root, keys=listed(tmp_path, *gone))
    there = {split: sum(key in gone for key in every) for split, every in splits.items()}
    assert (found.samples, found.revision, found.unknown) == ({name: n for name, n in there.items() if n}, 2, ())
    check(root)
    assert keys_of(root) == [[key for key in shard if key not in gone] for shard in keys]
    assert loaded(root) == {key: image for key, image in images.items() if key not in gone}
    manifest = read_manifest(open_storage(str(root)))
    assert (manifest.revision, manifest.plan_hash) == (2, before.plan_hash)
    assert manifest.splits[0].shards[1] == before.splits[0].shards[1]
    if source == "classes":  # whose keys are long enough to occur nowhere else
        stored = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
        assert [key for key in gone if key.encode() in stored] == []


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
def test_samples_are_found_again_through_the_places_of_two_removals(dataset, tmp_path, fmt):
    root = dataset(fmt, "annotated")
    storage, first = open_storage(str(root)), keys_of(root)
    for at in (1, 2):
        dataprep.remove(root, keys=listed(tmp_path, *(shard[at] for shard in keys_of(root))))
    manifest, last = read_manifest(storage), keys_of(root)
    changes = changes_after(manifest, 1, "train")
    followed = [np.arange(len(shard)) for shard in first]
    for _, removed, _ in reversed(list(steps_back(storage, manifest.splits[0], changes))):
        followed = [np.where(old < 0, -1, moved(removed[at], old)) for at, old in enumerate(followed)]
    for keys, now, places in zip(first, last, followed, strict=True):
        assert [now[place] if place >= 0 else None for place in places] == [key if key in now else None for key in keys]
    gone = {key for shard in first for key in shard} - {key for shard in last for key in shard}
    assert removed_keys(storage, manifest, "train") == {sha256(key.encode()).digest() for key in gone}
    assert verify_here(root).ok


def test_tfds_reads_every_revision(dataset, tmp_path):
    root = dataset("tfrecord", "classes")
    for _ in range(2):
        keys = keys_of(root)
        dataprep.remove(root, keys=listed(tmp_path, keys[0][0], keys[1][-1]))
        left = sum(len(shard) for shard in keys_of(root))
        assert len(read_with_tfds(root)) == left


def test_a_shard_without_samples_stays_a_shard(dataset, tmp_path):
    root = dataset("tfrecord", "classes")
    keys = keys_of(root)
    dataprep.remove(root, keys=listed(tmp_path, *keys[1]))
    assert keys_of(root) == [keys[0], [], keys[2]]
    assert verify_here(root, deep=True).ok
    assert len(read_with_tfds(root)) == len(keys[0]) + len(keys[2])
    assert loaded(root).keys() == {*keys[0], *keys[2]}


def test_a_list_may_name_values_of_fields(tmp_path):
    rows = [{"file_name": f"{number}.jpg", "url": f"https://example.org/{number}"} for number in range(8)]
    files = {row["file_name"]: picture(number) for number, row in enumerate(rows)}
    files["metadata.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
    build_own(write_files(tmp_path / "pets", files), tmp_path / "out")
    found = dataprep.remove(tmp_path / "out", keys=listed(tmp_path, "https://example.org/3", "https://example.org/x"))
    assert (found.samples, found.unknown) == ({"train": 1}, ("https://example.org/x",))
    assert b"example.org/3" not in b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*.tar"))


@pytest.mark.parametrize("fmt", ["webdataset", "imagefolder"])
def test_all_copies_of_a_repeated_sample_vanish(originals, tmp_path, fmt):
    root = tmp_path / "out"
    words = ["--repeat", "physical", "--allow-partial", "--num-shards", 2, "--format", fmt, "--max-reject-ratio", 0.2]
    succeeds("build", "coco-dup5", "--source", originals["coco"], "--output", root, *words)
    (key, *_), *_ = keys_of(root)
    key = re.sub(r"-r\d$", "", key)
    before = sum(map(len, keys_of(root)))
    dataprep.remove(root, keys=listed(tmp_path, key))
    assert before - sum(map(len, keys_of(root))) == (5 if fmt == "webdataset" else 1)
    report = verify_here(root)
    assert report.ok, details(report)


def test_unknown_lines_are_an_exit_code_unless_they_are_allowed(dataset, tmp_path):
    root = dataset("webdataset", "classes")
    words = ["remove", root, "--keys", listed(tmp_path, keys_of(root)[0][0], "nobody")]
    said = command(*words, "--dry-run")
    assert (said.returncode, "no sample for 1 line of --keys: nobody" in said.stderr) == (1, True)
    assert "(dry run: nothing was changed)" in said.stdout
    assert read_manifest(open_storage(str(root))).revision == 1
    found = json.loads(succeeds(*words, "--allow-missing", "--json").stdout)
    assert (found["samples"], found["shards"], found["revision"]) == ({"train": 1}, 1, 2)
    again = succeeds(*words, "--allow-missing")
    assert "no such samples; the dataset stays at revision 2" in again.stdout
    assert not (root / "_change").exists()


def test_what_else_has_the_samples_is_said(dataset, tmp_path):
    root = dataset("webdataset", "classes")
    dataprep.select(root, name="half", sample=0.5)
    found = dataprep.remove(root, keys=listed(tmp_path, keys_of(root)[0][0]))
    assert "views of the dataset still have these samples" in str(found)
    with pytest.raises(UsageError, match="made of revision 1"):
        dataprep.inspect(f"{root}@half")
    dataprep.select(root, name="half", refresh=True)
    assert verify_here(root).ok


def test_what_cannot_be_changed_is_refused_and_left_as_it_was(dataset, made, tmp_path):
    root = dataset("webdataset", "classes")
    before, keys = digests(root), [key for split in ("train", "val") for shard in keys_of(root, split) for key in shard]
    some = listed(tmp_path, keys[0])
    with pytest.raises(UsageError, match="nothing would be left"):
        dataprep.remove(root, keys=listed(tmp_path, *keys))
    with pytest.raises(UsageError, match="a view; samples are removed from its dataset"):
        dataprep.remove(f"{root}@half", keys=some)
    with pytest.raises(UsageError, match="no dataset there"):
        dataprep.remove(tmp_path, keys=some)
    dataprep.adopt(write_files(tmp_path / "others", {"train/a/1.jpg": picture(1), "train/b/2.jpg": picture(2)}))
    with pytest.raises(UsageError, match="its files were adopted, so dataprep does not change them"):
        dataprep.remove(tmp_path / "others", keys=some)
    (root / "_change").mkdir()
    change = {"id": "a" * 32, "kind": "retry-failed", "revision": 1, "manifest_sha256": ""}
    (root / CHANGE_JSON).write_text(json.dumps(change))
    with pytest.raises(UsageError, match="dataprep retry-failed is not finished there"):
        dataprep.remove(root, keys=some)
    shutil.rmtree(root / "_change")
    assert digests(root) == before


def test_a_damaged_shard_is_not_written_again(dataset, tmp_path):
    root = dataset("webdataset", "classes")
    keys = keys_of(root)
    path = root / read_manifest(open_storage(str(root))).splits[0].shards[0]["file"]
    data = bytearray(path.read_bytes())
    data[700] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match="damaged; restore it"):
        dataprep.remove(root, keys=listed(tmp_path, keys[0][-1]))
    assert read_manifest(open_storage(str(root))).revision == 1


def test_another_list_finishes_what_was_begun_first(dataset, tmp_path, monkeypatch):
    root = dataset("tfrecord", "classes")
    keys = keys_of(root)
    with monkeypatch.context() as patch:
        patch.setattr("dataprep.builder.finished.publish_revision", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            dataprep.remove(root, keys=listed(tmp_path, keys[0][0]))
    assert (root / CHANGE_JSON).exists()
    dataprep.remove(root, keys=listed(tmp_path, keys[1][0]))
    assert keys_of(root) == [keys[0][1:], keys[1][1:], keys[2]]
    report = verify_here(root)
    assert (report.ok, read_manifest(open_storage(str(root))).revision) == (True, 3), details(report)


@pytest.mark.parametrize("places", [{0: ([10**6], [])}, {7: ([0], [])}])
def test_a_plan_of_samples_that_are_not_there_is_refused(dataset, tmp_path, monkeypatch, places):
    root = dataset("webdataset", "classes")
    with monkeypatch.context() as patch:
        patch.setattr("dataprep.commands.remove._Rewriting", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            dataprep.remove(root, keys=listed(tmp_path, keys_of(root)[0][0]))
    (path,) = root.glob("_change/*/samples.parquet")
    import pyarrow.parquet as pq

    pq.write_table(_selection_table({at: tuple(map(np.array, pair)) for at, pair in places.items()}), path)
    with pytest.raises(FormatError, match="not the samples of a removal"):
        dataprep.remove(root, keys=listed(tmp_path, "x"))


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
def test_rows_of_a_table_lose_their_url_and_caption(web, tmp_path, fmt):
    """Row 2 failed first and came when it was tried again, so it is in two shards; row 5 never came."""
    url = str(tmp_path / "out")
    web.faults = {2: 503, 5: 404}
    build_table(web, tmp_path, url, fmt)
    web.faults = {5: 404}
    retry(url)
    rows = {number: web.rows(34)[number]["URL"] for number in (2, 5, 17)}
    found = dataprep.remove(url, keys=listed(tmp_path, *rows.values()))
    assert (found.samples, found.unknown) == ({"train": 2}, ())
    stored = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert [address for address in rows.values() if address.encode() in stored] == []
    split = read_manifest(open_storage(url)).splits[0]
    assert (split.statuses["filtered"], split.reasons["removed"], split.samples) == (3, 3, 31)
    check(url)
    assert retry(url).rows == 0, "what was removed is not fetched again"
    assert dataprep.remove(url, keys=listed(tmp_path, *keys_of(url)[3][:1])).revision == 4
    check(url)


def test_a_row_is_named_by_the_md5_of_its_table(web, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row | {"md5": f"{number:032x}"} for number, row in enumerate(web.rows(20))]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "laion.parquet")
    url = str(tmp_path / "out")
    build_table(web, tmp_path, url, "webdataset", rows=0)
    found = dataprep.remove(url, keys=listed(tmp_path, rows[3]["md5"]))
    assert (found.samples, found.unknown) == ({"train": 1}, ())


def test_a_removal_in_a_bucket_is_the_one_on_disk(sources, bucket_url, tmp_path):
    found = []
    for url in (bucket_url, str(tmp_path / "out")):
        build_own(sources["annotated"], url, "tfrecord", options={"num_shards": 3})
        keys = keys_of(url)
        assert dataprep.remove(url, keys=listed(tmp_path, keys[0][0], keys[2][1])).samples == {"train": 2}
        assert verify_here(url).ok
        same = digests(url)
        found.append({name: same[name] for name in same if name != "dataset.json" and not name.startswith("removed/")})
    assert found[0] == found[1]
