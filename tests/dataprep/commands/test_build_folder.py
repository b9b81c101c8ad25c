"""`dataprep build folder` as a newcomer uses it: odd trees, what is said of them, and what becomes of them."""

from __future__ import annotations

import gzip
import json
import shlex
import zipfile

import pytest

from dataprep.dataset.manifest import read_manifest
from dataprep.storage import open_storage
from tests.support.builds import dataprep, digests
from tests.support.own_data import annotated, class_folders, picture, write_files

JPEG = picture(1)
TREES = {
    "flat": ({"1.jpg": JPEG, "2.jpeg": JPEG, "3.png": picture(3, "PNG")}, 3, [], ""),
    "classes": ({"cat/1.jpg": JPEG, "dog/1.jpg": JPEG}, 2, ["cat", "dog"], "2 classes, one per folder: cat, dog"),
    "by date": ({"2023/05/1.jpg": JPEG, "2024/1.jpg": JPEG}, 2, [], "1 of 2 images are not in a class folder"),
    "one class": ({"cat/1.jpg": JPEG, "cat/2.jpg": JPEG}, 2, [], "all images are in the one folder cat"),
    "mixed": (
        {"1.jpg": JPEG, "a/2.jpg": JPEG, "notes.txt": b"", ".x/1.jpg": b""},
        2,
        [],
        "passed over: 1 .txt",
    ),
}


def command(source, output, *more):
    return ["build", "folder", "--source", source, "--output", output, "--format", "webdataset", *more]


@pytest.mark.parametrize("name", TREES)
def test_odd_trees_are_built_and_whole(tmp_path, name):
    files, samples, classes, note = TREES[name]
    source = write_files(tmp_path / "My Pictures", files)
    run = dataprep(*command(source, tmp_path / "shards", "--workers", 1))
    assert run.returncode == 0, run.stderr
    assert note in run.stderr
    manifest = read_manifest(open_storage(str(tmp_path / "shards")))
    assert (manifest.name, list(manifest.classes)) == ("my-pictures", classes)
    assert sum(split.samples for split in manifest.splits) == samples
    assert (tmp_path / "shards/train/my-pictures-train-00000-of-00001.tar").exists()


def test_what_the_user_says_is_recorded_and_a_rerun_does_nothing(tmp_path):
    source = annotated(tmp_path / "source")
    more = ["--name", "pets", "--licence", "CC0-1.0", "--origin", "my garden", "--val-fraction", "0.3", "--json"]
    built = dataprep(*command(source, tmp_path / "out", *more))
    assert built.returncode == 0, built.stderr
    found = json.loads(built.stdout)
    assert (found["name"], found["licence"], found["origin"]) == ("pets", "CC0-1.0", "my garden")
    assert [split["name"] for split in found["splits"]] == ["train", "val"]
    assert found["features"]["objects"]["columns"]["bbox"] == {"kind": "float64", "shape": [None, 4]}
    before = digests(tmp_path / "out")
    again = json.loads(dataprep(*command(source, tmp_path / "out", *more)).stdout)
    assert (again["shards_built"], digests(tmp_path / "out")) == (0, before)
    assert dataprep("verify", tmp_path / "out", "--deep").returncode == 0
    shown = dataprep("inspect", tmp_path / "out").stdout
    assert "pets" in shown
    assert "objects (records of bbox, category, name)" in " ".join(shown.split())


def test_what_is_said_of_the_pictures_is_in_the_json_result_too(tmp_path):
    source = write_files(tmp_path / "pets", {"cat/1.jpg": JPEG, "dog/1.jpg": JPEG})
    (source / "emu").mkdir()
    lines = [
        "2 classes, one per folder: cat, dog (--label-from none for no labels)",
        "warning: 1 folder beside the classes without an image, so no class: 'emu'",
    ]
    for more in (["--dry-run"], ["--workers", 1]):
        run = dataprep(*command(source, tmp_path / "out", *more, "--json"))
        assert run.returncode == 0, run.stderr
        assert json.loads(run.stdout)["notes"] == lines


@pytest.mark.parametrize("by", ["column", "folder"])
def test_integers_that_get_other_labels_are_named_with_them(tmp_path, by):
    numbers = [5, 100, 12]
    names = [f"{number}/{number}.jpg" if by == "folder" else f"{number}.jpg" for number in numbers]
    files = dict.fromkeys(names, JPEG)
    if by == "column":
        files["metadata.csv"] = "file_name,label\n" + "".join(f"{number}.jpg,{number}\n" for number in numbers)
    run = dataprep(*command(write_files(tmp_path / "in", files), tmp_path / "out", "--workers", 1))
    assert run.returncode == 0, run.stderr
    listed = "005 is 0, 012 is 1, 100 is 2" if by == "column" else "100 is 0, 12 is 1, 5 is 2"
    line = f"labels are renumbered, 0 to 2 in the order of the names of the classes: {listed}; dataset.json lists the"
    assert line in run.stderr


def test_one_archive_beside_the_output(tmp_path):
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        for name in ("pets/cats/1.jpg", "pets/dogs/1.jpg"):
            archive.writestr(name, JPEG)
    run = dataprep(*command(tmp_path / "pets.zip", tmp_path / "out", "--workers", 1))
    assert run.returncode == 0, run.stderr
    manifest = read_manifest(open_storage(str(tmp_path / "out")))
    assert (manifest.name, manifest.classes, manifest.splits[0].samples) == ("pets", ("cats", "dogs"), 2)


@pytest.mark.parametrize("name", ["pets.tar.gz", "pets.TGZ", "pets.7z"])
def test_one_compressed_archive_is_called_that(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(JPEG))
    run = dataprep(*command(tmp_path / name, tmp_path / "out", "--dry-run"))
    assert run.returncode == 2
    text = "a compressed archive, in which images cannot be read in place; unpack it, and give the folder as --source"
    assert run.stderr == f"dataprep: {tmp_path / name}: {text}\n"


def test_a_dry_run_says_what_was_found_and_writes_nothing(tmp_path):
    run = dataprep(*command(class_folders(tmp_path / "pets"), tmp_path / "out", "--dry-run"))
    assert run.returncode == 0, run.stderr
    assert "passed over: 1 .docx, 1 .txt" in run.stderr
    assert "pets as webdataset" in run.stdout
    assert "train: 14 samples in 1 shard, about" in run.stdout
    assert not (tmp_path / "out").exists()


def test_pictures_beside_a_table_of_their_labels_are_said_to_have_none(tmp_path):
    files = {"1.jpg": JPEG, "2.jpg": JPEG, "labels.csv": "file,label\n1.jpg,cat\n2.jpg,dog\n"}
    source = write_files(tmp_path / "photos", files)
    table = ["build", "table", "--source", source / "labels.csv"]
    planned = dataprep(*command(source, tmp_path / "out", "--dry-run"))
    assert "\n  labels: none\n" in planned.stdout
    assert shlex.join(["dataprep", *map(str, table)]) in planned.stderr
    built = dataprep(*command(source, tmp_path / "out", "--workers", 1))
    assert " is whole: 2 samples without labels in " in built.stdout
    labelled = dataprep(*table, "--output", tmp_path / "labelled", "--format", "webdataset", "--workers", 1)
    assert " is whole: 2 samples in " in labelled.stdout
    assert read_manifest(open_storage(str(tmp_path / "labelled"))).classes == ("cat", "dog")


def test_a_dry_run_ends_as_the_build_would_where_another_dataset_exists(tmp_path):
    source, output = class_folders(tmp_path / "pets"), tmp_path / "out"
    same = command(source, output, "--workers", 1)
    assert dataprep(*same).returncode == 0
    before = digests(output)
    more = write_files(tmp_path / "more/pets", {f"cats/{number}.jpg": picture(number) for number in range(3)})
    others = {
        "--resize is not given there, 64 here": [*same, "--resize", "64"],
        "train has 14 images there, 3 here": command(more, output, "--label-from", "none"),
    }
    for difference, words in others.items():
        built, tried, documented = (
            dataprep(*words),
            dataprep(*words, "--dry-run"),
            dataprep(*words, "--dry-run", "--json"),
        )
        assert built.returncode == tried.returncode == documented.returncode == 2
        assert f"dataprep: {output}: another dataset exists there already (pets, webdataset" in built.stderr
        assert difference in built.stderr
        refused = built.stderr.splitlines()[-1].replace("dataprep: ", "the build would be refused: ", 1)
        assert tried.stderr.splitlines()[-1] == f"dataprep: {refused}"
        assert "Nothing was built, and nothing is left behind (--dry-run)." in tried.stdout
        assert json.loads(documented.stdout)["refused"] == refused
        assert dataprep(*words, "--dry-run", "--overwrite").returncode == 0
    assert json.loads(dataprep(*same, "--dry-run", "--json").stdout)["refused"] is None
    assert digests(output) == before


def test_a_dry_run_ends_as_the_build_would_where_other_files_lie(tmp_path):
    source = class_folders(tmp_path / "pets")
    write_files(tmp_path / "out", {"notes.txt": b"mine"})
    run = dataprep(*command(source, tmp_path / "out", "--dry-run"))
    assert run.returncode == 2
    assert "the build would be refused: " in run.stderr
    assert "is not empty and holds no dataset of ours (found notes.txt)" in run.stderr


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            ["--name", "imagenet"],
            "'imagenet' is the name of a dataset that dataprep builds; choose another with --name",
        ),
        (["--name", "My Pets"], "expected lower-case letters, digits and '-'"),
        (["--default", "age"], "expected COLUMN=VALUE"),
        (["--split", "training"], "--split training: expected one of train, val, test"),
        (["--split", "test"], "--split test"),
        (["--val-fraction", "1"], "is not in the range 0<=x<1"),
        (["--group-by", "patient"], "it needs --val-fraction"),
        (["--exclude", "a/b.jpg"], "--exclude a/b.jpg: expected a suffix or the name of a file"),
        (["--text-files", "caption", "--exclude", ".TXT"], "--exclude txt leaves out the files that --text-files"),
        (["--text-files", "c=json", "--exclude", "*.json"], "--text-files c stores; leave one of the two out"),
    ],
)
def test_options_that_are_refused(tmp_path, more, text):
    run = dataprep(*command(class_folders(tmp_path / "pets"), tmp_path / "out", *more))
    assert run.returncode == 2
    assert text in run.stderr
    assert "Traceback" not in run.stderr


def test_pictures_that_imagenet_does_not_know_lead_to_this_command(tmp_path):
    for folder in ("train/cats", "cats"):
        source = write_files(tmp_path / folder.replace("/", "-"), {f"{folder}/1.jpg": JPEG})
        run = dataprep("build", "imagenet", "--source", source, "--output", tmp_path / "out", "--format", "webdataset")
        assert run.returncode == 2
        words = shlex.split(run.stderr.rpartition("with: ")[2])
        assert words[:3] == ["dataprep", "build", "folder"]
        words[words.index("OUTPUT")] = str(tmp_path / f"out-{source.name}")
        built = dataprep(*words[1:], "--workers", "1")
        assert built.returncode == 0, built.stderr


def test_two_files_of_one_name_are_both_named(tmp_path):
    source = write_files(tmp_path / "pets", {"cats/felix.jpg": JPEG, "cats/felix.png": JPEG})
    run = dataprep(*command(source, tmp_path / "out"))
    assert run.returncode == 2
    assert "cats/felix.jpg" in run.stderr
    assert "cats/felix.png" in run.stderr


def test_an_image_folder_has_one_folder_a_class(tmp_path):
    rows = "file_name,label\na/1.jpg,cat\nb/1.jpg,cat\n"
    source = write_files(tmp_path / "pets", {"a/1.jpg": JPEG, "b/1.jpg": JPEG, "metadata.csv": rows})
    arguments = command(source, tmp_path / "out", "--workers", 1)
    arguments[arguments.index("webdataset")] = "imagefolder"
    run = dataprep(*arguments)
    assert run.returncode == 2
    assert "a/1.jpg and b/1.jpg would both be train/cat/1.jpg in an image folder" in run.stderr


def test_a_rejected_picture_is_named_as_the_user_knows_it_and_early(tmp_path):
    files = {f"{number}.jpg": picture(number) for number in range(8)} | {"süß 1.jpg": JPEG[:300], "b.png": JPEG[:300]}
    run = dataprep(*command(write_files(tmp_path / "in", files), tmp_path / "out", "--num-shards", 5, "--workers", 1))
    assert run.returncode == 1
    warnings = [line for line in run.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert warnings[0].startswith(("warning: süß 1.jpg is rejected (", "warning: b.png is rejected ("))
    assert "does not allow that: the build will end without a dataset" in warnings[0]
    assert "süß 1.jpg (undecodable)" in run.stderr and "b.png (undecodable)" in run.stderr
    again = dataprep(*command(tmp_path / "in", tmp_path / "out", "--num-shards", 5, "--max-reject-ratio", 0.2))
    assert again.returncode == 0, again.stderr
    assert "is whole: 8 samples without labels in" in again.stdout and "whole already" not in again.stdout
    third = dataprep(*command(tmp_path / "in", tmp_path / "out", "--num-shards", 5, "--max-reject-ratio", 0.2))
    assert "was whole already; nothing was done" in third.stdout


def test_a_build_over_damaged_contents_says_that_it_did_not_compare_them(tmp_path):
    words = command(class_folders(tmp_path / "pets"), tmp_path / "out", "--workers", 1)
    assert dataprep(*words).returncode == 0
    shard = min((tmp_path / "out" / "train").glob("*.tar"))
    data = bytearray(shard.read_bytes())
    data[600] ^= 1
    shard.write_bytes(data)
    again = dataprep(*words)
    assert (again.returncode, again.stdout.splitlines()[-1]) == (
        0,
        f"{tmp_path / 'out'} was whole already; nothing was done. The contents were not compared; check them with: "
        f"dataprep verify {tmp_path / 'out'}",
    )
    assert dataprep("verify", tmp_path / "out").returncode == 1


def test_what_was_found_is_said_once_where_remains_are_overwritten(tmp_path):
    source = write_files(tmp_path / "pets", {f"{kind}/1.jpg": picture(n) for n, kind in enumerate(("cat", "dog"))})
    arguments = command(source, tmp_path / "out", "--workers", 1)
    assert dataprep(*arguments).returncode == 0
    (tmp_path / "out/dataset.json").unlink()
    again = dataprep(*arguments, "--overwrite")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("2 classes, one per folder: cat, dog") == 1
