"""A build that goes on compares its source with what it listed: nothing that changed is passed over."""

import io
import os
import re
import zipfile
from dataclasses import replace

import pytest

from dataprep.builder.driver import prepare, refuse_output, run_build
from dataprep.builder.plan import BuildOptions
from dataprep.errors import BuildError, SourceError, UsageError
from dataprep.storage import open_storage
from tests.support.build_here import in_this_process, interrupted
from tests.support.builds import dataprep, refuses, succeeds
from tests.support.own_data import Notes, picture, request, write_files

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


def test_a_picture_of_another_size_is_another_plan(source, asked):
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


def test_images_of_a_table_are_compared(tmp_path):
    rows = "file_name,label\n" + "".join(f"{path},{path[:3]}\n" for path in FILES)
    source = write_files(tmp_path / "pets", FILES | {"table.csv": rows})
    asked = request(source, tmp_path / "out", dataset="table")
    interrupted(asked)
    write_files(source, {"cat/1.jpg": picture(1, size=(80, 80))})
    assert re.search("files in folders have together [0-9,]+ bytes there, [0-9,]+ here", refused(asked))


def test_class_folders_of_imagenet_are_compared(tmp_path):
    files = {f"train/n01440764/n01440764_{number}.JPEG": picture(number) for number in range(8)}
    source = write_files(tmp_path / "imagenet", files)
    asked = request(source, tmp_path / "out")
    options = BuildOptions(dataset="imagenet", format="webdataset", splits=("train",), num_shards=2, allow_partial=True)
    asked = replace(asked, options=options)
    interrupted(asked)
    go = "train/n01440764/n01440764_{}.JPEG"
    write_files(source, {go.format(9): picture(9)})
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
