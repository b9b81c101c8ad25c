"""Finds changes of adopted data by listing them; no byte of the data is read.

The number and the total size of a folder's images are compared, and the names, sizes and (in a bucket) CRC32C of
shards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import islice

from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.paths import BUILD, RETRY, RETRY_JSON, is_hidden_name, is_readable_image
from dataprep.dataset.records import Manifest, ShardEntry, SplitManifest
from dataprep.errors import AccessError, UsageError
from dataprep.messages import shell_words, shown
from dataprep.storage import ObjectInfo, Storage
from dataprep.storage.names import FORBIDDEN

MAX_LISTED_ON_DISK = 200_000
"""Maximum number of files that are listed on a disk when a loader is opened: each takes 7 us of CPU time."""
MAX_LISTED_IN_BUCKET = 20_000
"""Maximum number of objects that are listed in a bucket when a loader is opened: 20 requests take some seconds."""
SHARD_NAMES = {
    "webdataset": re.compile(r"\.tar\Z"),
    "tfrecord": re.compile(r"(?:\.tfrec(?:ords?)?|\.records?)(?:-\d+-of-\d+)?\Z|(?:\A|/)[^./]+-\d+-of-\d+\Z"),
}
"""Patterns of the names of shards, by format. In other formats every image is a file of its own."""


def refuse_changed(index: Storage, data: Storage, manifest: Manifest, max_listed: int | None) -> None:
    """Refuse adopted data if a listing shows that they have changed; see `changes_of`.

    Args:
        index: Where the manifest is.
        data: Where the data are.
        manifest: The manifest of adopted data.
        max_listed: Maximum number of files; larger data are not compared.

    Raises:
        UsageError: The data have changed; the text says how, and what to do.
    """
    found = changes_of(data, manifest, max_listed)
    if not found or index.stat(RETRY_JSON) is not None:  # retry-failed puts new shards before the manifest
        return
    adopt = shell_words("dataprep", "adopt", data.url, *(() if index.url == data.url else ("--index", index.url)))
    raise UsageError(
        f"{index.url}: the data have changed since they were adopted ({found}); read them again with --overwrite: "
        f'"{adopt} --overwrite", with the other options that you gave then'
    )


def changes_of(data: Storage, manifest: Manifest, max_listed: int | None = None) -> str:
    """Return the change of adopted data that a listing shows; empty if it shows none.

    Args:
        data: Where the data are.
        manifest: The manifest of adopted data.
        max_listed: Maximum number of files; for more, the result is empty. An image folder in a bucket is never listed
            if it has more than MAX_LISTED_IN_BUCKET files.
    """
    in_folder = manifest.format not in SHARD_NAMES
    if in_folder and not data.is_local:
        max_listed = MAX_LISTED_IN_BUCKET if max_listed is None else min(max_listed, MAX_LISTED_IN_BUCKET)
    known = sum(split.samples if in_folder else len(split.shards) for split in manifest.splits)
    if max_listed is not None and known > max_listed:
        return ""
    try:
        listing = list(islice(data.list(), None if max_listed is None else max_listed + 1))
    except AccessError:
        return ""  # an account may be allowed to read objects, but not to list them
    if max_listed is not None and len(listing) > max_listed:
        return ""
    listing = [info for info in listing if not is_of_adoption(info.name)]
    if not in_folder:
        return _changes_of_shards(manifest, listing)
    found = (_changes_of_images(split, _folder_of(split, manifest, listing), listing) for split in manifest.splits)
    return next(filter(None, found), "")


def is_of_adoption(name: str) -> bool:
    """Return whether an adoption or a retry wrote this file beside the data."""
    return name == MANIFEST or name.startswith((f"{BUILD}/", f"{RETRY}/", "index/"))


def is_in_class_folder(name: str) -> bool:
    """Return whether a file is an image of a class, given its name below the folder of its split."""
    return "/" in name and is_readable_image(name) and not is_hidden_name(name)


def has_readable_name(info: ObjectInfo) -> bool:
    """Return whether loaders can read a file of this name; the manifest does not count the bytes of others."""
    return is_text(info.name) and not any(character in FORBIDDEN for character in info.name)


def is_text(name: str) -> bool:
    """Return whether a name is UTF-8, and not bytes as surrogate escapes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def fits(name: str, pattern: str) -> bool:
    """Return whether a shard belongs to a split: its name fits the split's pattern, or is below that folder."""
    return name.startswith(f"{pattern.rstrip('/')}/") or fnmatchcase(name, pattern)


def _folder_of(split: SplitManifest, manifest: Manifest, listing: Sequence[ObjectInfo]) -> str:
    """Return the prefix of the names of a split's images: from `--split`, else its own folder, else the root."""
    patterns = dict(manifest.options["adopted"].get("splits", ()))
    if split.name in patterns:
        folder = patterns[split.name].strip("/")
        return "" if folder == "." else f"{folder}/"
    folder = f"{split.name}/"
    return folder if len(manifest.splits) > 1 or any(info.name.startswith(folder) for info in listing) else ""


def _changes_of_images(split: SplitManifest, folder: str, listing: Sequence[ObjectInfo]) -> str:
    images = [info for info in listing if info.name.startswith(folder) and is_in_class_folder(info.name[len(folder) :])]
    before = split.samples + sum(split.rejected.values())
    if len(images) != before:
        return f"{split.name}: {len(images):,} images, {before:,} when they were adopted"
    num_bytes = sum(info.num_bytes for info in images if has_readable_name(info))
    if num_bytes != split.num_bytes:
        return f"{split.name}: images of {num_bytes:,} bytes, {split.num_bytes:,} when they were adopted"
    return ""


def _changes_of_shards(manifest: Manifest, listing: Sequence[ObjectInfo]) -> str:
    present = {info.name: info for info in listing}
    for split in manifest.splits:
        changed = [shard["file"] for shard in split.shards if not _is_same(shard, present.get(shard["file"]))]
        if changed:
            count, example = len(changed), shown(changed[0])
            return f"{split.name}: {count:,} of {len(split.shards):,} shards removed or replaced, such as {example}"
    adopted = manifest.options["adopted"]
    if adopted.get("kind") == "tfds":
        return ""  # the description lists all files; others do not belong to the data
    patterns = [pattern for _, pattern in adopted.get("splits", ())]
    known = {shard["file"] for split in manifest.splits for shard in split.shards}
    added = [
        name
        for name in present
        if name not in known
        and SHARD_NAMES[manifest.format].search(name)
        and (not patterns or any(fits(name, pattern) for pattern in patterns))
    ]
    return f"shards added: {len(added):,}, such as {shown(added[0])}" if added else ""


def _is_same(shard: ShardEntry, info: ObjectInfo | None) -> bool:
    if info is None or info.num_bytes != shard["bytes"]:
        return False
    return not (shard["crc32c"] and info.crc32c) or shard["crc32c"] == info.crc32c
