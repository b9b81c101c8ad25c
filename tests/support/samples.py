"""Samples for the tests of the formats: Hypothesis strategies over all that a shard can hold, and whole shards."""

from __future__ import annotations

import io
import re
import string
from collections.abc import Callable, Sequence

from hypothesis import settings
from hypothesis import strategies as st

from dataprep.dataset.features import NO_FEATURES, Features
from dataprep.dataset.records import NO_LABEL, Placement, Sample
from dataprep.errors import FormatError
from dataprep.formats.base import ShardFormat

CLASSES = ("n01440764", 'a "quoted" name', "Grünfink \u2028 🐦", "back\\slash")

examples = settings(derandomize=True)
"""How the formats' properties are tried: the same examples everywhere, however slow the machine."""

_KEY_CHARACTERS = string.ascii_letters + string.digits + "_-/="


def _tidy_key(text: str) -> str:
    """The nearest key: escapes whole, no empty component, none that starts with two underscores."""
    cut = re.sub(r"=([0-9A-F]?)\Z", "", text.replace("=", "=E2")[:200])
    components = [re.sub(r"\A__+", "_", component) for component in cut.split("/")]
    return "/".join(component for component in components if component) or "k"


keys = st.integers(1, 200).flatmap(lambda size: st.text(_KEY_CHARACTERS, min_size=size, max_size=size)).map(_tidy_key)


def samples(*, has_classes: bool, max_image_bytes: int = 3000) -> st.SearchStrategy[Sample]:
    """Any sample that a shard of CLASSES, or of no classes, can hold; the image is any bytes."""
    labels = st.integers(0, len(CLASSES) - 1) if has_classes else st.just(NO_LABEL)
    sides = st.one_of(st.integers(0, 200), st.integers(0, 65_535))
    return st.builds(
        lambda key, image, label, height, width, orientation: Sample(
            key, image, label, CLASSES[label] if has_classes else "", height, width, orientation
        ),
        keys,
        st.one_of(st.binary(min_size=1, max_size=40), st.binary(min_size=400, max_size=max_image_bytes)),
        labels,
        sides,
        sides,
        st.integers(1, 8),
    )


def shards(*, has_classes: bool, min_size: int = 0) -> st.SearchStrategy[list[Sample]]:
    """The samples of one shard, none to four."""
    return st.lists(samples(has_classes=has_classes), min_size=min_size, max_size=4)


any_shards = st.sampled_from([CLASSES, ()]).flatmap(
    lambda classes: st.tuples(shards(has_classes=bool(classes)), st.just(classes))
)
"""Samples of a shard, and their classes."""


def write_shard(
    shard_format: ShardFormat, shard: Sequence[Sample], *, has_classes: bool, features: Features = NO_FEATURES
) -> tuple[bytes, list[Placement]]:
    """One shard's bytes, and where each sample lies."""
    stream = io.BytesIO()
    writer = shard_format.open_writer(stream, has_classes=has_classes, features=features)
    placements = [writer.write(sample) for sample in shard]
    writer.close()
    return stream.getvalue(), placements


def read_samples(
    shard_format: ShardFormat, data: bytes, *, classes: tuple[str, ...], features: Features = NO_FEATURES
) -> list[Sample]:
    stored = shard_format.read_shard(io.BytesIO(data), classes=classes, features=features)
    return [found.sample for found in stored]


def accepted(
    shard_format: ShardFormat, data: bytes, *, classes: tuple[str, ...], features: Features = NO_FEATURES
) -> list[Sample] | None:
    """The samples, or None for a FormatError; what is accepted must be what the writer writes for it."""
    try:
        found = read_samples(shard_format, data, classes=classes, features=features)
    except FormatError:
        return None
    again, _ = write_shard(shard_format, found, has_classes=bool(classes), features=features)
    assert again == data, f"{len(data)} bytes were accepted, of which the writer would have written {len(again)}"
    return found


def mutations(data: bytes) -> st.SearchStrategy[bytes]:
    """The bytes with one to three faults: a bit turned, a run cut out, zeroed, doubled or put in, an end cut off."""
    at = st.integers(0, max(len(data) - 1, 0))
    sizes = st.one_of(st.integers(1, 20), st.sampled_from([511, 512, 513, 1024]))
    fault: st.SearchStrategy[Callable[[bytes], bytes]] = st.one_of(
        st.builds(_turn_bit, at, st.integers(0, 7)),
        st.builds(lambda i, size: lambda data: data[:i] + data[i + size :], at, sizes),
        st.builds(lambda i, size: lambda data: data[:i] + bytes(len(data[i : i + size])) + data[i + size :], at, sizes),
        st.builds(lambda i, size: lambda data: data[: i + size] + data[i:], at, sizes),
        st.builds(lambda i, new: lambda data: data[:i] + new + data[i:], at, st.binary(min_size=1, max_size=20)),
        st.builds(lambda i: lambda data: data[:i], at),
    )

    def apply(faults: list[Callable[[bytes], bytes]]) -> bytes:
        changed = data
        for make in faults:
            changed = make(changed)
        return changed

    return st.lists(fault, min_size=1, max_size=3).map(apply)


def _turn_bit(position: int, bit: int) -> Callable[[bytes], bytes]:
    def turn(data: bytes) -> bytes:
        if position >= len(data):
            return data
        return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]

    return turn
