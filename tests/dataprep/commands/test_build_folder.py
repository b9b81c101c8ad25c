"""`dataprep build folder` as a newcomer uses it: odd trees, what is said of them, and what becomes of them."""

import json
import shlex

import pytest

from tests.support.builds import dataprep, digests, refuses, succeeds
from tests.support.finished import verify_here
from tests.support.own_data import annotated, class_folders, picture, write_files

JPEG = picture(1)


def command(source, output, *more):
    return ["build", "folder", "--source", source, "--output", output, "--format", "webdataset", *more]


def test_what_the_user_says_is_recorded_and_a_rerun_does_nothing(tmp_path):
    source = annotated(tmp_path / "source")
    more = ["--name", "pets", "--licence", "CC0-1.0", "--origin", "my garden", "--val-fraction", "0.3", "--json"]
    built = succeeds(*command(source, tmp_path / "out", *more))
    found = json.loads(built.stdout)
    assert (found["name"], found["licence"], found["origin"]) == ("pets", "CC0-1.0", "my garden")
    assert [split["name"] for split in found["splits"]] == ["train", "val"]
    assert found["features"]["objects"]["columns"]["bbox"] == {"kind": "float64", "shape": [None, 4]}
    before = digests(tmp_path / "out")
    again = json.loads(dataprep(*command(source, tmp_path / "out", *more)).stdout)
    assert (again["shards_built"], digests(tmp_path / "out")) == (0, before)
    assert verify_here(tmp_path / "out", deep=True).verdict == "complete"
    shown = dataprep("inspect", tmp_path / "out").stdout
    assert "pets" in shown
    assert "objects (records of bbox, category, name)" in " ".join(shown.split())


def test_the_user_chooses_the_members_of_features(tmp_path):
    arguments = command(annotated(tmp_path / "source"), tmp_path / "out", "--workers", 1)
    chosen = ["--members", "caption=json", "--members", "year=year.txt", "--members", "objects=objects.json"]
    run = succeeds(*arguments, *chosen, "--json")
    features = json.loads(run.stdout)["features"]
    members = {name: each["member"] for name, each in features.items() if "member" in each}
    assert members == {"objects": "objects.json", "year": "year.txt"}
    assert verify_here(tmp_path / "out", deep=True).verdict == "complete"
    assert "--members is" in refuses(*arguments).stderr


def test_what_is_said_of_the_pictures_is_in_the_json_result_too(tmp_path):
    source = write_files(tmp_path / "pets", {"cat/1.jpg": JPEG, "dog/1.jpg": JPEG})
    (source / "emu").mkdir()
    lines = [
        "2 classes, one per folder: cat, dog (--label-from none for no labels)",
        "warning: 1 folder next to the classes without an image, so no class: 'emu'",
    ]
    for more in (["--dry-run"], ["--workers", 1]):
        run = succeeds(*command(source, tmp_path / "out", *more, "--json"))
        assert json.loads(run.stdout)["notes"] == lines


@pytest.mark.parametrize("by", ["column", "folder"])
def test_integers_that_get_other_labels_are_named_with_them(tmp_path, by):
    numbers = [5, 100, 12]
    names = [f"{number}/{number}.jpg" if by == "folder" else f"{number}.jpg" for number in numbers]
    files = dict.fromkeys(names, JPEG)
    if by == "column":
        files["metadata.csv"] = "file_name,label\n" + "".join(f"{number}.jpg,{number}\n" for number in numbers)
    run = succeeds(*command(write_files(tmp_path / "in", files), tmp_path / "out", "--workers", 1))
    listed = "005 is 0, 012 is 1, 100 is 2" if by == "column" else "100 is 0, 12 is 1, 5 is 2"
    line = f"labels are renumbered, 0 to 2 in the order of the names of the classes: {listed}; dataset.json lists the"
    assert line in run.stderr


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
        assert "Nothing was built or left behind (--dry-run)." in tried.stdout
        assert json.loads(documented.stdout)["refused"] == refused
        assert dataprep(*words, "--dry-run", "--overwrite").returncode == 0
    assert json.loads(dataprep(*same, "--dry-run", "--json").stdout)["refused"] is None
    assert digests(output) == before


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            ["--name", "imagenet"],
            "'imagenet' is the name of a dataset that dataprep builds; choose another with --name",
        ),
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
    run = refuses(*command(class_folders(tmp_path / "pets"), tmp_path / "out", *more))
    assert text in run.stderr


def test_pictures_that_imagenet_does_not_know_lead_to_this_command(tmp_path):
    for folder in ("train/cats", "cats"):
        source = write_files(tmp_path / folder.replace("/", "-"), {f"{folder}/1.jpg": JPEG})
        run = refuses("build", "imagenet", "--source", source, "--output", tmp_path / "out", "--format", "webdataset")
        words = shlex.split(run.stderr.rpartition("with: ")[2])
        assert words[:3] == ["dataprep", "build", "folder"]
        words[words.index("OUTPUT")] = str(tmp_path / f"out-{source.name}")
        succeeds(*words[1:], "--workers", "1")


def test_a_rejected_picture_is_named_as_the_user_knows_it_and_early(tmp_path):
    files = {f"{number}.jpg": picture(number) for number in range(8)} | {"süß 1.jpg": JPEG[:300], "b.png": JPEG[:300]}
    run = dataprep(*command(write_files(tmp_path / "in", files), tmp_path / "out", "--num-shards", 5, "--workers", 1))
    assert run.returncode == 1
    warnings = [line for line in run.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert warnings[0].startswith(("warning: süß 1.jpg is rejected (", "warning: b.png is rejected ("))
    assert "does not allow that: the build will end without a dataset" in warnings[0]
    assert "süß 1.jpg (undecodable)" in run.stderr and "b.png (undecodable)" in run.stderr
    again = succeeds(*command(tmp_path / "in", tmp_path / "out", "--num-shards", 5, "--max-reject-ratio", 0.2))
    assert "is complete: 8 samples without labels in" in again.stdout and "complete already" not in again.stdout
    third = dataprep(*command(tmp_path / "in", tmp_path / "out", "--num-shards", 5, "--max-reject-ratio", 0.2))
    assert "was already complete; nothing was done" in third.stdout


def test_what_was_found_is_said_once_where_remains_are_overwritten(tmp_path):
    source = write_files(tmp_path / "pets", {f"{kind}/1.jpg": picture(n) for n, kind in enumerate(("cat", "dog"))})
    arguments = command(source, tmp_path / "out", "--workers", 1)
    assert dataprep(*arguments).returncode == 0
    (tmp_path / "out/dataset.json").unlink()
    again = succeeds(*arguments, "--overwrite")
    assert again.stderr.count("2 classes, one per folder: cat, dog") == 1
