"""imagenet-fake: 1,000 classes and any number of images, to size and time a pipeline without ImageNet.

`imagenet-fake.tar`, 7 MB, holds one generated image for each class; all images of a class are references to it. So
1,281,167 images do not need originals of that size, and a model can still tell the classes apart.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, ClassVar

from dataprep.arrays import np
from dataprep.dataset.records import Enumeration, SourceFile
from dataprep.errors import SourceError, StorageError, UsageError
from dataprep.formats.tars import ByteReader, tar_members
from dataprep.sources.archives import ArchiveReader
from dataprep.sources.base import MAX_SAMPLES, Dataset, RefCollector, SplitFacts, SplitRequest
from dataprep.sources.imagenet import IMAGENET, published_classes
from dataprep.storage.base import Storage

FAKE_TAR = "imagenet-fake.tar"
DEFAULT_IMAGES = 10_000


@dataclass(frozen=True, kw_only=True)
class FakeImageNet(Dataset):
    """ImageNet's classes with generated images."""

    generated: ClassVar[bool] = True

    def with_images(self, images: int) -> FakeImageNet:
        """Return the dataset with this many train images, and with 1/26 as many val images as in ImageNet, at least
        one."""
        if not 1 <= images <= MAX_SAMPLES:
            raise UsageError(f"`images` must be 1 to {MAX_SAMPLES:,}, got {images:,}")
        return replace(self, facts=_facts(images))

    def write_originals(self, directory: Path) -> None:
        """Write `imagenet-fake.tar`, completely or not at all; an existing one stays."""
        path = directory / FAKE_TAR
        if path.exists():
            return
        spool = directory / f".{FAKE_TAR}.{os.getpid()}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with open(spool, "wb") as stream:
                _write_tar(stream)
            spool.replace(path)
        except OSError as error:
            raise StorageError(f"{path}: cannot be written: {error.strerror}; choose another `source`") from error

    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        """Return ImageNet's 1,000 WNIDs."""
        return published_classes()

    def _find(self, root: Storage, wanted: SplitRequest) -> Enumeration:
        # A dry run writes nothing: if the archive does not exist yet, it is read from memory.
        exists = root.stat(FAKE_TAR) is not None
        archive: AbstractContextManager[ByteReader] = (
            ArchiveReader(root, FAKE_TAR, progress=wanted.progress) if exists else nullcontext(_Generated(root))
        )
        with archive as reader:
            members = [member for member in tar_members(reader) if not member.is_directory]
            num_bytes = reader.num_bytes
        classes = published_classes()
        if [member.name for member in members] != [f"{wnid}.jpg" for wnid in classes]:
            raise SourceError(f"{root.url_of(FAKE_TAR)}: not the generated file; remove it, then it is written again")
        found = RefCollector(root, wanted.split)
        for label, path in _images(wanted.split, self.split_facts(wanted.split).samples or 0):
            found.add(path, FAKE_TAR, members[label], label)
        found.sources.append(SourceFile(FAKE_TAR, num_bytes))
        return found.enumeration(classes)


class _Generated:
    """The generated archive, held in memory."""

    def __init__(self, root: Storage) -> None:
        stream = io.BytesIO()
        _write_tar(stream)
        self.archive, self._data = root.url_of(FAKE_TAR), stream.getvalue()
        self.num_bytes = len(self._data)

    def read(self, offset: int, num_bytes: int) -> bytes:
        return self._data[offset : offset + num_bytes]


def _write_tar(stream: BinaryIO) -> None:
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for label, wnid in enumerate(published_classes()):
            image = _fake_jpeg(label)
            header = tarfile.TarInfo(f"{wnid}.jpg")
            header.size = len(image)
            tar.addfile(header, io.BytesIO(image))


def _images(split: str, samples: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield label and path of every image, one class after the other."""
    classes = published_classes()
    for i in range(samples):
        number, label = divmod(i, len(classes))
        if split == "train":
            yield label, (classes[label], f"{classes[label]}_{number}.jpg")
        else:
            yield label, (f"ILSVRC2012_val_{i + 1:08d}.jpg",)


def _fake_jpeg(label: int) -> bytes:
    """Draw a smooth pattern that depends on the label, 160 to 288 pixels wide."""
    from PIL import Image

    words = np.random.Philox(key=label).random_raw(18)
    coarse_HWC = words.view(np.uint8).reshape(6, 8, 3)  # 0..255
    size = (160 + 16 * (label % 9), 160 + 16 * (label // 9 % 5))
    smooth = Image.fromarray(coarse_HWC, "RGB").resize(size, Image.Resampling.BICUBIC)
    out = io.BytesIO()
    smooth.save(out, "JPEG", quality=90)
    return out.getvalue()


def _facts(images: int) -> dict[str, SplitFacts]:
    published = {split: facts.samples or 1 for split, facts in IMAGENET.facts.items()}
    val_images = max(1, images * published["val"] // published["train"])
    return {"train": SplitFacts(samples=images), "val": SplitFacts(samples=val_images)}


IMAGENET_FAKE = FakeImageNet(
    name="imagenet-fake",
    description="Generated images under ImageNet's 1,000 class names: for timing and plumbing, not for accuracy.",
    citation="",
    licence="CC0-1.0: the images are generated",
    origin="generated",
    facts=_facts(DEFAULT_IMAGES),
    default_splits=("train", "val"),
)
