"""Faults planted into a copy of a finished dataset, for the tests of what must find them.

`linked_copy` costs a hard link a file; a fault replaces the files that it changes and leaves the original's alone:

    linked_copy(good, work); description = plant(work, seed); assert not whole(work)

Half of the faults that can be are signed: sizes and digests in the manifest are made right again, so that only a look
at the content finds them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.paths import CARDS
from dataprep.dataset.records import Sample
from dataprep.formats import FORMATS
from dataprep.storage.checksums import HashingWriter

UNCHECKABLE = frozenset(
    {"codecs", "plan_hash", "sources", "origin", "licence", "revision", "seed", "shard_bytes", "num_shards", "on_bad"}
    | {"apply_exif", "short_side", "quality", "schema_version", "fake_images"}
)
"""Fields of the manifest of which nothing else in a dataset says what they should be."""


def linked_copy(source: Path, target: Path) -> None:
    """A copy of a dataset whose files are hard links; an existing one is removed."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=os.link, symlinks=True)


def plant(root: Path, seed: int) -> str:
    """Plant one fault, drawn by `seed`, into a linked copy; says which."""
    rng = random.Random(seed)
    dataset = Damaged(root)
    faults = list(_FAULTS)
    rng.shuffle(faults)
    for fault in faults:
        description = fault(dataset, rng)
        if description:
            return f"{fault.__name__.strip('_')}: {description}"
    raise ValueError(f"{root}: no fault fits this dataset")


@dataclass
class Damaged:
    """A dataset on disk that may be changed at will; no file is ever written in place."""

    root: Path

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.root / MANIFEST).read_bytes())
        return document

    @property
    def is_folder(self) -> bool:
        return FORMATS[self.document["format"]].one_file_per_image

    def write(self, name: str, data: bytes) -> None:
        """Replace a file, or make one, without touching what it was linked to."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(data)

    def write_document(self, document: dict[str, Any]) -> None:
        """Replace the manifest, in the form in which builds write it."""
        text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
        self.write(MANIFEST, text.encode() + b"\n")

    def read_shard(self, name: str) -> list[Sample]:
        """The samples of a shard that is a file."""
        shard_format = FORMATS[self.document["format"]]
        with (self.root / name).open("rb") as stream:
            return [stored.sample for stored in shard_format.read_shard(stream, classes=self.classes)]

    def write_shard(self, name: str, samples: list[Sample]) -> None:
        """Replace a shard by one that the format's own writer makes of these samples."""
        shard_format = FORMATS[self.document["format"]]
        path = self.root / name
        path.unlink()
        with path.open("wb") as stream:
            writer = shard_format.open_writer(stream, has_classes=bool(self.classes))
            for sample in samples:
                writer.write(sample)
            writer.close()

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.document["classes"])

    def shards(self) -> list[str]:
        """Files of all shards; of an image folder of all images."""
        if self.is_folder:
            folders = [split["name"] for split in self.document["splits"]] + ["images"]
            files = (
                path for folder in folders for path in (self.root / folder).glob("*/*") if not path.parent.is_symlink()
            )
            return sorted(str(path.relative_to(self.root)) for path in files)
        return [shard["file"] for split in self.document["splits"] for shard in split["shards"]]

    def tables(self) -> list[str]:
        """Index and events files."""
        return [split[kind]["file"] for split in self.document["splits"] for kind in ("index", "events")]

    def change_table(self, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
        """Rewrite a parquet file, its row groups kept; `change` gets each that has rows."""
        file = pq.ParquetFile(self.root / name)
        groups = [file.read_row_group(group) for group in range(file.num_row_groups)]
        schema = file.schema_arrow
        (self.root / name).unlink()
        with pq.ParquetWriter(self.root / name, schema) as writer:
            for group in groups:
                table = change(group) if group.num_rows else group
                writer.write_table(table, row_group_size=max(1, table.num_rows))

    def sign(self) -> None:
        """Make sizes and digests in the manifest right again, and those that TFDS's metadata repeats.

        The cards are removed: they are those of the manifest before.
        """
        for name in CARDS:
            (self.root / name).unlink(missing_ok=True)
        document = self.document
        for split in document["splits"]:
            if not self.is_folder:
                for shard in split["shards"]:
                    self._sign(shard)
                split["num_bytes"] = sum(shard["bytes"] for shard in split["shards"])
            self._sign(split["index"])
            self._sign(split["events"])
        info_path = self.root / "dataset_info.json"
        if info_path.exists():
            num_bytes = {split["name"]: str(split["num_bytes"]) for split in document["splits"]}
            info = json.loads(info_path.read_bytes())
            for split in info["splits"]:
                split["numBytes"] = num_bytes.get(split["name"], split["numBytes"])
            self.write(info_path.name, json.dumps(info, indent=2, sort_keys=True).encode() + b"\n")
        for entry in document["files"]:
            self._sign(entry)
        self.write_document(document)

    def _sign(self, entry: dict[str, Any]) -> None:
        digest = HashingWriter()
        digest.write((self.root / entry["file"]).read_bytes())
        entry |= {"bytes": digest.num_bytes, "sha256": digest.sha256}
        if "crc32c" in entry:
            entry["crc32c"] = digest.crc32c


def _maybe_signed(dataset: Damaged, rng: random.Random) -> str:
    if rng.random() < 0.5:
        return ""
    dataset.sign()
    return ", signed"


def _flip_bit(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    at, bit = rng.randrange(len(data)), rng.randrange(8)
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :], f"bit {bit} of byte {at:,}"


# Each fault returns what it did, or "" where it does not fit the dataset and nothing was changed.


def _bit_flip_in_shard(dataset: Damaged, rng: random.Random) -> str:
    name = rng.choice(dataset.shards())
    data, where = _flip_bit((dataset.root / name).read_bytes(), rng)
    dataset.write(name, data)
    return f"{name}: {where}"


def _bit_flip_beside_shards(dataset: Damaged, rng: random.Random) -> str:
    name = rng.choice([*dataset.tables(), *(entry["file"] for entry in dataset.document["files"])])
    data, where = _flip_bit((dataset.root / name).read_bytes(), rng)
    dataset.write(name, data)
    return f"{name}: {where}"


def _truncation(dataset: Damaged, rng: random.Random) -> str:
    name = rng.choice(dataset.shards())
    data = (dataset.root / name).read_bytes()
    left = rng.choice([0, rng.randrange(len(data)), len(data) - 1])
    dataset.write(name, data[:left])
    return f"{name}: {left:,} of {len(data):,} bytes{'' if dataset.is_folder else _maybe_signed(dataset, rng)}"


def _lengthening(dataset: Damaged, rng: random.Random) -> str:
    name = rng.choice(dataset.shards())
    more = rng.choice([b"\0", bytes(512), rng.randbytes(rng.randrange(1, 3000))])
    dataset.write(name, (dataset.root / name).read_bytes() + more)
    return f"{name}: {len(more):,} bytes more{'' if dataset.is_folder else _maybe_signed(dataset, rng)}"


def _missing_shard(dataset: Damaged, rng: random.Random) -> str:
    name = rng.choice(dataset.shards())
    (dataset.root / name).unlink()
    return name


def _extra_shard(dataset: Damaged, rng: random.Random) -> str:
    name = rng.choice(dataset.shards())
    stem, _, suffix = Path(name).name.partition(".")
    extra = str(Path(name).with_name(rng.choice([f"{stem}-2.{suffix}", f"0{stem}.{suffix}", f"{stem}-copy.{suffix}"])))
    dataset.write(extra, (dataset.root / name).read_bytes())
    return extra


def _duplicated_sample(dataset: Damaged, rng: random.Random) -> str:
    name = rng.choice(dataset.shards())
    if dataset.is_folder:
        folder = f"{name.split('/')[0]}/{rng.choice(['n00000001', 'zz'])}"
        dataset.write(f"{folder}/{Path(name).name}", (dataset.root / name).read_bytes())
        return f"{name} in {folder} too"
    samples = dataset.read_shard(name)
    if len(samples) < 2:
        return ""
    one, other = rng.sample(range(len(samples)), 2)
    if rng.random() < 0.5:
        samples.insert(other, samples[one])
        how = f"record {one} again before {other}"
    else:
        samples[other] = samples[one]
        how = f"record {one} in place of {other}"
    dataset.write_shard(name, samples)
    return f"{name}: {how}{_maybe_signed(dataset, rng)}"


def _dropped_sample(dataset: Damaged, rng: random.Random) -> str:
    name = rng.choice(dataset.shards())
    if dataset.is_folder or not (samples := dataset.read_shard(name)):
        return ""
    at = rng.randrange(len(samples))
    dataset.write_shard(name, samples[:at] + samples[at + 1 :])
    return f"{name}: without record {at}{_maybe_signed(dataset, rng)}"


def _swapped_samples(dataset: Damaged, rng: random.Random) -> str:
    if dataset.is_folder:
        one, other = rng.sample(dataset.shards(), 2)
        first, second = ((dataset.root / name).read_bytes() for name in (one, other))
        dataset.write(one, second)
        dataset.write(other, first)
        return f"{one} and {other}" if first != second else ""
    name = rng.choice(dataset.shards())
    samples = dataset.read_shard(name)
    if len(samples) < 2:
        return ""
    i, j = rng.sample(range(len(samples)), 2)
    samples[i], samples[j] = samples[j], samples[i]
    dataset.write_shard(name, samples)
    return f"{name}: records {i} and {j}{_maybe_signed(dataset, rng)}"


def _swapped_shards(dataset: Damaged, rng: random.Random) -> str:
    if dataset.is_folder or len(dataset.shards()) < 2:
        return ""
    one, other = rng.sample(dataset.shards(), 2)
    first, second = ((dataset.root / name).read_bytes() for name in (one, other))
    dataset.write(one, second)
    dataset.write(other, first)
    return f"{one} and {other}{_maybe_signed(dataset, rng)}" if first != second else ""


def _label_changed(dataset: Damaged, rng: random.Random) -> str:
    classes = dataset.classes
    if len(classes) < 2:
        return ""
    name = rng.choice(dataset.shards())
    if dataset.is_folder:
        split, folder, basename = name.split("/")
        label = rng.choice([other for other in classes if other != folder])
        dataset.write(f"{split}/{label}/{basename}", (dataset.root / name).read_bytes())
        (dataset.root / name).unlink()
        return f"{name} to {label}"
    samples = dataset.read_shard(name)
    if not samples:
        return ""
    at = rng.randrange(len(samples))
    label = rng.choice([other for other in range(len(classes)) if other != samples[at].label])
    samples[at] = samples[at]._replace(label=label, class_name=classes[label])
    dataset.write_shard(name, samples)
    return f"{name}: record {at} is {classes[label]}{_maybe_signed(dataset, rng)}"


def _image_of_another(dataset: Damaged, rng: random.Random) -> str:
    if dataset.is_folder:
        one, other = rng.sample(dataset.shards(), 2)
        before, after = (dataset.root / one).read_bytes(), (dataset.root / other).read_bytes()
        dataset.write(one, after)
        return f"{one} has that of {other}" if before != after else ""
    name = rng.choice(dataset.shards())
    samples = dataset.read_shard(name)
    if len({sample.image for sample in samples}) < 2:
        return ""
    at = rng.randrange(len(samples))
    other = rng.choice([sample for sample in samples if sample.image != samples[at].image])
    samples[at] = samples[at]._replace(image=other.image, height=other.height, width=other.width)
    dataset.write_shard(name, samples)
    return f"{name}: record {at} has that of {other.key}{_maybe_signed(dataset, rng)}"


def _index_row_changed(dataset: Damaged, rng: random.Random) -> str:
    name = rng.choice(dataset.document["splits"])["index"]["file"]
    column = rng.choice(pq.read_schema(dataset.root / name).names)
    changed = ""

    def change(table: pa.Table) -> pa.Table:
        nonlocal changed
        if changed:
            return table
        at = rng.randrange(table.num_rows)
        values = table.column(column).to_pylist()
        values[at] = f"{values[at]}x" if isinstance(values[at], str) else (values[at] or 0) + 1
        changed = f"{column} of row {at}"
        position = table.column_names.index(column)
        return table.set_column(position, column, pa.array(values, table.schema.field(column).type))

    dataset.change_table(name, change)
    return f"{name}: {changed}{_maybe_signed(dataset, rng)}" if changed else ""


def _row_dropped(dataset: Damaged, rng: random.Random) -> str:
    name = rng.choice(dataset.tables())
    if pq.read_metadata(dataset.root / name).num_rows == 0:
        return ""
    dropped = ""

    def change(table: pa.Table) -> pa.Table:
        nonlocal dropped
        if dropped:
            return table
        at = rng.randrange(table.num_rows)
        dropped = f"row {at}"
        return pa.concat_tables([table.slice(0, at), table.slice(at + 1)])

    dataset.change_table(name, change)
    return f"{name}: without {dropped}{_maybe_signed(dataset, rng)}"


def _missing_file(dataset: Damaged, rng: random.Random) -> str:
    name = rng.choice([*dataset.tables(), *(entry["file"] for entry in dataset.document["files"])])
    (dataset.root / name).unlink()
    return name


def _metadata_changed(dataset: Damaged, rng: random.Random) -> str:
    names = [entry["file"] for entry in dataset.document["files"]]
    if not names:
        return ""
    name = rng.choice(names)
    data = (dataset.root / name).read_bytes()
    if name.endswith(".txt"):
        lines = data.splitlines(keepends=True)
        dataset.write(name, b"".join([b"n99999999\n", *lines[1:]]))
        what = "the first class"
    else:
        content = json.loads(data)
        what = _change_leaf(content, rng, frozenset({"citation", "description"}))
        dataset.write(name, json.dumps(content, indent=2, sort_keys=True).encode() + b"\n")
    return f"{name}: {what}{_maybe_signed(dataset, rng)}"


def _manifest_changed(dataset: Damaged, rng: random.Random) -> str:
    document = dataset.document
    what = _change_leaf(document, rng, UNCHECKABLE)
    dataset.write_document(document)
    return what


def _change_leaf(content: Any, rng: random.Random, spared: frozenset[str]) -> str:
    """Change one value somewhere in a JSON document; the path to it."""
    leaves = list(_leaves(content, spared, ()))
    parent, key, path = rng.choice(leaves)
    value = parent[key]
    if isinstance(value, bool):
        parent[key] = not value
    elif isinstance(value, int):
        parent[key] = value + rng.choice([1, -1, 1000])
    elif isinstance(value, str) and value:
        at = rng.randrange(len(value))
        parent[key] = value[:at] + ("1" if value[at] == "0" else "0") + value[at + 1 :]
    else:
        parent[key] = "changed"
    return f"{'.'.join(map(str, path))} from {value!r} to {parent[key]!r}"


def _leaves(content: Any, spared: frozenset[str], path: tuple[Any, ...]) -> Any:
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        if key in spared:
            continue
        if isinstance(value, dict | list):
            yield from _leaves(value, spared, (*path, key))
        else:
            yield content, key, (*path, key)


def _link_changed(dataset: Damaged, rng: random.Random) -> str:
    links = sorted(path for path in dataset.root.glob("*/*") if path.is_symlink())
    if not links:
        return ""
    link = rng.choice(links)
    how = rng.choice(["removed", "redirected", "one more"])
    if how == "one more":
        link.with_name(f"{link.name}0").symlink_to(link.readlink())
    else:
        link.unlink()
        if how == "redirected":
            link.symlink_to("../images")
    return f"{link.relative_to(dataset.root)} {how}"


_FAULTS: tuple[Callable[[Damaged, random.Random], str], ...] = (
    _bit_flip_in_shard, _bit_flip_beside_shards, _truncation, _lengthening, _missing_shard, _extra_shard,
    _duplicated_sample, _dropped_sample, _swapped_samples, _swapped_shards, _label_changed, _image_of_another,
    _index_row_changed, _row_dropped, _missing_file, _metadata_changed, _manifest_changed, _link_changed,
)  # fmt: skip
