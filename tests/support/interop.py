"""Our datasets read by the libraries they are meant for, each in the way its own documentation says.

Every reader returns `(key, label, SHA-256 of the stored image)` in the order in which the library yields, the label
-1 where the dataset has no classes. The libraries run in processes of their own.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.libraries import in_process, in_process_of

Read = tuple[str, int, str]

NO_LABEL = -1


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@in_process_of("torch")
def read_with_webdataset(urls: Sequence[str] | str, workers: int = 0) -> list[Read]:
    """The shards' samples by `webdataset.WebDataset` in a DataLoader with workers; a string may hold braces, as in
    `train-{00000..00003}.tar`."""
    import torch.utils.data
    import webdataset

    dataset = webdataset.WebDataset(urls, shardshuffle=False).decode(only=["cls", "json"])
    read = []
    for sample in torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers):
        label = sample.get("cls", NO_LABEL)
        if sample["json"].get("label", NO_LABEL) != label:
            raise ValueError(f"{sample['__key__']}: label {label} in .cls, another in {sample['json']}")
        read.append((sample["__key__"], label, _sha256(sample["jpg"])))
    return read


@in_process_of("torch")
def read_with_hf_datasets(urls: Sequence[str]) -> list[Read]:
    """The shards' samples by `datasets.load_dataset("webdataset")`, prepared in a cache of their own, offline."""
    import datasets

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        dataset = datasets.load_dataset("webdataset", data_files={"train": list(urls)}, split="train", cache_dir=cache)
        dataset = dataset.cast_column("jpg", datasets.Image(decode=False))
        return [(row["__key__"], row.get("cls", NO_LABEL), _sha256(row["jpg"]["bytes"])) for row in dataset]


def read_with_timm(
    reader: str, root: Path | None, split: str = "train", *, workers: int = 0, **keys: object
) -> tuple[int, list[tuple[int, str]]]:
    """The length that timm's dataset states, and label and digest of the pixels of each sample, as `train.py` reads
    them.

    Args:
        reader: timm's name of the dataset: `wds/`, `hfds/FOLDER`, `tfds/NAME`, or empty for folders.
        root: Folder for the reader.
        split: Split for the reader.
        workers: Workers of the DataLoader.
        keys: Names of image and label.
    """
    process = "tensorflow" if reader.startswith("tfds") else "torch"
    return in_process(process, _timm, reader, root and str(root), split, workers, keys)


def _timm(
    reader: str, root: str | None, split: str, workers: int, keys: dict[str, Any]
) -> tuple[int, list[tuple[int, str]]]:
    import torch.utils.data
    from timm.data import create_dataset

    dataset = create_dataset(reader, root=root, split=split, **keys)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, collate_fn=lambda each: each, num_workers=workers)
    return len(dataset), [(int(label), _sha256(image.tobytes())) for image, label in loader]


@in_process_of("torch")
def read_annotations_with_webdataset(urls: Sequence[str]) -> list[dict[str, Any]]:
    """The content of `.json` of all samples, with the key and the members of features, by `webdataset.WebDataset`."""
    import webdataset

    dataset = webdataset.WebDataset(list(urls), shardshuffle=False).decode(only=["json", "txt"])
    return [{"key": sample["__key__"]} | sample["json"] | _members(sample) for sample in dataset]


def _members(sample: dict[str, Any]) -> dict[str, Any]:
    """The members that are features, the caption by its name."""
    return {
        "caption" if suffix == "txt" else suffix: value
        for suffix, value in sample.items()
        if not suffix.startswith("__") and suffix not in ("cls", "jpg", "json")
    }


OPEN_CLIP = str(Path(__file__).parents[2] / ".bench-venv/open_clip")
"""Folder of open_clip, with webdataset as it wants it."""
TINY_CLIP = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}


@in_process_of("open_clip")
def train_with_open_clip(urls: Sequence[str], samples: int, folder: Path, *options: str) -> str:
    """What open_clip's own training program logs, with a small CLIP on the processor; checkpoints are in the folder."""
    sys.path.insert(0, OPEN_CLIP)
    from open_clip_train.main import main

    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny/open_clip_config.json").write_text(json.dumps({"model_cfg": TINY_CLIP}))
    data = ["--train-data", "::".join(urls), "--dataset-type", "webdataset", "--train-num-samples", str(samples)]
    model = ["--model", f"local-dir:{folder}/tiny", "--device", "cpu", "--precision", "fp32", "--workers", "1"]
    main([*data, *model, "--logs", str(folder), "--name", "run", "--warmup", "1", "--log-every-n-steps", "1", *options])
    return (folder / "run/out.log").read_text()


@in_process_of("open_clip")
def read_with_open_clip(urls: Sequence[str], samples: int) -> list[tuple[tuple[int, int], str]]:
    """Width and height of the images, and the captions, that open_clip's own training takes in an epoch of this length,
    sorted: what its filter drops is missing, and others come twice."""
    sys.path.insert(0, OPEN_CLIP)
    from open_clip_train.data import get_wds_dataset

    asked = SimpleNamespace(
        train_data="::".join(urls),
        train_num_samples=samples,
        train_data_upsampling_factors=None,
        batch_size=1,
        seed=0,
        workers=0,
        world_size=1,
    )
    found = get_wds_dataset(asked, lambda image: image.size, is_train=True, tokenizer=lambda text: [text])
    return sorted((size, text) for (size,), (text,) in found.dataloader)


@in_process_of("torch")
def read_annotations_with_hf_datasets(kind: str, urls: Sequence[str] | str) -> list[dict[str, Any]]:
    """The rows of `datasets.load_dataset(kind)` without their images, which must be the same if they are streamed.

    Args:
        kind: The builder, webdataset or imagefolder.
        urls: Shards, or for an image folder the folder of a split.
    """
    import datasets

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        given = {"data_dir": urls} if isinstance(urls, str) else {"data_files": {"train": list(urls)}}
        image = "jpg" if kind == "webdataset" else "image"

        def rows(*, streaming: bool) -> list[dict[str, Any]]:
            dataset = datasets.load_dataset(kind, **given, split="train", cache_dir=cache, streaming=streaming)
            dataset = dataset.cast_column(image, datasets.Image(decode=False))
            return [
                {name: value for name, value in row.items() if name != image} | _file_of(row[image]) for row in dataset
            ]

        loaded = rows(streaming=False)
        if rows(streaming=True) != loaded:
            raise ValueError(f"{kind} of {urls}: other rows if they are streamed")
        return loaded


@in_process_of("torch")
def read_card_with_hf_datasets(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of all splits by `datasets.load_dataset(folder)`, which reads what the card names."""
    import datasets

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        found = datasets.load_dataset(str(folder), cache_dir=cache).cast_column("image", datasets.Image(decode=False))
        return {split: [row | {"image": _file_of(row["image"])} for row in rows] for split, rows in found.items()}


def _file_of(image: dict[str, Any]) -> dict[str, Any]:
    return {"path": image["path"], "sha256": _sha256(image["bytes"] or Path(image["path"]).read_bytes())}


@in_process_of("torch")
def read_with_torchvision(folder: Path, *, has_classes: bool) -> list[Read]:
    """A split's samples by `torchvision.datasets.ImageFolder`, every image decoded too; keys are `folder/name`."""
    import torchvision

    dataset = torchvision.datasets.ImageFolder(str(folder))
    read = []
    for (path, label), (image, decoded_label) in zip(dataset.samples, dataset, strict=True):
        if image.mode != "RGB" or label != decoded_label:
            raise ValueError(f"{path}: decoded as {image.mode} with label {decoded_label}")
        key = Path(path).relative_to(folder).with_suffix("").as_posix()
        read.append((key, label if has_classes else NO_LABEL, _sha256(Path(path).read_bytes())))
    return read


@in_process_of("torch")
def read_with_coco_detection(folder: Path, annotations: Path) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Name, digest and targets of the images in a folder by `torchvision.datasets.CocoDetection`, every image decoded;
    images of the annotation file that are not in the folder are left out."""
    import contextlib

    import torchvision

    with contextlib.redirect_stdout(io.StringIO()):
        dataset = torchvision.datasets.CocoDetection(str(folder), str(annotations))
    names = {number: dataset.coco.imgs[number]["file_name"] for number in dataset.ids}
    dataset.ids = [number for number in dataset.ids if (folder / names[number]).exists()]
    read = []
    for number, (image, targets) in zip(dataset.ids, dataset, strict=True):
        if image.mode != "RGB":
            raise ValueError(f"{names[number]}: decoded as {image.mode}")
        read.append((names[number], _sha256((folder / names[number]).read_bytes()), targets))
    return read


def _open_tfds(directory: Path, split: str) -> tuple[Any, list[str], Iterator[tuple[dict[str, Any], dict[str, Any]]]]:
    """Return the builder of a directory, the names of its images, and every example undecoded and decoded."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(directory)
    images = [name for name, feature in builder.info.features.items() if isinstance(feature, tfds.features.Image)]
    # TFDS reads shards side by side unless it is told to keep their order.
    config = tfds.ReadConfig(interleave_cycle_length=1)
    read = (
        builder.as_dataset(split=split, decoders=decoders, read_config=config).as_numpy_iterator()
        for decoders in ({name: tfds.decode.SkipDecoding() for name in images}, None)
    )
    return builder, images, zip(*read, strict=True)


@in_process_of("tensorflow")
def read_with_tfds(directory: Path, split: str = "train") -> list[Read]:
    """A split's samples by `tfds.builder_from_directory`, once undecoded and once decoded, which must agree."""
    import numpy as np
    import PIL.Image

    read = []
    for example, seen in _open_tfds(directory, split)[2]:
        pixels = np.asarray(PIL.Image.open(io.BytesIO(example["image"])).convert("RGB"))  # uint8 HWC
        key = example["key"].decode()
        if seen["image"].shape != pixels.shape or seen["key"] != example["key"]:
            raise ValueError(f"{key}: {seen['image'].shape} decoded by TFDS, {pixels.shape} by Pillow")
        read.append((key, int(example.get("label", NO_LABEL)), _sha256(example["image"])))
    return read


@in_process_of("tensorflow")
def read_by_name_with_tfds(name: str, data_dir: Path, split: str) -> list[tuple[str, int, str]]:
    """File name, label and digest of the stored image of each sample, by `tfds.load` with its defaults.

    A second reading is big_vision's (big_vision/datasets/tfds.py): the same samples, undecoded, with an identity.
    """
    import tensorflow as tf
    import tensorflow_datasets as tfds

    decoded = tfds.load(name, split=split, data_dir=data_dir).as_numpy_iterator()
    builder = tfds.builder(name, data_dir=data_dir)
    stored = builder.as_dataset(
        split=tfds.even_splits(split, 1)[0],
        shuffle_files=False,
        read_config=tfds.ReadConfig(skip_prefetch=True, try_autocache=False, add_tfds_id=True),
        decoders={"image": tfds.decode.SkipDecoding()},
    )
    pixels = {example["file_name"]: example["image"] for example in decoded}
    read = []
    for example in stored.as_numpy_iterator():
        image, file_name = example["image"], example["file_name"]
        if not (tf.io.decode_jpeg(image, channels=3).numpy() == pixels[file_name]).all() or not example["tfds_id"]:
            raise ValueError(f"{file_name}: decoded otherwise by TFDS")
        read.append((file_name.decode(), int(example["label"]), _sha256(image)))
    if len(read) != builder.info.splits[split].num_examples or len(read) != len(pixels):
        raise ValueError(f"{len(read)} samples, {builder.info.splits[split].num_examples} expected")
    return read


@in_process_of("tensorflow")
def read_features_with_tfds(directory: Path, split: str = "train") -> list[dict[str, Any]]:
    """All features of a split's samples by TFDS, as Python values, images as the bytes that are stored; every image is
    decoded, too."""
    _, images, pairs = _open_tfds(directory, split)
    read = []
    for example, seen in pairs:
        if any(seen[name].ndim != 3 for name in images):
            raise ValueError(f"{example['key']}: images that are no arrays of three dimensions")
        read.append({name: _plain(value) for name, value in example.items()})
    return read


@in_process_of("tensorflow")
def read_captions_with_tfds(directory: Path) -> tuple[list[int], list[dict[str, Any]]]:
    """Samples by shard, and the scalar features of every sample of train by TFDS, with the digest of the image's bytes,
    and the shape of the image that TFDS decodes."""
    builder, _, pairs = _open_tfds(directory, "train")
    read = []
    for sample, seen in pairs:
        image = sample.pop("jpg")
        values = {name: v.decode() if isinstance(v, bytes) else v.item() for name, v in sample.items()}
        read.append(values | {"sha256 of jpg": _sha256(image), "shape": list(seen["jpg"].shape)})
    return list(builder.info.splits["train"].shard_lengths), read


def _plain(value: Any) -> Any:
    """Arrays as lists, and records as dictionaries of them."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return value if isinstance(value, bytes) else value.tolist()


@in_process_of("tensorflow")
def describe_with_tfds(directory: Path) -> dict[str, Any]:
    """What TFDS takes a directory for: its name, version, samples by split, class names, features and texts."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(directory)
    features = builder.info.features
    return {
        "name": builder.name,
        "version": str(builder.version),
        "samples": {name: list(split.shard_lengths) for name, split in builder.info.splits.items()},
        "class_names": features["label"].names if "label" in features else [],
        "supervised_keys": builder.info.supervised_keys,
        "licence": builder.info.as_proto.redistribution_info.license,
        "citation": builder.info.citation,
        "description": builder.info.description,
        "features": features.to_json(),
    }


@in_process_of("tensorflow")
def parse_with_tensorflow(shards: Sequence[Path], *, has_classes: bool) -> list[dict[str, Any]]:
    """The features of every record by `tf.data.TFRecordDataset` and `tf.io.parse_single_example`."""
    import tensorflow as tf

    scalars = ["height", "width", "orientation", *(["label"] if has_classes else [])]
    types = dict.fromkeys(("image", "key"), tf.string) | dict.fromkeys(scalars, tf.int64)
    schema = {name: tf.io.FixedLenFeature([], dtype) for name, dtype in types.items()}
    records = tf.data.TFRecordDataset(list(map(str, shards))).map(
        lambda record: tf.io.parse_single_example(record, schema)
    )
    return [
        {name: value if isinstance(value, bytes) else int(value) for name, value in example.items()}
        for example in records.as_numpy_iterator()
    ]


@in_process_of("tensorflow")
def encode_with_tensorflow(features: Sequence[dict[str, int | bytes]]) -> list[bytes]:
    """Each as a `tf.train.Example`, serialised deterministically."""
    import tensorflow as tf

    def feature(value: int | bytes) -> tf.train.Feature:
        if isinstance(value, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    examples = [
        tf.train.Example(features=tf.train.Features(feature={name: feature(value) for name, value in sample.items()}))
        for sample in features
    ]
    return [example.SerializeToString(deterministic=True) for example in examples]
