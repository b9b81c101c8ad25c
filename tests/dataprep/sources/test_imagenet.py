"""ImageNet and ImageNet-21k from tars, folders and the Hub's parquet files: the same keys, labels and bytes."""

import gzip
import hashlib
import io
import random
from collections import Counter
from dataclasses import replace

import pytest
from PIL import Image

from dataprep.builder.driver import prepare
from dataprep.builder.plan import BuildOptions, BuildRequest
from dataprep.commands.progress import BuildProgress
from dataprep.dataset.records import SourceFile
from dataprep.errors import SourceError, StorageError, UsageError
from dataprep.sources import dataset_named, imagenet
from dataprep.sources.archives import ArchiveReader
from dataprep.sources.base import Reading
from dataprep.sources.imagenet import FAKE_TAR, TRAIN_TAR, VAL_TAR, Release, published_classes
from dataprep.sources.imagenet_labels import BBOX, DEVKIT, published_ids, val_name
from dataprep.sources.unpacked import unpacked_name
from dataprep.storage import open_originals, open_storage
from dataprep.storage.checksums import crc32c_of
from tests.support.hostile_labels import TRUTH
from tests.support.own_data import picture, write_files
from tests.support.raw_tar import member, tar
from tests.support.tables import write_hub

IMAGENET = dataset_named("imagenet")
# In the order of the tar, which is not that of the class list.
TRAIN = {
    wnid: [(f"{wnid}_{number}", random.Random(f"{wnid}{number}").randbytes(300 + number)) for number in (10026, 9, 18)]
    for wnid in ("n01443537", "n01440764", "n15075141")
}
CLASSES = tuple(sorted(TRAIN))
VAL = [("n15075141", b"one" * 99), ("n01440764", b"two" * 300), ("n01440764", b"three"), ("n01443537", b"")]


def class_tar(wnid):
    return tar(*(member(f"{name}.JPEG".encode(), data) for name, data in TRAIN[wnid]))


def put_train_tar(storage, name=TRAIN_TAR, folder=""):
    members = [member(folder.encode(), kind=b"5")] if folder else []
    data = tar(*members, *(member(f"{folder}{wnid}.tar".encode(), class_tar(wnid)) for wnid in TRAIN))
    storage.create(name, data)
    return len(data)


def put_train_folders(storage, folder="train/"):
    for wnid, images in TRAIN.items():
        for name, data in images:
            storage.create(f"{folder}{wnid}/{name}.JPEG", data)


def put_class_tars(storage, folder="train/"):
    for wnid in TRAIN:
        storage.create(f"{folder}{wnid}.tar", class_tar(wnid))


def put_devkit(storage):
    ids = {"n15075141": 889, "n01440764": 449, "n01443537": 450}
    truth = "".join(f"{ids[wnid]}\n" for wnid, _ in VAL).encode()
    data = gzip.compress(tar(member(TRUTH, truth)))
    storage.create(DEVKIT, data)
    return len(data)


def put_boxes(storage):
    files = [
        member(
            f"val/{val_name(i)}.xml".encode(), f"<annotation><object><name>{wnid}</name></object></annotation>".encode()
        )
        for i, (wnid, _) in enumerate(VAL, start=1)
    ]
    storage.create(BBOX, gzip.compress(tar(*files)))


def put_val_tar(storage):
    storage.create(VAL_TAR, tar(*(member(f"{val_name(i)}.JPEG".encode(), data) for i, (_, data) in enumerate(VAL, 1))))


def put_val_flat(storage):
    for i, (_, data) in enumerate(VAL, start=1):
        storage.create(f"val/{val_name(i)}.JPEG", data)


def put_val_folders(storage):
    for i, (wnid, data) in enumerate(VAL, start=1):
        storage.create(f"val/{wnid}/{val_name(i)}.JPEG", data)


def found(storage, split):
    """Key, label and image of every reference, in order."""
    refs = IMAGENET.enumerate(storage, split, allow_partial=True).refs
    return [(ref.key, ref.label, storage.read_range(ref.source, ref.offset, ref.num_bytes)) for ref in refs]


TRAIN_FOUND = [(f"{wnid}/{name}", CLASSES.index(wnid), data) for wnid, images in TRAIN.items() for name, data in images]
VAL_FOUND = [(val_name(i), CLASSES.index(wnid), data) for i, (wnid, data) in enumerate(VAL, start=1)]


def test_the_train_tar_keeps_its_order(storage):
    num_bytes = put_train_tar(storage)
    assert found(storage, "train") == TRAIN_FOUND
    assert IMAGENET.classes(storage, allow_partial=True) == CLASSES
    enumeration = IMAGENET.enumerate(storage, "train", allow_partial=True)
    assert enumeration.sources == [SourceFile(TRAIN_TAR, num_bytes, version=storage.stat(TRAIN_TAR).version)]
    assert enumeration.classes == CLASSES


def test_originals_are_read_once_for_classes_and_images(tmp_path, monkeypatch):
    storage = open_storage(str(tmp_path))
    put_train_tar(storage)
    put_val_tar(storage)
    put_devkit(storage)
    opened = []
    opening = ArchiveReader.__init__

    def counting(self, root, name, **options):
        opened.append(name)
        opening(self, root, name, **options)

    monkeypatch.setattr(ArchiveReader, "__init__", counting)
    options = BuildOptions(dataset="imagenet", format="webdataset", splits=("train", "val"), allow_partial=True)
    request = BuildRequest(
        options=options, source_url=str(tmp_path), output_url=str(tmp_path / "out"), max_reject_ratio=0
    )
    plan = prepare(request, BuildProgress(quiet=True), keep=True).plan
    assert plan.classes == CLASSES
    assert sorted(opened) == sorted([TRAIN_TAR, VAL_TAR])
    opened.clear()
    again = prepare(request, BuildProgress(quiet=True), keep=True).plan
    assert again.plan_hash == plan.plan_hash
    assert opened == []


def test_folders_are_sorted_by_bytes_and_class_tars_by_class(tmp_path):
    for put, name in ((put_train_folders, "a"), (put_class_tars, "b")):
        put(open_storage(str(tmp_path / name)))
    keys = [key for key, _, _ in found(open_storage(str(tmp_path / "a")), "train")]
    assert keys == sorted(keys, key=lambda key: f"{key}.JPEG".encode())
    assert [label for _, label, _ in found(open_storage(str(tmp_path / "b")), "train")] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("put", [put_val_tar, put_val_flat])
@pytest.mark.parametrize("put_labels", [put_devkit, put_boxes])
def test_val_images_get_their_labels_from_an_archive(storage, put, put_labels):
    put(storage)
    put_labels(storage)
    assert found(storage, "val") == VAL_FOUND
    assert IMAGENET.classes(storage, allow_partial=True) == CLASSES


def put_kaggle(folder):
    """Write what Kaggle has: a folder of ILSVRC/ and the labels of val."""
    put_train_folders(images := open_storage(str(folder / "ILSVRC/Data/CLS-LOC")))
    put_val_flat(images)
    rows = [f"{val_name(i)},{wnid} 1 2 30 40 {wnid} 5 6 7 8 " for i, (wnid, _) in enumerate(VAL, 1)]
    xml = {
        f"Annotations/CLS-LOC/val/{val_name(i)}.xml": f"<annotation><object><name>{wnid}</name></object></annotation>"
        for i, (wnid, _) in enumerate(VAL, 1)
    }
    write_files(folder / "ILSVRC", {**xml, "Annotations/CLS-LOC/train/n01440764/n01440764_9.xml": "<annotation/>"})
    return write_files(folder, {"LOC_val_solution.csv": "\n".join(["ImageId,PredictionString", *rows[::-1]])})


@pytest.mark.parametrize(("source", "labels"), [("", "LOC_val_solution.csv"), ("ILSVRC", "Annotations/CLS-LOC/val")])
def test_what_kaggle_has_gives_train_and_val_with_labels(tmp_path, source, labels):
    storage = open_storage(str(put_kaggle(tmp_path) / source))
    assert sorted(found(storage, "train")) == sorted(TRAIN_FOUND)
    assert IMAGENET.classes(storage, allow_partial=True) == CLASSES
    assert found(storage, "val") == VAL_FOUND
    sources = IMAGENET.enumerate(storage, "val", allow_partial=True).sources
    assert sources[0].name == labels
    assert all(file.num_bytes for file in sources)


def test_labels_of_kaggle_above_the_source_are_named(tmp_path):
    images = put_kaggle(tmp_path) / "ILSVRC/Data/CLS-LOC"
    with pytest.raises(SourceError, match=f"are above, name the folder of all: `source` {tmp_path}$"):
        found(open_storage(str(images)), "val")
    (tmp_path / "LOC_val_solution.csv").rename(images / "LOC_val_solution.csv")
    assert found(open_storage(str(images)), "val") == VAL_FOUND


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ImageId,Class\n", "its first line is '?ImageId,Class'?, expected ImageId,PredictionString; download"),
        ("ImageId,PredictionString\nILSVRC2012_val_00000001,\n", "line 2: .*expected an image that occurs once"),
        ("ImageId,PredictionString\na,n01440764 1\na,n01440764 1\n", "line 3: .*expected an image that occurs once"),
        ('ImageId,PredictionString\n"a', "not a readable CSV file"),
    ],
)
def test_damaged_labels_of_kaggle_are_refused(tmp_path, text, message):
    (put_kaggle(tmp_path) / "LOC_val_solution.csv").write_text(text)
    with pytest.raises(SourceError, match=message):
        found(open_storage(str(tmp_path)), "val")


def test_val_in_class_folders_needs_no_labels(storage):
    put_val_folders(storage)
    assert sorted(found(storage, "val")) == sorted(VAL_FOUND)
    assert IMAGENET.classes(storage, allow_partial=True) == CLASSES


def test_val_records_where_its_labels_came_from(tmp_path):
    storage = open_storage(str(tmp_path))
    put_val_flat(storage)
    num_bytes = put_devkit(storage)
    sources = IMAGENET.enumerate(storage, "val", allow_partial=True).sources
    assert sources == [SourceFile(DEVKIT, num_bytes), SourceFile("val", sum(len(data) for _, data in VAL))]


def test_without_labels_val_is_refused_with_the_names_of_both_archives(tmp_path):
    storage = open_storage(str(tmp_path))
    put_val_tar(storage)
    with pytest.raises(SourceError, match=f"imagenet val: no labels: expected {DEVKIT}, {BBOX} or LOC_val"):
        IMAGENET.enumerate(storage, "val", allow_partial=True)


def test_absent_splits_are_refused_with_what_was_expected(tmp_path):
    storage = open_storage(str(tmp_path))
    with pytest.raises(SourceError, match=f"imagenet train: not found: expected {TRAIN_TAR} or train/<wnid>/"):
        IMAGENET.enumerate(storage, "train", allow_partial=True)
    with pytest.raises(SourceError, match=f"imagenet val: not found: expected {VAL_TAR}, val/ or val/<wnid>/"):
        IMAGENET.enumerate(storage, "val", allow_partial=True)


def test_a_class_that_train_lacks_is_refused_in_val(tmp_path):
    storage = open_storage(str(tmp_path))
    put_val_folders(storage)
    storage.create("train/n01440764/n01440764_1.JPEG", b"x")
    with pytest.raises(SourceError, match=r"class 'n01443537' is not one of the 1 expected"):
        IMAGENET.enumerate(storage, "val", allow_partial=True)


def test_without_allow_partial_labels_are_those_of_all_1000_classes_and_counts_must_match(tmp_path):
    storage = open_storage(str(tmp_path))
    put_train_tar(storage)
    assert IMAGENET.classes(storage, allow_partial=False) == published_classes()
    with pytest.raises(SourceError) as caught:
        IMAGENET.enumerate(storage, "train", allow_partial=False)
    assert str(caught.value) == (
        f"{tmp_path}: imagenet train: 9 images, expected 1,281,167; class n01440764 has 3, expected 732 to 1,300 (and "
        "999 more classes): download the originals again, or build what exists with `allow_partial`"
    )


def test_a_whole_val_split_is_taken_and_one_label_too_many_is_not(tmp_path):
    """With two images of each class, in place of the published fifty."""
    facts = IMAGENET.facts["val"]
    assert (facts.samples, facts.class_samples) == (50_000, (50, 50))
    small = replace(IMAGENET, facts={"val": replace(facts, samples=2_000, class_samples=(2, 2))})
    labels = [*published_classes()] * 2
    storage = open_storage(str(tmp_path))
    storage.create(VAL_TAR, tar(*(member(f"{val_name(i)}.JPEG".encode()) for i in range(1, 2_001))))
    ids = published_ids()

    def with_labels(labels):
        truth = "".join(f"{ids[wnid]}\n" for wnid in labels).encode()
        (tmp_path / DEVKIT).write_bytes(gzip.compress(tar(member(TRUTH, truth)), 1))
        return list(small.enumerate(storage, "val", allow_partial=False).refs)

    refs = with_labels(labels)
    assert [ref.label for ref in refs[:1001]] == [*range(1000), 0]
    with pytest.raises(SourceError, match=r"val: class n01440764 has 1, expected 2 \(and 1 more classes\)"):
        with_labels(["n15075141", *labels[1:]])


FAKE = dataset_named("imagenet-fake")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fake")
    FAKE.write_originals(folder)
    return open_storage(str(folder))


def test_fake_imagenet_has_the_images_asked_for_and_1000_classes(root):
    dataset = FAKE.with_images(2_500)
    train = list(dataset.enumerate(root, "train", allow_partial=False).refs)
    val = list(dataset.enumerate(root, "val", allow_partial=False).refs)
    assert (len(train), len(val)) == (2_500, 97)
    counts = Counter(ref.label for ref in train)
    assert (len(counts), min(counts.values()), max(counts.values())) == (1000, 2, 3)
    assert (train[1500].key, train[1500].label) == (f"{published_classes()[500]}/{published_classes()[500]}_1", 500)
    assert val[-1].key == "ILSVRC2012_val_00000097"
    assert dataset.classes(root, allow_partial=False) == published_classes()
    assert FAKE.with_images(1_281_167).facts["val"].samples == 50_000


def test_images_are_valid_and_differ_between_classes(root):
    refs = FAKE.with_images(1_000).enumerate(root, "train", allow_partial=False).refs
    images = [root.read_range(ref.source, ref.offset, ref.num_bytes) for ref in refs]
    assert len({hashlib.sha256(image).digest() for image in images}) == 1000
    sizes = set()
    for image in images[::50]:
        with Image.open(io.BytesIO(image)) as opened:
            opened.load()
            assert opened.format == "JPEG"
            sizes.add(opened.size)
    assert len(sizes) > 5
    assert sum(map(len, images)) < 8e6


def test_originals_are_the_same_everywhere_and_written_once(root, tmp_path):
    FAKE.write_originals(tmp_path / "new" / "folder")
    path = tmp_path / "new" / "folder" / FAKE_TAR
    assert path.read_bytes() == root.read(FAKE_TAR)
    path.write_bytes(b"")
    FAKE.write_originals(tmp_path / "new" / "folder")
    assert path.read_bytes() == b""
    assert [p.name for p in path.parent.iterdir()] == [FAKE_TAR]


def test_another_file_of_that_name_is_refused(tmp_path):
    (tmp_path / FAKE_TAR).write_bytes(bytes(10_240))
    with pytest.raises(SourceError, match="not the generated file; remove it"):
        FAKE.enumerate(open_storage(str(tmp_path)), "train", allow_partial=False)


@pytest.mark.parametrize("images", [0, -1, 100_000_001])
def test_a_size_out_of_range_is_refused(images):
    with pytest.raises(UsageError, match="`images` must be 1 to 100,000,000"):
        FAKE.with_images(images)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"imagenet-fake\.tar: cannot be written: File exists"):
        FAKE.write_originals(tmp_path / "file")


IMAGENET_21K = dataset_named("imagenet-21k")
COMPLETE = Release(len(TRAIN_FOUND), len(CLASSES))
LAYOUTS = {
    "winter21_whole.tar": lambda storage: put_train_tar(storage, "winter21_whole.tar", "winter21_whole/"),
    "winter21_whole.tar.gz that is not compressed": lambda storage: put_train_tar(storage, "winter21_whole.tar.gz"),
    "fall11_whole.tar": lambda storage: put_train_tar(storage, "fall11_whole.tar"),
    "winter21_whole/<wnid>.tar": lambda storage: put_class_tars(storage, "winter21_whole/"),
    "train/<wnid>/": lambda storage: put_train_folders(storage, "train/"),
    "<wnid>.tar": lambda storage: put_class_tars(storage, ""),
    "<wnid>/": lambda storage: put_train_folders(storage, ""),
}


def found_21k(storage, *, allow_partial=True):
    enumeration = IMAGENET_21K.enumerate(storage, "train", allow_partial=allow_partial)
    return enumeration, [
        (ref.key, ref.label, storage.read_range(ref.source, ref.offset, ref.num_bytes)) for ref in enumeration.refs
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_same_images(storage, layout):
    LAYOUTS[layout](storage)
    enumeration, images = found_21k(storage)
    assert sorted(images) == sorted(TRAIN_FOUND)
    assert enumeration.classes == CLASSES == IMAGENET_21K.classes(storage, allow_partial=True)


@pytest.mark.parametrize(
    ("name", "counts"),
    [("winter21_whole", "13,153,500 images of 19,167"), ("fall11_whole", "14,197,122 images of 21,841")],
)
def test_counts_are_those_of_the_release_that_the_name_says(tmp_path, monkeypatch, name, counts):
    storage = open_storage(str(tmp_path))
    put_train_tar(storage, f"{name}.tar")
    with pytest.raises(SourceError, match=rf"9 images of 3 classes, expected {counts} classes \({name}\): d"):
        found_21k(storage, allow_partial=False)
    monkeypatch.setitem(imagenet.RELEASES, name, COMPLETE)
    assert len(found_21k(storage, allow_partial=False)[1]) == COMPLETE.images


def test_class_tars_are_of_the_release_that_their_folder_says_or_of_either(tmp_path, monkeypatch):
    anywhere, named = open_storage(str(tmp_path / "any")), open_storage(str(tmp_path / "winter21_whole"))
    for storage in (anywhere, named):
        put_class_tars(storage, "")
    with pytest.raises(SourceError, match=r"19,167 classes \(winter21_whole\) or 14,197,122 images of 21,841 classes"):
        found_21k(anywhere, allow_partial=False)
    monkeypatch.setitem(imagenet.RELEASES, "fall11_whole", COMPLETE)
    assert len(found_21k(anywhere, allow_partial=False)[1]) == COMPLETE.images
    with pytest.raises(SourceError, match=r"expected 13,153,500 images of 19,167 classes \(winter21_whole\): download"):
        found_21k(named, allow_partial=False)


def test_a_compressed_archive_is_refused_with_the_command_that_helps(tmp_path):
    (tmp_path / "winter21_whole.tar.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(SourceError, match=r"compressed, so .*: gunzip .*/winter21_whole\.tar\.gz$"):
        found_21k(open_storage(str(tmp_path)))


def test_a_folder_without_any_of_it_says_what_was_expected(tmp_path):
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats/1.jpg").write_bytes(b"x")
    words = r"imagenet-21k train: not found: expected winter21_whole\.tar, .*dataprep build folder `source`"
    with pytest.raises(SourceError, match=words):
        found_21k(open_storage(str(tmp_path)))


NAMES = published_classes()
HUB_TRAIN = {f"{wnid}_{number}": wnid for wnid in reversed(CLASSES) for number in (10026, 9)}
HUB_VAL = {f"ILSVRC2012_val_{number:08d}": CLASSES[number % 3] for number in (293, 7, 1)}


def hub_images(images, *, suffix=True, labels=CLASSES):
    return [
        {
            "image": {"bytes": picture(n), "path": f"{stem}_{wnid}.JPEG" if suffix else f"{stem}.JPEG"},
            "label": labels.index(wnid) if labels else None,
            "caption": None,
        }
        for n, (stem, wnid) in enumerate(images.items())
    ]


def write_tables(root, *, labels=CLASSES, suffix=True):
    train, val = hub_images(HUB_TRAIN, labels=labels, suffix=suffix), hub_images(HUB_VAL, labels=labels, suffix=suffix)
    write_hub(root / "data/train-00000-of-00002.parquet", train[:4], labels or CLASSES)
    write_hub(root / "data/train-00001-of-00002.parquet", train[4:], labels or CLASSES)
    write_hub(root / "data/validation-00000-of-00001.parquet", val, labels or CLASSES)
    write_hub(root / "data/test-00000-of-00001.parquet", [{**val[0], "label": -1}], labels or CLASSES)
    return write_files(root, {"README.md": "---\n"})


def opened_hub(root, unpack_to=None):
    output = None if unpack_to is None else open_storage(str(unpack_to))
    return IMAGENET.opened(open_originals(str(root)), Reading(unpack_to=output, splits=("train", "val")))


def listed_hub(root, split, **more):
    return opened_hub(root).enumerate(open_originals(str(root)), split, allow_partial=True, **more)


@pytest.mark.parametrize("labels", [CLASSES, NAMES, ()])
def test_keys_and_labels_are_those_of_the_tars(tmp_path, labels):
    root = write_tables(tmp_path, labels=labels)
    train, val = listed_hub(root, "train"), listed_hub(root, "val")
    assert train.classes == val.classes == CLASSES
    assert {ref.key: CLASSES[ref.label] for ref in train.refs} == {f"{w}/{stem}": w for stem, w in HUB_TRAIN.items()}
    assert {ref.key: CLASSES[ref.label] for ref in val.refs} == HUB_VAL
    assert [file.name for file in train.sources] == [f"data/train-0000{n}-of-00002.parquet" for n in range(2)]


def test_images_are_unpacked(tmp_path):
    root, output = write_tables(tmp_path / "hub"), open_storage(str(tmp_path / "out"))
    dataset = opened_hub(root, tmp_path / "out")
    assert dataset.notes[0].startswith("images are in parquet files: about ")
    train = dataset.enumerate(open_originals(str(root)), "train", allow_partial=True)
    files = {file.name: unpacked_name(file) for file in train.sources}
    images = [output.read_range(files[ref.source], ref.offset, ref.num_bytes) for ref in train.refs]
    assert images == [picture(n) for n in range(len(HUB_TRAIN))]
    assert train.is_checked
    assert [ref.crc32c for ref in train.refs] == [crc32c_of(image) for image in images]
    assert len(list((tmp_path / "out/_build").glob("unpacked-*"))) == 2  # val was not asked for


def test_names_without_the_class_take_it_from_the_label(tmp_path):
    root = write_tables(tmp_path, suffix=False, labels=NAMES)
    dataset = opened_hub(root)
    assert {ref.key for ref in listed_hub(root, "train").refs} == {f"{wnid}/{stem}" for stem, wnid in HUB_TRAIN.items()}
    with pytest.raises(
        SourceError, match=r"image.path is 'ILSVRC2012_val_00000293.JPEG'; expected the names of the Hub"
    ):
        listed_hub(root, "val")  # with --allow-partial no label is known
    with pytest.raises(SourceError, match="imagenet val: 3 images, expected 50,000"):
        dataset.enumerate(open_originals(str(root)), "val", allow_partial=False)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"path": None}, "row 1: image.path is ''; expected the names of the Hub's ILSVRC/imagenet-1k, such as n0144"),
        ({"path": "cat.jpg"}, "row 1: image.path is 'cat.jpg'"),
        ({"path": "n01440764_1_n01443537.JPEG"}, "row 1: image.path is 'n01440764_1_n01443537.JPEG'"),
    ],
)
def test_images_that_are_not_of_imagenet(tmp_path, change, text):
    first, *others = hub_images(HUB_TRAIN)
    write_hub(tmp_path / "train.parquet", [{**first, "image": first["image"] | change}, *others])
    with pytest.raises(SourceError, match=text):
        listed_hub(tmp_path, "train")


def test_a_label_of_another_class(tmp_path):
    changed = hub_images(HUB_TRAIN)
    changed[1]["label"] = 0
    write_hub(tmp_path / "train.parquet", changed)
    with pytest.raises(
        SourceError, match=r"row 2: label 0 of class n15075141, expected 2, its position among the sorted"
    ):
        listed_hub(tmp_path, "train")
    with pytest.raises(SourceError, match=r"row 1: label 2 of class n15075141, expected 999"):
        opened_hub(tmp_path).enumerate(open_originals(str(tmp_path)), "train", allow_partial=False)


def test_a_split_that_is_not_there_and_other_layouts(tmp_path):
    write_hub(tmp_path / "train.parquet", hub_images(HUB_TRAIN))
    with pytest.raises(SourceError, match="imagenet val: not found: expected parquet files with val in their names"):
        listed_hub(tmp_path, "val")
    folder = write_files(tmp_path / "folder", {"train/n01440764/n01440764_1.JPEG": picture(1), "x/y.parquet": b"x"})
    assert opened_hub(folder) is IMAGENET
