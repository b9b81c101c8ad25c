"""imagenet-fake: any number of images of 1,000 classes out of 4 MB."""

import hashlib
import io
from collections import Counter

import pytest
from PIL import Image

from dataprep.errors import SourceError, StorageError, UsageError
from dataprep.sources import dataset_named
from dataprep.sources.fake import FAKE_TAR
from dataprep.sources.imagenet import published_classes
from dataprep.storage import open_storage

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


def test_fake_imagenet_has_the_size_of_imagenet_when_asked():
    facts = FAKE.with_images(1_281_167).facts
    assert (facts["train"].samples, facts["val"].samples) == (1_281_167, 50_000)


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
