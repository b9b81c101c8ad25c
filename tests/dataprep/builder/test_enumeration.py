"""Which originals a build lists, and which list of an earlier run it takes: nothing that changed is passed over."""

import io
import json
import os
import re
import zipfile
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.builder.driver import prepare, refuse_output, run_build
from dataprep.builder.enumeration import (
    Keeping,
    enumeration_file,
    load_enumeration,
    load_note,
    load_splits,
    publish_enumeration,
    splits_file,
    spool_enumeration,
)
from dataprep.builder.growth import ARCHIVES
from dataprep.builder.plan import BuildOptions
from dataprep.dataset.features import Feature
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.records import Enumeration, SourceFile
from dataprep.errors import BuildError, SourceError, UsageError
from dataprep.sources import DATASETS, configured
from dataprep.sources.base import OwnData
from dataprep.storage import open_storage
from dataprep.storage.checksums import crc32c_of_bytes
from tests.support.build_here import Quiet, in_this_process, interrupted
from tests.support.builds import dataprep, refuses, succeeds
from tests.support.damage import flipped
from tests.support.own_data import Notes, class_folders, picture, planned, request, write_files
from tests.support.plans import refs_of, refs_table, small_plan

IMAGENET = DATASETS["imagenet"]


def store_enumeration(storage, name, enumeration):
    publish_enumeration(storage, name, spool_enumeration(storage, name, enumeration))


@pytest.fixture
def places(storage, tmp_path):
    """Originals, and the dataset."""
    source = open_storage(str(tmp_path / "originals"))
    source.create("x.tar", bytes(100))
    return source, storage


def found() -> Enumeration:
    return Enumeration(refs_of(small_plan((3,)), 0), [SourceFile("x.tar", 100)], ("n01440764", "n01443537"))


def loaded(output, source, name):
    """The stored enumeration, with its references as a list."""
    enumeration = load_enumeration(output, source, name, print).enumeration
    return replace(enumeration, refs=list(enumeration.refs))


def name_of(source, classes=None, **more):
    return enumeration_file(source, IMAGENET, "val", classes, **({"allow_partial": False} | more))


def test_stored_enumeration_is_read_back(places):
    source, output = places
    store_enumeration(output, name_of(source), found())
    store_enumeration(output, name_of(source), Enumeration([], [], ()))  # one that is there stays
    assert loaded(output, source, name_of(source)) == found()


def test_annotations_and_names_of_splits_come_back(places):
    source, output = places
    folder = configured("folder", own=OwnData(name="pets"))
    refs = [ref._replace(annotations=b'{"n":%d}' % number) for number, ref in enumerate(found().refs)]
    annotated = replace(found(), refs=refs, features={"n": Feature("int64")})
    store_enumeration(output, enumeration_file(source, folder, "train", None, allow_partial=False), annotated)
    name = enumeration_file(source, folder, "train", None, allow_partial=False)
    assert loaded(output, source, name) == annotated
    assert load_splits(output, splits_file(source, folder)) == ()
    output.create(splits_file(source, folder), b'["train", "val"]')
    assert load_splits(output, splits_file(source, folder)) == ("train", "val")
    for data in (b'["../x"]', b"{}", b"x", bytes(100_000)):
        output.create("other.json", data)
        assert load_splits(output, "other.json") == ()
        output.delete("other.json")
    other = configured("folder", own=OwnData(name="pets", val_fraction=0.5))
    assert splits_file(source, other) != splits_file(source, folder)


def test_enumerations_of_other_sources_or_options_have_other_names(places):
    source, output = places
    names = {name_of(source), name_of(output), name_of(source, ("a",)), name_of(source, allow_partial=True)}
    assert len(names) == 4
    assert load_enumeration(output, source, name_of(source), print) is None


def test_enumeration_of_an_archive_that_has_changed_is_removed(places):
    source, output = places
    store_enumeration(output, name_of(source), found())
    source.delete("x.tar")
    source.create("x.tar", bytes(101))
    assert load_enumeration(output, source, name_of(source), print) is None
    assert output.stat(name_of(source)) is None


def digest_file(name):
    return name.replace(".parquet", ".json")


def keep(output, name, data):
    """Keep a file as an enumeration, with its digest."""
    output.create(name, data)
    output.create(
        digest_file(name), json.dumps({"bytes": len(data), "crc32c": crc32c_of_bytes(data), "listed": "now"}).encode()
    )


def parquet(table):
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()


@pytest.mark.parametrize("data", [b"", b"PAR1", b"x" * 1000])
def test_damaged_enumeration_is_removed(places, data):
    source, output = places
    keep(output, name_of(source), data)
    assert load_enumeration(output, source, name_of(source), print) is None
    assert list(output.list()) == []


def test_flipped_bits_of_an_enumeration_are_noticed_and_said(tmp_path):
    source, output = (open_storage(str(tmp_path / name)) for name in ("originals", "out"))
    source.create("x.tar", bytes(100))
    name = name_of(source)
    store_enumeration(output, name, found())
    whole, digest = output.read(name), output.read(digest_file(name))
    damaged = [flipped(whole, bit) for bit in range(0, 8 * len(whole), 71)]
    for data in (*damaged, whole[:-1], whole[: len(whole) // 2], b""):
        lines: list[str] = []
        output.delete(name)
        output.create(name, data)
        assert load_enumeration(output, source, name, lines.append) is None
        assert len(lines) == 1
        assert f"{name} is damaged (" in lines[0]
        assert list(output.list()) == []
        output.create(digest_file(name), digest)


@pytest.mark.parametrize("digest", [b"", b"{}", b'{"bytes": 1, "crc32c": "x"}', bytes(100_000)])
def test_an_enumeration_whose_digest_is_damaged_is_removed(places, digest):
    source, output = places
    name = name_of(source)
    store_enumeration(output, name, found())
    output.delete(digest_file(name))
    output.create(digest_file(name), digest)
    assert load_enumeration(output, source, name, print) is None
    assert list(output.list()) == []


def test_an_enumeration_whose_digest_was_not_yet_stored_is_listed_again_without_a_word(places):
    """An earlier version stored none, and a process may be killed in between."""
    source, output = places
    store_enumeration(output, name_of(source), found())
    output.delete(digest_file(name_of(source)))
    lines: list[str] = []
    assert load_enumeration(output, source, name_of(source), lines.append) is None
    assert (lines, list(output.list())) == ([], [])
    store_enumeration(output, name_of(source), found())
    assert loaded(output, source, name_of(source)) == found()


def test_an_enumeration_with_missing_values_or_too_many_rows_is_removed(places, monkeypatch):
    source, output = places
    table = refs_table(found().refs)
    labels = pa.array([None] * 3, pa.int32())
    metadata = {"sources": "[]", "classes": "[]"}
    holes = table.set_column(4, "label", labels).replace_schema_metadata(metadata)
    keep(output, name_of(source), parquet(holes))
    assert load_enumeration(output, source, name_of(source), print) is None
    store_enumeration(output, name_of(source), found())
    monkeypatch.setattr("dataprep.builder.enumeration.MAX_SAMPLES", 2)
    assert load_enumeration(output, source, name_of(source), print) is None
    assert output.stat(name_of(source)) is None


def test_an_enumeration_in_one_piece_is_read(places):
    source, output = places
    table = refs_table(found().refs)
    metadata = {"sources": json.dumps([{"name": "x.tar", "num_bytes": 100}]), "classes": json.dumps(found().classes)}
    keep(output, name_of(source), parquet(table.replace_schema_metadata(metadata)))
    assert loaded(output, source, name_of(source)) == found()


NAME, LISTING = "_build/splits-0123.json", "_build/listing-0123.json"
FOUND = "ab" * 32


def test_what_was_listed_is_there_once_it_is_waited_for(storage):
    keeping = Keeping(storage, is_empty=True)
    keeping.note(NAME, b'["train", "val"]')
    keeping.note(LISTING, FOUND.encode())
    keeping.wait()
    assert load_splits(storage, NAME) == ("train", "val")
    assert load_note(storage, LISTING) == FOUND.encode()


def test_nothing_is_allowed_beside_a_finished_dataset(storage):
    keeping = Keeping(storage)
    assert keeping.is_allowed()
    storage.create(MANIFEST, b"{}")
    assert not keeping.is_allowed()


def test_without_an_output_nothing_is_stored():
    keeping = Keeping(None)
    keeping.note(NAME, b'["train"]')
    keeping.note(LISTING, FOUND.encode())
    keeping.wait()
    assert not keeping.is_allowed() and not keeping.is_under_way()


def test_a_rerun_of_own_data_lists_nothing_again_unless_the_source_has_changed_or_it_starts_over(tmp_path):
    source, output = class_folders(tmp_path / "pets"), tmp_path / "out"

    def plan_and_notes(**more):
        notes = Notes()
        planned = ARCHIVES.plan(replace(request(source, output), **more), notes, keep=True)
        planned.kept()
        return planned.plan, notes.lines

    first, listed = plan_and_notes()
    assert any("one per folder" in line for line in listed)
    assert plan_and_notes() == (first, [])
    (source / "train/cats/cat 0.jpeg").unlink()
    second, listed_again = plan_and_notes()
    assert listed_again == listed
    assert sum(second.splits[0].shard_samples) == sum(first.splits[0].shard_samples) - 1
    assert plan_and_notes() == (second, [])
    assert plan_and_notes(overwrite=True) == (second, listed)
    assert plan_and_notes() == (second, [])


def test_a_rerun_in_a_bucket_lists_nothing_again_that_was_listed_for_an_empty_output(tmp_path, bucket_url):
    source = class_folders(tmp_path / "pets")
    first = ARCHIVES.plan(request(source, bucket_url), Quiet(), keep=True, is_empty=True)
    first.kept()
    assert first.plan.options.splits == ("train", "val")
    kept = [info.name.removeprefix("_build/").split("-") for info in open_storage(bucket_url).list("_build/")]
    assert [name[0] for name in kept] == ["listing", *["source"] * 5]
    names = sorted(name[1] for name in kept[1:])
    assert names == ["splits", "train", "train", "val", "val"]
    notes = Notes()
    assert ARCHIVES.plan(request(source, bucket_url), notes, keep=True).plan == first.plan
    assert notes.lines == []


def test_splits_of_own_data_are_those_that_are_there_or_those_asked_for(tmp_path):
    source = class_folders(tmp_path / "pets")
    assert planned(source).options.splits == ("train", "val")
    assert planned(source, splits=("val",)).options.splits == ("val",)
    with pytest.raises(UsageError, match="`split` test: pets has train and val"):
        planned(source, splits=("test",))


FILES = {
    f"{kind}/{number}.jpg": picture(number + first)
    for kind, first in {"cat": 0, "dog": 10}.items()
    for number in range(1, 5)
}
"""Eight pictures of two classes."""
AGAIN = "The originals have changed since: choose another `output`, or begin again with `overwrite`"


def go_on(asked):
    """The same command again; its notes."""
    notes = Notes()
    run_build(asked, in_this_process, notes)
    return notes.lines


def refused(asked):
    """What the build says, and a dry run says as well."""
    with pytest.raises(UsageError) as real:
        go_on(asked)
    plan = prepare(asked, Notes(), keep=False).plan
    with pytest.raises(UsageError) as dry:
        refuse_output(asked, plan)
    assert str(real.value) == str(dry.value)
    return str(real.value)


@pytest.fixture
def source(tmp_path):
    return write_files(tmp_path / "pets", FILES)


@pytest.fixture
def asked(source, tmp_path):
    return request(source, tmp_path / "out")


def test_a_source_that_stays_goes_on_without_a_word_of_it(asked):
    interrupted(asked)
    assert not [line for line in go_on(asked) if "changed" in line or "listing" in line]


def test_pictures_that_were_added_or_removed_are_not_passed_over(source, asked):
    interrupted(asked)
    write_files(source, {"cat/5.jpg": picture(50)})
    text = refused(asked)
    assert "a build with another plan is under way there: train has 8 images there, 9 here" in text
    assert text.endswith(AGAIN)
    assert refused(asked) == text  # also the next time
    (source / "cat/5.jpg").unlink()
    (source / "cat/1.jpg").unlink()
    assert "train has 8 images there, 7 here" in refused(asked)


def test_a_new_split_is_seen(tmp_path):
    source = write_files(tmp_path / "pets", {f"train/{path}": data for path, data in FILES.items()})
    asked = request(source, tmp_path / "out")
    interrupted(asked)
    write_files(source, {"val/cat/1.jpg": picture(50), "val/dog/1.jpg": picture(51)})
    assert "val is only here, with 2 images" in refused(asked)


def test_overwriting_lists_again(source, asked):
    interrupted(asked)
    write_files(source, {"cat/5.jpg": picture(50)})
    manifest = run_build(replace(asked, overwrite=True), in_this_process, Notes()).manifest
    assert sum(split.samples for split in manifest.splits) == 9


@pytest.mark.parametrize("dataset", ["folder", "table"])
def test_a_picture_of_another_size_is_another_plan(source, tmp_path, dataset):
    if dataset == "table":
        write_files(source, {"table.csv": "file_name,label\n" + "".join(f"{path},{path[:3]}\n" for path in FILES)})
    asked = request(source, tmp_path / "out", dataset=dataset)
    interrupted(asked)
    write_files(source, {"cat/1.jpg": picture(1, size=(80, 80))})
    assert re.search("files in folders have together [0-9,]+ bytes there, [0-9,]+ here", refused(asked))


def test_a_file_that_is_no_picture_does_not_matter(source, asked):
    interrupted(asked)
    write_files(source, {"notes.txt": "mine"})
    go_on(asked)


@pytest.mark.parametrize("kind", ["folder", "table", "zip", "coco"])
@pytest.mark.parametrize("how", ["written", "replaced"])
def test_originals_replaced_by_others_of_the_same_size_are_refused(tmp_path, kind, how):
    """With their old times: only the time of the last change of a file's status tells."""
    source = write_files(tmp_path / "in", bitmaps(kind, 0))
    asked = request(source, tmp_path / "out", dataset="table" if kind == "table" else "folder")
    if kind == "coco":
        options = BuildOptions(
            dataset="coco", format="webdataset", splits=("val",), num_shards=2, allow_partial=True, annotations=()
        )
        asked = replace(asked, options=options)
    interrupted(asked)
    for name, data in bitmaps(kind, 100).items():
        path, before = source / name, (source / name).stat()
        assert before.st_size == len(data)
        if how == "replaced":
            path.unlink()
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(SourceError, match=r"written again, replaced or touched since it was listed.*`overwrite`"):
        go_on(asked)
    manifest = run_build(replace(asked, overwrite=True), in_this_process, Notes()).manifest
    assert sum(split.samples for split in manifest.splits) == 8


def bitmaps(kind, first):
    """Eight pictures of one size, as files, with a table or in a zip."""
    files = {f"{'cat' if n % 2 else 'dog'}/{n}.bmp": picture(n + first, "BMP") for n in range(8)}
    if kind == "folder":
        return files
    if kind == "table":
        return files | {"t.csv": b"image,label\n" + b"".join(f"{name},{name[:3]}\n".encode() for name in files)}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number, (name, data) in enumerate(files.items()):
            if kind == "coco":
                name, data = f"val2017/{number}.jpg", picture(number + first).ljust(1000, b"\0")
            archive.writestr(name, data)
    return {"val2017.zip" if kind == "coco" else "p.zip": packed.getvalue()}


def test_originals_are_compared_once_more_before_the_manifest(source, asked):
    """All shards are done, one with an original that is written again before the manifest."""

    def writes_at_the_end(job, indexes):
        yield from in_this_process(job, indexes)
        write_files(source, {"cat/1.jpg": FILES["cat/1.jpg"]})

    with pytest.raises(SourceError, match=r"cat/1\.jpg: written again"):
        run_build(asked, writes_at_the_end, Notes())


def test_archives_that_were_added_are_seen(tmp_path):
    source = tmp_path / "zips"
    source.mkdir()
    for name in ("cat", "dog"):
        with zipfile.ZipFile(source / f"{name}.zip", "w") as archive:
            for path, data in FILES.items():
                if path.startswith(name):
                    archive.writestr(path.partition("/")[2], data)
    asked = request(source, tmp_path / "out")
    interrupted(asked)
    with zipfile.ZipFile(source / "fox.zip", "w") as archive:
        archive.writestr("1.jpg", picture(70))
    assert "train has 8 images there, 9 here" in refused(asked)


def test_class_folders_of_imagenet_are_compared(tmp_path):
    files = {f"train/n01440764/n01440764_{number}.JPEG": picture(number) for number in range(8)}
    source = write_files(tmp_path / "imagenet", files)
    options = BuildOptions(dataset="imagenet", format="webdataset", splits=("train",), num_shards=2, allow_partial=True)
    asked = replace(request(source, tmp_path / "out"), options=options)
    interrupted(asked)
    write_files(source, {"train/n01440764/n01440764_9.JPEG": picture(9)})
    assert "train has 8 images there, 9 here" in refused(asked)


def test_a_listing_of_a_bucket_is_named_with_its_time(bucket_url, tmp_path):
    bucket = open_storage(f"{bucket_url}/in")
    for name, data in FILES.items():
        bucket.create(name, data)
    asked = request(bucket.url, tmp_path / "out")
    interrupted(asked)
    bucket.create("cat/5.jpg", picture(50))
    [line] = [line for line in go_on(asked) if "listing" in line]
    assert "continuing with the listing of 20" in line and "UTC" in line
    assert line.endswith("pictures added since are not seen (`overwrite` lists again)")


def test_the_advice_after_rejections_is_true(source, tmp_path):
    write_files(source, {"cat/broken.jpg": b"no picture"})
    command = ["build", "folder", "--source", source, "--output", tmp_path / "out", "--format", "webdataset"]
    first = dataprep(*command, "--workers", 1)
    assert first.returncode == 1
    assert "Correct the originals, then build with --overwrite, or run the same command with" in first.stderr
    (source / "cat/broken.jpg").unlink()
    again = refuses(*command, "--workers", 1, "--max-reject-ratio", 0.2)
    assert (
        "train has 9 images there, 8 here" in again.stderr
        and AGAIN.replace("`output`", "--output").replace("`overwrite`", "--overwrite") in again.stderr
    )
    last = succeeds(*command, "--workers", 1, "--overwrite")
    assert "is complete: 8 samples" in last.stdout


def test_the_ratio_that_is_named_suffices_for_all_splits(tmp_path):
    good = {f"{split}/{number}.jpg": picture(number) for split in ("train", "test") for number in range(6)}
    bad = {"train/x.jpg": b"no picture", "test/y.jpg": b"none", "test/z.jpg": b"none either"}
    source = write_files(tmp_path / "in", good | bad)
    asked = replace(request(source, tmp_path / "out"), max_reject_ratio=0)
    with pytest.raises(BuildError) as error:
        go_on(asked)
    text = str(error.value)
    assert "train: 1 of 7 images were rejected, allowed are 0 (`max_reject_ratio` 0): train/x.jpg (undecod" in text
    assert "; test: 2 of 8 images were rejected, allowed are 0: test/" in text
    ratio = float(text.partition("`max_reject_ratio` ")[2].partition("`max_reject_ratio` ")[2].partition(":")[0])
    assert 0.25 <= ratio < 0.26
    go_on(replace(asked, max_reject_ratio=ratio))
