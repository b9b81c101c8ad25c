"""Loaders that people use today, set up as their own documents show, to be measured on the same files.

All augment shuffled JPEGs in the same way: a random resized crop (area 0.2 to 1, aspect 3/4 to 4/3) and a horizontal
flip. Each needs a process of its own, because some of their libraries cannot be imported together.

Shapes: N images of a batch, H = W = `image_size`, C = 3.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dataprep.host.processes import end_with

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from loaders.decode.decoders import Interpolation

    Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]
    """images_NHWC (0..255) and labels_N."""

CROP_AREA = (0.2, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
SHUFFLE_SAMPLES = 1000
"""Shuffle buffer of loaders that cannot shuffle by index: webdataset's usual size. The 250,000 of big_vision would
first have to be filled with encoded images."""
LABEL_BYTES = 4
"""Size of the little-endian label before the JPEG in a record of `array_record`; Grain has no format of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerConfig:
    """Settings of every peer."""

    root: Path
    """Folder of the split's files in the peer's layout."""
    files: tuple[str, ...] = ()
    """Shards of the split, needed if `root` also has other shards; by default all below `root`."""
    image_size: int = 224
    """Side of the delivered images, pixels."""
    batch_size: int = 128
    workers: int = 2
    """Processes, or threads where the peer has threads."""
    interpolation: Interpolation = "bicubic"
    """Interpolation of peers that leave the choice to their user; the classes here have one of their own."""

    def shards(self, pattern: str) -> list[str]:
        """Return the paths of the split's shards, sorted."""
        return sorted(self.files) or sorted(map(str, self.root.rglob(pattern)))


class Peer(Protocol):
    """A loader that this project is compared with."""

    layout: ClassVar[str]
    """Layout that the peer reads: `imagefolder`, `webdataset`, `tfrecord` as `dataprep build` writes them, `mds`, or
    `array_record`."""
    interpolation: ClassVar[Interpolation]
    """Interpolation of its resize."""
    packages: ClassVar[dict[str, str]]
    """Packages that the peer imports, with their names in a package registry; the peer's own comes first."""

    def __init__(self, config: PeerConfig) -> None: ...

    def iterate(self) -> Iterator[Batch]:
        """Yield full batches, epoch after epoch, without end."""


@dataclass(frozen=True, slots=True)
class Torchvision:
    """Files in class folders, decoded by PIL in worker processes, as in torchvision's reference training script."""

    config: PeerConfig
    layout: ClassVar[str] = "imagefolder"
    interpolation: ClassVar[Interpolation] = "bicubic"
    packages: ClassVar[dict[str, str]] = {"torchvision": "torchvision"}

    def iterate(self) -> Iterator[Batch]:
        """Yield batches without end."""
        from torchvision.datasets import ImageFolder

        dataset = ImageFolder(self.config.root, tensor_augmentation(self.config.image_size))
        return torch_batches(dataset, self.config, shuffle=True)


@dataclass(frozen=True, slots=True)
class WebDataset:
    """Tar files, decoded by PIL in worker processes that make the batches, as in webdataset's README."""

    config: PeerConfig
    layout: ClassVar[str] = "webdataset"
    interpolation: ClassVar[Interpolation] = "bicubic"
    packages: ClassVar[dict[str, str]] = {"webdataset": "webdataset", "torchvision": "torchvision"}

    def iterate(self) -> Iterator[Batch]:
        """Yield batches without end."""
        import webdataset

        shards = self.config.shards("*.tar")
        dataset = (
            webdataset.WebDataset(shards, shardshuffle=len(shards))
            .shuffle(SHUFFLE_SAMPLES)
            .decode("pil")
            .to_tuple("jpg;jpeg;png;webp", "cls")
            .map_tuple(tensor_augmentation(self.config.image_size), int)
            .batched(self.config.batch_size, partial=False)
        )
        workers = min(self.config.workers, len(shards))  # webdataset refuses a worker without a shard
        return endless(
            webdataset.WebLoader(
                dataset,
                batch_size=None,
                num_workers=workers,
                persistent_workers=True,
                worker_init_fn=partial(started_by, os.getpid()),
            ),
            self.config,
        )


@dataclass(frozen=True, slots=True)
class TFData:
    """TFRecords through TensorFlow operations in threads, as in big_vision and CLIPA: a resize without antialiasing."""

    config: PeerConfig
    layout: ClassVar[str] = "tfrecord"
    interpolation: ClassVar[Interpolation] = "bilinear"
    packages: ClassVar[dict[str, str]] = {"tensorflow": "tensorflow-cpu"}

    def iterate(self) -> Iterator[Batch]:
        """Yield batches without end."""
        import tensorflow as tf

        files = self.config.shards("*.tfrecord-*")
        options = tf.data.Options()
        options.deterministic = False
        options.threading.private_threadpool_size = self.config.workers
        options.threading.max_intra_op_parallelism = 1
        options.experimental_optimization.inject_prefetch = False
        # The order in which TFDS reads the files of a split.
        records = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files))
        records = records.interleave(
            tf.data.TFRecordDataset, cycle_length=16, block_length=16, num_parallel_calls=tf.data.AUTOTUNE
        )
        batches = (
            records.shuffle(SHUFFLE_SAMPLES)
            .repeat()
            .map(self._example, num_parallel_calls=tf.data.AUTOTUNE)
            .batch(self.config.batch_size, drop_remainder=True)
            .prefetch(2)
            .with_options(options)
        )
        yield from batches.as_numpy_iterator()

    def _example(self, record: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        example = tf.io.parse_single_example(record, features)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(example["image"]),
            tf.zeros([0, 0, 4], tf.float32),
            area_range=CROP_AREA,
            aspect_ratio_range=CROP_ASPECT,
            min_object_covered=0.0,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.concat([begin[:2], size[:2]], axis=0)
        crop_HWC = tf.image.decode_and_crop_jpeg(example["image"], window, channels=3)
        image_HWC = tf.image.resize(crop_HWC, [self.config.image_size] * 2, method="bilinear")
        image_HWC = tf.image.random_flip_left_right(image_HWC)
        return tf.cast(tf.clip_by_value(image_HWC, 0.0, 255.0), tf.uint8), example["label"]


@dataclass(frozen=True, slots=True)
class MosaicStreaming:
    """MDS shards through MosaicML streaming's StreamingImageNet, decoded by PIL in worker processes."""

    config: PeerConfig
    layout: ClassVar[str] = "mds"
    interpolation: ClassVar[Interpolation] = "bicubic"
    packages: ClassVar[dict[str, str]] = {"streaming": "mosaicml-streaming", "torchvision": "torchvision"}

    def iterate(self) -> Iterator[Batch]:
        """Yield batches without end."""
        from streaming.vision import StreamingImageNet

        augment = tensor_augmentation(self.config.image_size)
        batch_size = self.config.batch_size
        dataset = StreamingImageNet(local=str(self.config.root), shuffle=True, batch_size=batch_size, transform=augment)
        return torch_batches(dataset, self.config)


@dataclass(frozen=True, slots=True)
class Grain:
    """Records of array_record, read in a global shuffle as in Grain's guide, decoded by PIL in threads.

    It runs in threads, because its worker processes (`mp_prefetch`) took 5.0 ms of CPU an image, threads 4.2.
    """

    config: PeerConfig
    layout: ClassVar[str] = "array_record"
    interpolation: ClassVar[Interpolation] = "bicubic"
    packages: ClassVar[dict[str, str]] = {
        "grain": "grain",
        "array_record": "array_record",
        "torchvision": "torchvision",
    }

    def iterate(self) -> Iterator[Batch]:
        """Yield batches without end."""
        import grain

        source = grain.sources.ArrayRecordDataSource(self.config.shards("*.array_record"))
        batches = (
            grain.MapDataset.source(source)
            .seed(0)
            .shuffle()
            .repeat()
            .map(_RecordAugmentation(self.config.image_size))
            .to_iter_dataset(grain.ReadOptions(num_threads=self.config.workers))
            .batch(self.config.batch_size, drop_remainder=True)
        )
        yield from batches


PEERS: dict[str, type[Peer]] = {
    "torchvision": Torchvision,
    "webdataset": WebDataset,
    "tf.data": TFData,
    "mosaic": MosaicStreaming,
    "grain": Grain,
}


def peer_named(name: str) -> type[Peer]:
    """Return one of PEERS, or a class of a file elsewhere, named `FOLDER/FILE.py:CLASS`.

    The file is imported by its stem, with its folder on the path, so that worker processes can import it, too.
    """
    if name in PEERS:
        return PEERS[name]
    path, _, class_name = name.rpartition(":")
    folder, stem = str(Path(path).parent), Path(path).stem
    sys.path.append(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    found: type[Peer] = getattr(importlib.import_module(stem), class_name)
    return found


class _RecordAugmentation:
    """Turns a record of array_record into an image and its label."""

    def __init__(self, image_size: int) -> None:
        self._augment = _augmentation(image_size)

    def __call__(self, record: bytes) -> tuple[NDArray[np.uint8], np.int64]:
        import io

        import numpy as np
        from PIL import Image

        image = Image.open(io.BytesIO(record[LABEL_BYTES:])).convert("RGB")
        return np.asarray(self._augment(image)), np.int64(int.from_bytes(record[:LABEL_BYTES], "little"))


def _augmentation(image_size: int) -> Any:
    """Return the augmentation from a PIL image to another one; PIL's bicubic always antialiases."""
    from torchvision.transforms import v2

    crop = v2.RandomResizedCrop(
        image_size, scale=CROP_AREA, ratio=CROP_ASPECT, interpolation=v2.InterpolationMode.BICUBIC, antialias=True
    )
    return v2.Compose([crop, v2.RandomHorizontalFlip()])


def tensor_augmentation(image_size: int) -> Any:
    """Return the augmentation from a PIL image to a tensor, uint8 CHW."""
    from torchvision.transforms import v2

    return v2.Compose([v2.RGB(), _augmentation(image_size), v2.PILToTensor()])


def torch_batches(
    dataset: Any, config: PeerConfig, *, shuffle: bool | None = None, collate_fn: Any = None
) -> Iterator[Batch]:
    from torch.utils.data import DataLoader

    loader = DataLoader(
        dataset,
        config.batch_size,
        shuffle=shuffle,
        num_workers=config.workers,
        persistent_workers=True,
        drop_last=True,
        collate_fn=collate_fn,
        worker_init_fn=partial(started_by, os.getpid()),
    )
    return endless(loader, config)


def started_by(parent_pid: int, worker: int) -> None:
    """End a worker of torch when its parent ends, even if that is before torch's own watchdog has started."""
    end_with(parent_pid)


def endless(loader: Any, config: PeerConfig) -> Iterator[Batch]:
    """Yield torch's batches, epoch after epoch. Raises ValueError where an epoch has no full batch."""
    while True:
        images_NCHW = None
        for images_NCHW, labels_N in loader:
            yield images_NCHW.permute(0, 2, 3, 1).numpy(), labels_N.numpy()
        if images_NCHW is None:
            raise ValueError(f"too few images for a batch of {config.batch_size} by each of {config.workers} workers")
