"""`dataprep adopt`: what it prints of data that are found, adopted, adopted already, changed or damaged."""

import json
import re

import pytest
from click.testing import Result

from dataprep.cli import group
from dataprep.errors import UsageError
from tests.support.adoption import image_of, tar_of
from tests.support.builds import invoked, succeeds
from tests.support.pages import Page


@pytest.fixture
def folder(tmp_path):
    """An image folder of two splits, which is read in this process."""
    root = tmp_path / "photos"
    for number in range(5):
        write_image(root, "train" if number < 3 else "val", number)
    return root


def write_image(root, split, number):
    path = root / split / "ab"[number % 2] / f"{number}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image_of(number))


def run(*words: object) -> Result:
    return invoked(group, *words)


def test_a_dry_run_says_what_was_found_and_writes_nothing(folder):
    found = json.loads(run("adopt", folder, "--dry-run", "--json").stdout)
    sizes = {split: sum(path.stat().st_size for path in (folder / split).rglob("*.jpg")) for split in ("train", "val")}
    assert found == {
        "url": str(folder),
        "kind": "imagefolder",
        "format": "imagefolder",
        "splits": [{"name": name, "shards": 1, "bytes": num_bytes} for name, num_bytes in sizes.items()],
    }
    assert not (folder / "dataset.json").exists()


@pytest.mark.parametrize(("labels", "form"), [({"cls": b"cat"}, "text"), ({"cls": b"3"}, "number"), ({}, "none")])
def test_a_dry_run_says_what_the_first_shard_holds(tmp_path, labels, form):
    members = []
    for number in range(3):
        captions = {"txt": b"a caption"} if number else {}
        parts = {"jpg": image_of(number), **labels, **captions}
        members += [(f"{number}.{suffix}", data) for suffix, data in parts.items()]
    tar_of(tmp_path / "a.tar", members)
    tar_of(tmp_path / "b.tar", members[:1])
    found = json.loads(run("adopt", tmp_path, "--dry-run", "--json").stdout)
    assert found["first_shard"]["labels"] == form
    assert (found["first_shard"]["file"], found["first_shard"]["samples"]) == ("a.tar", 3)
    assert found["first_shard"]["fields"]["txt"] == 2
    text = run("adopt", tmp_path, "--dry-run").stdout
    assert f"  in a.tar: 3 images; labels: {form}; fields: " in text and "txt (2 of 3 images)" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "b.tar"]
    ignored = json.loads(run("adopt", tmp_path, "--dry-run", "--json", "--labels", "none").stdout)
    assert ignored["first_shard"]["labels"] == "none"


def test_what_was_adopted_is_said_now_and_again(folder, tmp_path):
    words = ("adopt", folder, "--index", tmp_path / "index")
    found = json.loads(run(*words, "--json").stdout)
    assert (found["already"], found["classes"], found["revision"]) == (False, 2, 1)
    assert [(split["name"], split["samples"], split["rejected"]) for split in found["splits"]] == [
        ("train", 3, {}),
        ("val", 2, {}),
    ]
    again = run(*words).stdout
    assert "2 classes exists already; read it again with --overwrite\n" in again
    assert "  train: 3 images in 1 shard, " in again
    assert run("inspect", tmp_path / "index").exit_code == 0
    assert run("verify", tmp_path / "index").exit_code == 0


@pytest.fixture
def pairs(tmp_path):
    """A tar of two images with captions, one of which has a score and neither of which has a label."""
    documents = [b'{"score": 1, "height": 4, "empty": null}', b"{}"]
    members = [
        (f"{number}.{suffix}", data)
        for number, document in enumerate(documents)
        for suffix, data in (("jpg", image_of(number)), ("txt", b"a cat"), ("json", document))
    ]
    (tmp_path / "pairs").mkdir()
    tar_of(tmp_path / "pairs/a.tar", members)
    return tmp_path / "pairs"


def test_the_fields_of_adopted_data_are_listed(pairs):
    first = json.loads(run("adopt", pairs, "--json").stdout)
    assert (first["fields"], first["classes"], first["notes"]) == ({"score": 1, "txt": 2}, 0, [])
    assert "  fields: score (1 of 2 images), txt\n" in run("adopt", pairs).stdout
    assert json.loads(run("inspect", pairs, "--json").stdout)["fields"] == {"score": 1, "txt": 2}
    assert re.search(r"fields +score \(1 of 2 images\), txt *\n", run("inspect", pairs).stdout)


@pytest.fixture
def half_labelled(tmp_path):
    """A tar of six images, three of which have a label."""
    members = [(f"{number}.jpg", image_of(number)) for number in range(6)]
    for number in (4, 2, 0):
        members.insert(number + 1, (f"{number}.cls", b"cat" if number else b"dog"))
    (tmp_path / "half").mkdir()
    tar_of(tmp_path / "half/a.tar", members)
    return tmp_path / "half"


def test_labels_that_only_some_images_have_are_counted(half_labelled, pairs):
    text = run("adopt", half_labelled, "--dry-run").stdout
    assert "  in a.tar: 6 images; labels: text (3 of 6 images); fields: " in text
    assert json.loads(run("adopt", half_labelled, "--dry-run", "--json").stdout)["first_shard"]["labelled"] == 3
    line = "\n  labels: 3 of 6 images have one\n"
    assert line in run("adopt", half_labelled).stdout
    assert line in run("adopt", half_labelled).stdout
    assert json.loads(run("adopt", half_labelled, "--json").stdout)["labelled"] == 3
    assert re.search(r"labels +3 of 6 images have one *\n", run("inspect", half_labelled).stdout)
    assert json.loads(run("inspect", half_labelled, "--json").stdout)["labelled"] == 3
    assert "  labels: " not in run("adopt", pairs).stdout
    assert json.loads(run("inspect", pairs, "--json").stdout)["labelled"] == 0


def test_the_page_shows_fields_and_how_many_images_have_a_label(half_labelled, pairs, tmp_path):
    cases = ((half_labelled, ["Labels", "3 of 6 images have one"]), (pairs, ["Fields", "score (1 of 2 images), txt"]))
    for data, facts in cases:
        run("adopt", data)
        run("inspect", data, "--html", tmp_path / "page.html")
        texts = [text.strip() for text in Page((tmp_path / "page.html").read_text()).texts if text.strip()]
        found = texts.index(facts[0])
        assert texts[found : found + 2] == facts
        assert ("Labels" in texts) == (data is half_labelled)


def test_lines_about_labels_are_in_the_json_result(pairs):
    done = succeeds("adopt", pairs, "--labels", "txt", "--index", pairs.parent / "index", "--workers", 1)
    assert "labels are text: 1 class, sorted by name\n" in done.stderr
    words = ("adopt", pairs, "--labels", "txt", "--index", pairs.parent / "other", "--json")
    assert json.loads(run(*words).stdout)["notes"] == ["labels are text: 1 class, sorted by name"]


OTHER_FLAGS = {
    "--shuffled": ["--shuffled"],
    "--digest": ["--digest"],
    "--labels txt": ["--labels", "txt"],
    "--format tfrecord": ["--format", "tfrecord"],
    "--split train=a.tar": ["--split", "train=a.tar"],
}


@pytest.mark.parametrize("flag", OTHER_FLAGS)
def test_a_flag_that_an_existing_index_was_made_without_is_refused(pairs, flag):
    run("adopt", pairs)
    with pytest.raises(UsageError, match=f"an index exists there already, made without {flag}; add --overwrite"):
        run("adopt", pairs, *OTHER_FLAGS[flag])
    if flag != "--format tfrecord":
        run("adopt", pairs, *OTHER_FLAGS[flag], "--overwrite")
        assert json.loads(run("adopt", pairs, *OTHER_FLAGS[flag], "--json").stdout)["already"]
        assert json.loads(run("adopt", pairs, "--json").stdout)["already"]
    assert json.loads((pairs / "dataset.json").read_text())["shuffled"] == (flag == "--shuffled")


def test_several_flags_that_an_existing_index_was_made_without_are_named_together(pairs):
    run("adopt", pairs)
    with pytest.raises(
        UsageError, match=r"without --shuffled, --labels txt; .*, or leave --shuffled, --labels txt out"
    ):
        run("adopt", pairs, "--labels", "txt", "--shuffled")


def test_a_flag_for_a_dataset_of_a_build_is_refused(finished):
    with pytest.raises(UsageError, match="a dataset of `dataprep build` exists there already; leave --digest out"):
        run("adopt", finished("imagenet-webdataset"), "--digest")


def test_samples_that_are_left_out_are_counted_by_reason(tmp_path):
    tar_of(tmp_path / "a.tar", [("1.jpg", image_of(1)), ("2.txt", b"no image")])
    done = succeeds("adopt", tmp_path, "--workers", 1)
    assert "train: 1 image in 1 shard" in done.stdout
    assert "; left out: 1 " in done.stdout
