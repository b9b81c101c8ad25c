"""What a build tells at its end: files of rejected images, and images that are in two splits."""

from dataclasses import replace

from dataprep.builder.driver import run_build
from dataprep.inspection.inspect import inspect_dataset
from tests.support.build_here import in_this_process
from tests.support.own_data import Notes, picture, request, write_files


def test_a_build_warns_of_images_that_are_in_two_splits(tmp_path):
    files = {f"train/{number}.jpg": picture(number) for number in range(6)}
    source = write_files(tmp_path / "in", files | {f"val/{number}.jpg": picture(number + 4) for number in range(5)})
    notes = Notes()
    run_build(request(source, tmp_path / "out"), in_this_process, notes)
    [line] = [line for line in notes.lines if "also in" in line]
    url = str(tmp_path / "out")
    assert line == (
        f"warning: 2 images of val are also in train (the same bytes); dataprep inspect {url} names the first ones"
    )
    assert [(each.split, each.other, each.count) for each in inspect_dataset(url).shared] == [("val", "train", 2)]


def test_a_build_of_splits_that_share_no_image_says_nothing_of_it(tmp_path):
    source = write_files(tmp_path / "in", {f"{('train', 'val')[n % 2]}/{n}.jpg": picture(n) for n in range(6)})
    notes = Notes()
    run_build(request(source, tmp_path / "out"), in_this_process, notes)
    assert not [line for line in notes.lines if "also in" in line]


def test_a_build_names_the_files_of_rejected_images_while_it_knows_them(tmp_path):
    files = {f"train/dog/{number}.jpg": picture(number) for number in range(6)}
    files |= {"train/dog/b.png": b"no picture", "train/dog/c.jpeg": b"", "test/dog/d.JPG": b"<html>"}
    source = write_files(
        tmp_path / "in", files | {f"test/dog/{number}.jpg": picture(9 + number) for number in range(3)}
    )
    notes = Notes()
    run_build(replace(request(source, tmp_path / "out"), max_reject_ratio=1.0), in_this_process, notes)
    train, test = sorted((line for line in notes.lines if "rejected: " in line), reverse=True)
    assert test == "test: 1 image was rejected: test/dog/d.JPG (undecodable)"
    assert train.startswith("train: 2 images were rejected: ")
    assert {"train/dog/b.png (undecodable)", "train/dog/c.jpeg (empty)"} == set(
        train.partition("rejected: ")[2].split(", ")
    )


def test_only_the_first_rejected_images_are_named(tmp_path):
    files = {f"{number}.jpg": picture(number) if number < 3 else b"<html>" for number in range(15)}
    notes = Notes()
    asked = request(write_files(tmp_path / "in", files), tmp_path / "out")
    run_build(replace(asked, max_reject_ratio=1.0), in_this_process, notes)
    [line] = [line for line in notes.lines if "rejected: " in line]
    assert line.startswith("train: 12 images were rejected: ")
    assert line.count("(undecodable)") == 10
    assert line.endswith(" and 2 more")
