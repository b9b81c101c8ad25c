"""Reads the samples of a tar as webdataset groups them: successive members whose names agree up to the first dot."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from dataprep.adoption.labels import LabelReader
from dataprep.adoption.rows import key_from, read_small, side_from
from dataprep.dataset.documents import JsonObject
from dataprep.dataset.index import IndexRow
from dataprep.dataset.records import NO_LABEL, Event
from dataprep.errors import SourceError
from dataprep.formats.tars import BLOCK, ByteReader, Member, damaged, split_name, tar_members
from dataprep.messages import shown
from dataprep.storage.checksums import crc32c_of

IMAGE_MEMBERS = ("jpg", "jpeg", "png", "webp")
"""Extensions of the member that is the image; the first one that a sample has is used."""
NO_IMAGE, DOTTED, APART = "no image", "dot in its key", "apart from its image"
"""Reasons of samples that have no image: in general, with an image whose extension has a dot, and with a key that is
also that of an image elsewhere in the tar."""
MAX_TEXT_BYTES = 1 << 20
"""Maximum size of a .json or .cls member."""
# webdataset skips names that begin with a component of this form.
_METADATA = re.compile(r"__[^/]*__(?:$|/)")


@dataclass(slots=True)
class TarSample:
    """The members of one sample, by extension."""

    base: str
    start: int
    """First byte of the sample's first header."""
    stop: int = 0
    """First byte after the padding of the sample's last member."""
    members: dict[str, Member] = field(default_factory=dict)


def tar_samples(reader: ByteReader) -> Iterator[TarSample]:
    """Yield the samples of a tar, in its order.

    Raises:
        SourceError: The tar is damaged, holds anything but files and directories, or a sample has an extension twice.
    """
    sample: TarSample | None = None
    position = 0
    for member in tar_members(reader):
        start, position = position, member.offset + -(-member.num_bytes // BLOCK) * BLOCK
        base, suffix = split_name(member.name)
        if member.is_directory or not suffix or _METADATA.match(member.name):
            continue
        if sample is not None and sample.base != base:
            yield sample
            sample = None
        sample = sample or TarSample(base, start)
        if suffix in sample.members:
            raise damaged(
                reader, member.offset, "it occurs twice in one sample; expected each once", member=member.name
            )
        sample.members[suffix] = member
        sample.stop = position
    if sample is not None:
        yield sample


def tar_rows(
    reader: ByteReader, *, labels: LabelReader, fields: Counter[str], digest: bool
) -> Iterator[IndexRow | Event]:
    """Yield a row for each sample, and an Event for each that has no image.

    Args:
        reader: The tar.
        labels: Reads the labels; its field is an extension or a key of the .json member, by default .cls, then `label`.
        fields: Receives the number of samples that have each field.
        digest: Read every image for its CRC32C.

    Raises:
        SourceError: The tar is damaged (see `tar_samples`), or a label is not valid.
    """
    for sample in tar_samples(reader):
        key = key_from(sample.base)
        image = next((sample.members[suffix] for suffix in IMAGE_MEMBERS if suffix in sample.members), None)
        if image is None or not image.num_bytes:
            yield _without_image(key, sample, image)
            continue
        document = _document(reader, sample.members.get("json"))
        label = _label(reader, sample, document, labels)
        names = {name for name, value in document.items() if value is not None}
        fields.update(names.union(suffix for suffix, member in sample.members.items() if member is not image))
        yield IndexRow(
            key=key,
            record_offset=sample.start,
            record_bytes=sample.stop - sample.start,
            image_offset=image.offset,
            image_bytes=image.num_bytes,
            image_crc32c=crc32c_of(reader.read(image.offset, image.num_bytes)) if digest else None,
            label=label,
            height=side_from(document.get("height")),
            width=side_from(document.get("width")),
        )


def told_apart(events: Iterable[Event], keys: Collection[str]) -> list[Event]:
    """Return the events of a tar, in which a sample without an image has its own reason if its key is that of an
    image."""
    return [
        replace(event, reason=APART) if event.reason == NO_IMAGE and event.key in keys else event for event in events
    ]


def _without_image(key: str, sample: TarSample, image: Member | None) -> Event:
    """Return the event of a sample without an image, or with an empty one."""
    if image is not None:
        return Event(key, "rejected", "empty", shown(f"its image has no bytes ({image.name})"))
    for suffix, member in sample.members.items():
        if suffix.rpartition(".")[2] in IMAGE_MEMBERS:
            detail = (
                f"{shown(member.name)}: a key ends at the first dot of its name, so this is a member {shown(suffix)} "
                f"of {shown(sample.base)}, expected {', '.join(IMAGE_MEMBERS[:-1])} or {IMAGE_MEMBERS[-1]}"
            )
            return Event(key, "rejected", DOTTED, detail)
    members = ", ".join(f".{suffix}" for suffix in sample.members)
    return Event(key, "rejected", NO_IMAGE, shown(f"members {members}"))


def _document(reader: ByteReader, member: Member | None) -> JsonObject:
    """Read the .json member; return an empty object if there is none, or if it is no object."""
    if member is None:
        return {}
    data = read_small(reader, member.offset, member.num_bytes, MAX_TEXT_BYTES, member=member.name)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damaged(reader, member.offset, f"it is no JSON ({shown(str(error))})", member=member.name) from error
    return document if isinstance(document, dict) else {}


def _label(reader: ByteReader, sample: TarSample, document: JsonObject, labels: LabelReader) -> int:
    suffix, name = (labels.field, labels.field) if labels.field is not None else ("cls", "label")
    member = sample.members.get(suffix)
    value: object = document.get(name)
    if member is not None:
        value = read_small(reader, member.offset, member.num_bytes, MAX_TEXT_BYTES, member=member.name).decode(
            "utf-8", "surrogateescape"
        )
    if value is None:
        return NO_LABEL
    member = member or sample.members["json"]
    try:
        return labels.label(value, member.name)
    except SourceError as error:
        raise damaged(reader, member.offset, str(error), member=member.name) from error
