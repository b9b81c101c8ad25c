"""Peers of the arena in the fastest form that their documents show: bytes decoded to uint8 tensors, or DALI's graph.

Each class imports its library in `iterate`, because the libraries do not share an environment.

Shapes: C = 3, H = W = `image_size`; see arena_peers.py for the protocol.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from math import exp, log, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from arena_peers import (
    CROP_AREA,
    CROP_ASPECT,
    LABEL_BYTES,
    SHUFFLE_SAMPLES,
    PeerConfig,
    endless,
    started_by,
    tensor_augmentation,
    torch_batches,
)
from layouts import labelled

if TYPE_CHECKING:
    import torch
    from arena_peers import Batch


def augmentation(config: PeerConfig) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a random resized crop and a flip of uint8 tensors, as torchvision's page on performance advises."""
    from torchvision.transforms import v2

    crop = v2.RandomResizedCrop(
        config.image_size,
        scale=CROP_AREA,
        ratio=CROP_ASPECT,
        interpolation=v2.InterpolationMode(config.interpolation),
        antialias=True,
    )
    flipped: Callable[[torch.Tensor], torch.Tensor] = v2.Compose([crop, v2.RandomHorizontalFlip()])
    return flipped


def read(path: str | Path) -> bytes:
    """Return the bytes of a file."""
    return Path(path).read_bytes()


class Decoded:
    """Turns the bytes of a JPEG into an augmented uint8 tensor, CHW."""

    def __init__(self, config: PeerConfig) -> None:
        self._augment = augmentation(config)

    def __call__(self, data: bytes) -> torch.Tensor:
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg

        return self._augment(decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB))

    def row(self, row: dict[str, Any], image: str = "image", label: str = "label") -> tuple[torch.Tensor, int]:
        """Return the tensor and the label of a row."""
        return self(row[image]), row[label]


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer with its settings."""

    config: PeerConfig
    layout: ClassVar[str] = "imagefolder"
    packages: ClassVar[dict[str, str]]


def shuffled_entries(config: PeerConfig) -> Iterator[tuple[str, int]]:
    """Yield the files of class folders with their labels, in another order each epoch, without end."""
    entries = [(str(path), label) for path, label in labelled(config.root)]
    while True:
        random.shuffle(entries)
        yield from entries


class TorchvisionTensors(Peer):
    """Files in class folders: decode_jpeg, v2 transforms on tensors, DataLoader workers."""

    packages: ClassVar[dict[str, str]] = {"torchvision": "torchvision"}

    def iterate(self) -> Iterator[Batch]:
        from torchvision.datasets import DatasetFolder

        dataset = DatasetFolder(
            str(self.config.root), read, extensions=(".jpeg", ".jpg"), transform=Decoded(self.config)
        )
        return torch_batches(dataset, self.config, shuffle=True)


class TorchCodec(Peer):
    """Files read and decoded by torchcodec, which torchvision's page names as the successor of its decode_jpeg."""

    packages: ClassVar[dict[str, str]] = {"torchcodec": "torchcodec"}

    def iterate(self) -> Iterator[Batch]:
        from torchcodec.decoders import decode_jpeg
        from torchvision.datasets import DatasetFolder

        dataset = DatasetFolder(
            str(self.config.root), decode_jpeg, extensions=(".jpeg", ".jpg"), transform=augmentation(self.config)
        )
        return torch_batches(dataset, self.config, shuffle=True)


class SpdlTensors(Peer):
    """SPDL's pipeline of threads with any function that gives the interpreter lock back: here torchvision's."""

    packages: ClassVar[dict[str, str]] = {"spdl": "spdl"}

    def iterate(self) -> Iterator[Batch]:
        import torch
        from spdl.pipeline import PipelineBuilder

        torch.set_num_threads(1)
        config = self.config
        builder = PipelineBuilder().add_source(shuffled_entries(config)).pipe(self.image, concurrency=config.workers)
        builder = builder.aggregate(config.batch_size).pipe(self.batch).add_sink(2)
        pipeline = builder.build(num_threads=config.workers, max_failures=0)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    @cached_property
    def decoded(self) -> Decoded:
        return Decoded(self.config)

    def image(self, entry: tuple[str, int]) -> tuple[Any, int]:
        return self.decoded(read(entry[0])), entry[1]

    def batch(self, found: list[tuple[Any, int]]) -> Batch:
        import torch

        images_NCHW = torch.stack([image_CHW for image_CHW, _ in found])
        return images_NCHW.permute(0, 2, 3, 1).numpy(), np.array([label for _, label in found], np.int64)


class Spdl(SpdlTensors):
    """SPDL as its guide shows it: the threads decode and crop with FFmpeg through spdl.io."""

    def image(self, entry: tuple[str, int]) -> tuple[Any, int]:
        import spdl.io

        path, label = entry
        size, packets = self.config.image_size, spdl.io.demux_image(path)
        rows, columns, top, left = crop(packets.height, packets.width)
        graph = f"crop={columns}:{rows}:{left}:{top}:exact=1,scale={size}:{size}:flags={self.config.interpolation}"
        graph += ",hflip" if random.random() < 0.5 else ""
        return spdl.io.decode_packets(packets, filter_desc=f"{graph},format=rgb24"), label

    def batch(self, found: list[tuple[Any, int]]) -> Batch:
        import spdl.io

        images_NHWC = spdl.io.to_numpy(spdl.io.convert_frames([frames for frames, _ in found]))
        return images_NHWC, np.array([label for _, label in found], np.int64)


def crop(height: int, width: int) -> tuple[int, int, int, int]:
    """Return height, width, top and left of a random crop, drawn as torchvision draws it."""
    for _ in range(10):
        area, aspect = height * width * random.uniform(*CROP_AREA), exp(random.uniform(*map(log, CROP_ASPECT)))
        rows, columns = round(sqrt(area / aspect)), round(sqrt(area * aspect))
        if 0 < rows <= height and 0 < columns <= width:
            return rows, columns, random.randint(0, height - rows), random.randint(0, width - columns)
    side = min(height, width)
    return side, side, (height - side) // 2, (width - side) // 2


class Dali(Peer):
    """DALI on the CPU, as its documents have it for ImageNet: decoders.image_random_crop, resize, flip, in threads."""

    packages: ClassVar[dict[str, str]] = {"nvidia": "nvidia-dali-cuda120"}

    def iterate(self) -> Iterator[Batch]:
        from nvidia.dali import fn, pipeline_def, types

        config, size = self.config, self.config.image_size
        filters = {"bicubic": types.INTERP_CUBIC, "bilinear": types.INTERP_LINEAR}

        @pipeline_def
        def images() -> tuple[Any, Any]:
            encoded, labels = fn.readers.file(file_root=str(config.root), random_shuffle=True, name="files")
            area = {"random_area": CROP_AREA, "random_aspect_ratio": CROP_ASPECT}
            crops = fn.decoders.image_random_crop(encoded, device="cpu", output_type=types.RGB, **area)
            filter_ = filters[config.interpolation]
            resized = fn.resize(crops, resize_x=size, resize_y=size, interp_type=filter_, antialias=True)
            return fn.flip(resized, horizontal=fn.random.coin_flip()), labels

        pipeline = images(batch_size=config.batch_size, num_threads=config.workers, device_id=None, seed=1)
        pipeline.build()
        while True:
            found, labels = pipeline.run()
            yield np.asarray(found.as_tensor()), np.asarray(labels.as_tensor()).reshape(-1)


class WebDatasetTensors(Peer):
    """Tar files, in worker processes that make batches."""

    layout: ClassVar[str] = "webdataset"
    packages: ClassVar[dict[str, str]] = {"webdataset": "webdataset"}

    def iterate(self) -> Iterator[Batch]:
        import webdataset

        shards = self.config.shards("*.tar")
        dataset = (
            webdataset.WebDataset(shards, shardshuffle=len(shards))
            .shuffle(SHUFFLE_SAMPLES)
            .to_tuple("jpg;jpeg", "cls")
            .map_tuple(Decoded(self.config), int)
            .batched(self.config.batch_size, partial=False)
        )
        loader = webdataset.WebLoader(
            dataset,
            batch_size=None,
            num_workers=self.config.workers,
            persistent_workers=True,
            worker_init_fn=partial(started_by, os.getpid()),
        )
        return endless(loader, self.config)


class MosaicTensors(Peer):
    """MDS shards with a column of bytes, in worker processes."""

    layout: ClassVar[str] = "mds-bytes"
    packages: ClassVar[dict[str, str]] = {"streaming": "mosaicml-streaming"}

    def iterate(self) -> Iterator[Batch]:
        from streaming import StreamingDataset

        decoded = Decoded(self.config)

        class Images(StreamingDataset):
            def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
                return decoded.row(super().__getitem__(index), "x", "y")

        dataset = Images(local=str(self.config.root), shuffle=True, batch_size=self.config.batch_size)
        return torch_batches(dataset, self.config)


class GrainTensors(Peer):
    """Records of array_record in a global shuffle, with the index of every file in memory, decoded in threads."""

    layout: ClassVar[str] = "array_record"
    packages: ClassVar[dict[str, str]] = {"grain": "grain"}

    def iterate(self) -> Iterator[Batch]:
        import grain
        import torch

        torch.set_num_threads(1)
        decoded, files = Decoded(self.config), self.config.shards("*.array_record")

        def image(record: bytes) -> tuple[Any, Any]:
            image_HWC = decoded(record[LABEL_BYTES:]).permute(1, 2, 0).numpy()
            return image_HWC, np.int64(int.from_bytes(record[:LABEL_BYTES], "little"))

        source = grain.sources.ArrayRecordDataSource(files, reader_options={"index_storage_option": "in_memory"})
        yield from (
            grain.MapDataset.source(source)
            .seed(0)
            .shuffle()
            .repeat()
            .map(image)
            .to_iter_dataset(grain.ReadOptions(num_threads=self.config.workers))
            .batch(self.config.batch_size, drop_remainder=True)
        )


class LitData(Peer):
    """Chunks that litdata.optimize wrote, in worker processes."""

    layout: ClassVar[str] = "litdata"
    packages: ClassVar[dict[str, str]] = {"litdata": "litdata"}

    def iterate(self) -> Iterator[Batch]:
        import litdata

        config, decoded = self.config, Decoded(self.config)

        class Images(litdata.StreamingDataset):
            def __getitem__(self, index: Any) -> tuple[Any, int]:
                return decoded.row(super().__getitem__(index), "image", "class")

        loader = litdata.StreamingDataLoader(
            Images(str(config.root), shuffle=True, drop_last=True),
            batch_size=config.batch_size,
            num_workers=config.workers,
            drop_last=True,
            persistent_workers=True,
        )
        return endless(loader, config)


class LitDataRaw(Peer):
    """StreamingRawDataset over the files themselves, whose labels come from their folders, in worker processes."""

    packages: ClassVar[dict[str, str]] = {"litdata": "litdata"}

    def iterate(self) -> Iterator[Batch]:
        from litdata import StreamingRawDataset

        decoded = Decoded(self.config)
        classes = sorted(path.name for path in self.config.root.iterdir() if path.is_dir())
        cache = tempfile.mkdtemp(prefix="arena-raw-")

        class Images(StreamingRawDataset):
            def setup(self, files: list[Any]) -> list[Any]:
                self.labels = [classes.index(Path(file.path).parent.name) for file in files]
                return files

            def __getitems__(self, indices: list[int]) -> list[tuple[Any, int]]:
                found = super().__getitems__(indices)
                return [(decoded(data), self.labels[index]) for data, index in zip(found, indices, strict=True)]

        dataset = Images(str(self.config.root), cache_dir=cache)
        return torch_batches(dataset, self.config, shuffle=True)


class Energon(Peer):
    """Tars of `dataprep build` that `energon prepare` has indexed; a task encoder in worker processes."""

    layout: ClassVar[str] = "energon"
    packages: ClassVar[dict[str, str]] = {"megatron.energon": "megatron-energon"}

    def iterate(self) -> Iterator[Batch]:
        import torch
        from megatron import energon

        config, decoded = self.config, Decoded(self.config)

        class Images(energon.DefaultTaskEncoder):
            decoder = None

            @energon.stateless(restore_seeds=True)
            def encode_sample(self, sample: Any) -> Any:
                sample.image = decoded(sample.image)
                return sample

            def batch(self, samples: list[Any]) -> tuple[Any, Any]:
                return torch.stack([each.image for each in samples]), torch.tensor(
                    [int(each.label) for each in samples]
                )

        dataset = energon.get_train_dataset(
            config.root,
            worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=config.workers),
            batch_size=config.batch_size,
            shuffle_buffer_size=SHUFFLE_SAMPLES // config.workers,
            max_samples_per_sequence=100,
            task_encoder=Images(),
            batch_drop_last=True,
            repeat=True,
        )
        for images_NCHW, labels_N in energon.get_loader(dataset):
            yield images_NCHW.permute(0, 2, 3, 1).numpy(), labels_N.numpy()


class HuggingFace(Peer):
    """Hugging Face datasets: parquet with an Image column, streamed through a shuffle buffer, decoded with PIL."""

    layout: ClassVar[str] = "parquet"
    packages: ClassVar[dict[str, str]] = {"datasets": "datasets"}
    in_tensors: ClassVar[bool] = False

    def iterate(self) -> Iterator[Batch]:
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ.setdefault("HF_HOME", tempfile.mkdtemp(prefix="arena-hub-"))
        import datasets
        import torch

        files = self.config.shards("*.parquet")
        rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        rows = rows.cast_column("image", datasets.Image(decode=not self.in_tensors))
        decoded = Decoded(self.config) if self.in_tensors else tensor_augmentation(self.config.image_size)

        def image(row: dict[str, Any]) -> dict[str, Any]:
            found = row["image"]
            return {"image": decoded(found["bytes"] if isinstance(found, dict) else found), "label": row["label"]}

        def pair(rows: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.stack([row["image"] for row in rows]), torch.tensor([row["label"] for row in rows])

        rows = rows.shuffle(buffer_size=SHUFFLE_SAMPLES, seed=1).map(image)
        return torch_batches(rows, self.config, collate_fn=pair)


class HuggingFaceTensors(HuggingFace):
    """The same, with bytes decoded to tensors by torchvision."""

    in_tensors: ClassVar[bool] = True


class Lance(Peer):
    """LanceDB's StreamingDataset of a table with a column of bytes, which reads and transforms in threads."""

    layout: ClassVar[str] = "lance"
    packages: ClassVar[dict[str, str]] = {"lancedb": "lancedb"}

    def iterate(self) -> Iterator[Batch]:
        import lancedb
        import torch
        from lancedb.streaming import StreamingDataset
        from torch.utils.data import DataLoader

        torch.set_num_threads(1)
        config, decoded = self.config, Decoded(self.config)
        table = lancedb.connect(str(config.root)).open_table("images")

        def images(batch: Any) -> list[tuple[Any, int]]:
            return [decoded.row(row) for row in batch.to_pylist()]

        for epoch in range(1 << 20):
            dataset = StreamingDataset(
                table, shuffle_seed=1, epoch=epoch, transform=images, transform_parallelism=config.workers
            )
            for images_NCHW, labels_N in DataLoader(dataset, config.batch_size, drop_last=True):
                yield images_NCHW.permute(0, 2, 3, 1).numpy(), labels_N.numpy()
