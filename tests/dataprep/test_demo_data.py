"""Demo originals: true layouts, real photographs, odd files that a build treats as the report says."""

import io
import json
import tarfile
import zipfile
from collections import Counter
from dataclasses import asdict

import pytest
import scipy.io
from PIL import Image

from dataprep.demo_data import REPORT, write_demo
from dataprep.demo_images import DemoImage, make_image
from dataprep.demo_layouts import CocoLayout, ImageNetLayout
from dataprep.demo_oddities import ODDITIES
from dataprep.errors import StorageError, UsageError
from dataprep.images import ImagePolicy, check_image
from dataprep.records import Event
from dataprep.sources import dataset_named
from dataprep.sources.imagenet import published_classes
from dataprep.storage import open_storage

DATASET_OF = {"coco": "coco-dup5", "imagenet": "imagenet"}
NAMES = sorted(DATASET_OF)


@pytest.fixture(scope="module", params=NAMES)
def demo(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"demo-{request.param}")
    return write_demo(request.param, folder, images=60, odd=True), folder


def images_of(report, folder, split="train"):
    """Image by key."""
    storage = open_storage(str(folder))
    found = dataset_named(DATASET_OF[report.name]).enumerate(storage, split, allow_partial=True)
    return {ref.key: storage.read_range(ref.source, ref.offset, ref.num_bytes) for ref in found.refs}


def test_the_report_says_what_was_written(demo):
    report, folder = demo
    assert sorted(path.name for path in folder.iterdir()) == sorted([*report.files, REPORT])
    for split, count in report.images.items():
        assert len(images_of(report, folder, split)) == count
    storage = open_storage(str(folder))
    assert dataset_named(DATASET_OF[report.name]).classes(storage, allow_partial=True) == report.classes
    assert json.loads((folder / REPORT).read_text()) == json.loads(json.dumps(asdict(report)))


def test_odd_files_are_treated_as_the_report_says(demo):
    report, folder = demo
    images = images_of(report, folder)
    assert Counter(odd.oddity for odd in report.odd) == Counter(list(ODDITIES))
    expected = {odd.key: (odd.oddity, odd.verdict, odd.reason) for odd in report.odd}
    for key, image in images.items():
        oddity, verdict, reason = expected.get(key, ("plain", "kept", ""))
        checked = check_image(key, image, ImagePolicy())
        event = checked if isinstance(checked, Event) else checked.event
        found = ("kept", "") if event is None else (event.kind, event.reason)
        assert found == (verdict, reason), f"{oddity}: {event}"


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_orientations_are_recorded(demo, orientation):
    report, folder = demo
    key = next(odd.key for odd in report.odd if odd.oddity == f"exif-{orientation}")
    checked = check_image(key, images_of(report, folder)[key], ImagePolicy())
    assert checked.orientation == orientation


@pytest.mark.parametrize("name", NAMES)
def test_the_same_arguments_give_the_same_bytes_in_one_process_and_in_several(name, tmp_path, monkeypatch):
    first = write_demo(name, tmp_path / "one", images=24, odd=True)
    monkeypatch.setattr("dataprep.demo_data.IN_PROCESS_IMAGES", 0)
    calls = []
    second = write_demo(name, tmp_path / "two", images=24, odd=True, progress=lambda *call: calls.append(call))
    assert first == second
    for file in [*first.files, REPORT]:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file
    total = sum(first.images.values())
    assert calls == [(done, total) for done in range(1, total + 1)]
    third = write_demo(name, tmp_path / "three", images=24, odd=True, seed=1)
    assert {odd.key for odd in third.odd} != {odd.key for odd in first.odd}
    assert all((tmp_path / "one" / f).read_bytes() != (tmp_path / "three" / f).read_bytes() for f in first.files[:2])


def test_sizes_are_like_those_of_imagenet():
    made = [make_image(DemoImage("imagenet", 0, index, index)) for index in range(200)]
    mean_bytes = sum(len(image.file) for image in made) / len(made)
    assert 95_000 < mean_bytes < 125_000
    assert 440 < sum(image.width for image in made) / len(made) < 500
    assert 370 < sum(image.height for image in made) / len(made) < 430
    assert len({image.file for image in made}) == len(made)
    with Image.open(io.BytesIO(made[0].file)) as image:
        assert image.size == (made[0].width, made[0].height)


def test_cocos_layout(tmp_path):
    write_demo("coco", tmp_path, images=24, odd=False)
    with zipfile.ZipFile(tmp_path / "train2017.zip") as archive:
        first, *others = archive.infolist()
        assert first.filename == "train2017/"
        assert {info.compress_type for info in others} == {zipfile.ZIP_STORED}
        assert [len(info.filename) for info in others] == [len("train2017/000000000009.jpg")] * len(others)
        assert archive.testzip() is None
    assert CocoLayout(241_690).val_images == 12_084
    assert CocoLayout(241_690)._labelled == 118_287


def test_imagenets_layout(tmp_path):
    report = write_demo("imagenet", tmp_path, images=60, odd=False)
    assert len(report.classes) == 3
    assert set(report.classes) < set(published_classes())
    with tarfile.open(tmp_path / "ILSVRC2012_img_train.tar") as outer:
        assert [member.name for member in outer] == [f"{wnid}.tar" for wnid in report.classes]
        with tarfile.open(fileobj=outer.extractfile(f"{report.classes[1]}.tar")) as inner:
            assert [member.name.partition("_")[0] for member in inner] == [report.classes[1]] * 20
    with tarfile.open(tmp_path / "ILSVRC2012_img_val.tar") as val:
        assert val.getnames() == [f"ILSVRC2012_val_{i:08d}.JPEG" for i in range(1, report.images["val"] + 1)]
    with tarfile.open(tmp_path / "ILSVRC2012_devkit_t12.tar.gz") as devkit:
        meta = scipy.io.loadmat(devkit.extractfile("ILSVRC2012_devkit_t12/data/meta.mat"), squeeze_me=True)["synsets"]
    wnids = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in meta if row["num_children"] == 0}
    assert tuple(sorted(wnids.values())) == report.classes
    assert [int(row["num_children"]) for row in meta if row["ILSVRC2012_ID"] == 4] == [3]


def test_both_label_files_say_the_same(tmp_path):
    report = write_demo("imagenet", tmp_path, images=200, odd=False)
    storage, imagenet = open_storage(str(tmp_path)), dataset_named("imagenet")
    by_devkit = imagenet.enumerate(storage, "val", allow_partial=True).refs
    (tmp_path / "ILSVRC2012_devkit_t12.tar.gz").unlink()
    assert imagenet.enumerate(storage, "val", allow_partial=True).refs == by_devkit
    labels = [ref.label for ref in by_devkit]
    assert sorted(labels) == list(range(len(report.classes)))
    assert labels != sorted(labels)


def test_ids_are_not_in_the_order_of_wnids():
    layout = ImageNetLayout(400, seed=0)
    assert len(layout.classes) == 20
    meta = scipy.io.loadmat(io.BytesIO(meta_of(layout)), squeeze_me=True)["synsets"]
    wnids = [str(row["WNID"]) for row in meta][:20]
    assert sorted(wnids) == list(layout.classes)
    assert wnids != sorted(wnids)


def meta_of(layout):
    with tarfile.open(fileobj=io.BytesIO(layout._devkit())) as devkit:
        return devkit.extractfile("ILSVRC2012_devkit_t12/data/meta.mat").read()


@pytest.mark.parametrize("name", NAMES)
def test_a_rerun_leaves_everything_as_it_is_and_completes_what_is_missing(name, tmp_path):
    report = write_demo(name, tmp_path, images=24, odd=False)
    times = {file: (tmp_path / file).stat().st_mtime_ns for file in report.files}
    assert write_demo(name, tmp_path, images=24, odd=False) == report
    assert {file: (tmp_path / file).stat().st_mtime_ns for file in report.files} == times
    lost = (tmp_path / report.files[0]).read_bytes()
    (tmp_path / report.files[0]).unlink()
    write_demo(name, tmp_path, images=24, odd=False)
    assert (tmp_path / report.files[0]).read_bytes() == lost


def test_originals_that_are_no_demo_are_left_alone(tmp_path):
    (tmp_path / "train2017.zip").write_bytes(b"the real one")
    with pytest.raises(UsageError, match=r"holds train2017\.zip, which is no demo; choose another folder"):
        write_demo("coco", tmp_path, images=24, odd=False)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"the real one"]


def test_another_demo_is_left_alone(tmp_path):
    write_demo("coco", tmp_path, images=24, odd=False)
    with pytest.raises(UsageError, match=r"holds another demo \(see demo\.json\); choose another folder, or remove it"):
        write_demo("coco", tmp_path, images=25, odd=False)


@pytest.mark.parametrize(
    ("images", "odd", "words"),
    [
        (1, False, "--images must be 2 to 1,000,000, got 1"),
        (10**7, False, "--images must be 2 to 1,000,000, got 10,000,000"),
        (10, True, f"--odd needs at least {len(ODDITIES)} images, got 10"),
    ],
)
def test_numbers_out_of_range_are_refused(tmp_path, images, odd, words):
    with pytest.raises(UsageError, match=words):
        write_demo("coco", tmp_path / "demo", images=images, odd=odd)
    assert not (tmp_path / "demo").exists()


def test_missing_photographs_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("dataprep.demo_images.find_spec", lambda package: None)
    with pytest.raises(UsageError, match=r"skimage/data/astronaut\.png was not found: pip install 'dataprep\[demo\]'"):
        write_demo("coco", tmp_path, images=24, odd=False)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"file: not written: .*; choose another folder"):
        write_demo("coco", tmp_path / "file", images=24, odd=False)
