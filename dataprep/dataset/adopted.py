"""Data that other tools wrote: their place, whether they may be read, and whether they have changed.

The index of an adopted dataset may be in another place than its data, and the manifest then names that place. Anyone
may have written the manifest, and a stranger's archive may contain links to a user's private files. So another place,
and links that lead out of the data, are read only after the user has named the place: by adopting the data on this
machine, which is remembered in the user's own state folder, or in DATAPREP_DATA_URL.

Changes since the adoption are found by listing; no byte of the data is read. The number and the total size of a
folder's images are compared, and the names, sizes and (in a bucket) CRC32C of shards.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from dataprep.dataset.features import is_text
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.paths import BUILD, CHANGE, CHANGE_JSON, is_hidden_name, is_readable_image
from dataprep.dataset.records import Manifest, ShardEntry, SplitManifest
from dataprep.errors import AccessError, FormatError, UsageError
from dataprep.messages import command_line, shell_words, shown
from dataprep.storage import ObjectInfo, Storage, open_originals, open_storage
from dataprep.storage.base import FORBIDDEN
from dataprep.storage.local import LocalStorage

DATA_URL = "DATAPREP_DATA_URL"
"""Environment variable with which a user names the place of adopted data."""
_named: set[tuple[str, str]] = set()
"""URLs of index and data that this process adopted; needed if the state folder cannot be written."""
MAX_LISTED_ON_DISK = 200_000
"""Maximum number of files that are listed on a disk when a loader is opened: each takes 7 us of CPU time."""
MAX_LISTED_IN_BUCKET = 20_000
"""Maximum number of objects that are listed in a bucket when a loader is opened: 20 requests take some seconds."""
SHARD_NAMES = {
    "webdataset": re.compile(r"\.tar\Z"),
    "tfrecord": re.compile(r"(?:\.tfrec(?:ords?)?|\.records?)(?:-\d+-of-\d+)?\Z|(?:\A|/)[^./]+-\d+-of-\d+\Z"),
}
"""Patterns of the names of shards, by format. In other formats every image is a separate file."""


def open_linked(url: str) -> Storage:
    """Open the storage of a user's own data, following links but no loops. Raises UsageError for a malformed URL."""
    storage = open_storage(url)
    return LocalStorage(Path(storage.url), links="anywhere") if storage.is_local else storage


def open_data(storage: Storage, manifest: Manifest, *, named: bool) -> Storage:
    """Open the storage that holds a dataset's shards: the manifest's own, or for adopted data the place that it names.
    Raises FormatError if the data_url in the manifest is not a text.

    Args:
        named: Whether the user named the place of adopted data, and so trusts the links in it (`check_named`). If not,
            a link that leads out of the data is a UsageError when it is read.
    """
    if not is_adopted(manifest):
        return storage
    data_url = manifest.options["adopted"].get("data_url")
    if data_url is not None and not isinstance(data_url, str):
        raise FormatError(f"{storage.url}: options.adopted names no data_url; adopt the data again with `overwrite`")
    data = open_linked(data_url or storage.url)
    if named or not data.is_local:
        return data
    adopt = command_line("adopt", data.url, index=None if data.url == storage.url else storage.url)
    advice = (
        f"you did not adopt {data.url} on this machine: if that is what you want to read, run "
        f'"{adopt}" once, or set {DATA_URL}={shell_words(data.url)}; otherwise '
        "put a copy in the place of the link"
    )
    return LocalStorage(Path(data.url), advice=advice)


def is_adopted(manifest: Manifest) -> bool:
    """Return whether other tools wrote the data; the manifest may be hostile."""
    return isinstance(manifest.options, dict) and isinstance(manifest.options.get("adopted"), dict)


def adopted_fields(manifest: Manifest) -> dict[str, int]:
    """Return the number of samples that have each field of adopted data, such as a caption, by sorted name; empty for
    other datasets, and for an index that is older than this count."""
    missing = manifest.options["adopted"].get("fields") if is_adopted(manifest) else None
    samples = sum(split.samples for split in manifest.splits)
    return {name: samples - count for name, count in sorted(missing.items())} if isinstance(missing, dict) else {}


LINKS: dict[str, Callable[[str], Storage]] = {
    "in root": open_originals,
    "inside": open_storage,
    "anywhere": open_linked,
}
"""Policies for links in a source, and the function that opens a source under each.

`in root`: links directly in the root may lead anywhere; for original files. `inside`: no link may lead out; for a
dataset, and for adopted data whose place the user did not name. `anywhere`: for adopted data whose place the user
named.
"""


def links_of(manifest: Manifest, *, named: bool) -> str:
    """Return the link policy for a dataset's data: a value of `dataprep.storage.folders.Links`."""
    return "anywhere" if is_adopted(manifest) and named else "inside"


def remember_data(index: Storage, data: Storage) -> None:
    """Remember that the user adopted the data in `data` with the index in `index`."""
    _named.add((index.url, data.url))
    path = _memory(index.url, data.url)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{index.url}\n{data.url}\n")
    except (OSError, UnicodeError):
        pass  # the user is asked to adopt the data again, which is quick


def open_named_data(storage: Storage, manifest: Manifest) -> Storage:
    """Open the place of a dataset's shards. If the user did not name it, links out of it are not followed. Raises
    UsageError, saying how to name it, if it is outside of the dataset, and FormatError if the manifest names no
    place."""
    return open_data(storage, manifest, named=check_named(storage, manifest))


def check_named(storage: Storage, manifest: Manifest) -> bool:
    """Return whether the user named the place of adopted data, so that links in them may lead anywhere. Raises
    UsageError, saying how to name it, if it is outside of the dataset and was not named."""
    if not is_adopted(manifest):
        return False
    data = open_data(storage, manifest, named=False)
    named = os.environ.get(DATA_URL)
    if (
        (storage.url, data.url) in _named
        or (named and open_linked(named).url == data.url)
        or _memory(storage.url, data.url).exists()
    ):
        return True
    if f"{data.url}/".startswith(f"{storage.url}/"):
        return False
    place, adopt = shell_words(data.url), command_line("adopt", data.url, index=storage.url)
    raise UsageError(
        f"{storage.url}: its manifest says that the data are in {place}, which you did not name on this machine; "
        f'if that is what you want to read, run "{adopt}" once, or set {DATA_URL}={shell_words(data.url)}'
    )


def _memory(index_url: str, data_url: str) -> Path:
    root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    name = hashlib.sha256(f"{index_url}\n{data_url}".encode()).hexdigest()[:32]
    return root / "dataprep" / "adopted" / name


def refuse_changed(index: Storage, data: Storage, manifest: Manifest, max_listed: int | None) -> None:
    """Raise UsageError if adopted data of at most `max_listed` files have changed (`changes_of`); the text says how,
    and what to do."""
    found = changes_of(data, manifest, max_listed)
    if not found or index.stat(CHANGE_JSON) is not None:  # retry-failed puts new shards before the manifest
        return
    adopt = command_line("adopt", data.url, index=None if index.url == data.url else index.url, overwrite=True)
    raise UsageError(
        f"{index.url}: the data have changed since they were adopted ({found}); read them again with `overwrite`: "
        f'"{adopt}", with the other options that you gave then'
    )


def changes_of(data: Storage, manifest: Manifest, max_listed: int | None = None) -> str:
    """Return the change of adopted data that a listing shows; empty if it shows none.

    Args:
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
    """Return whether an adoption or a retry wrote this file next to the data."""
    return name == MANIFEST or name.startswith((f"{BUILD}/", f"{CHANGE}/", "index/"))


def is_in_class_folder(name: str) -> bool:
    """Return whether a file is an image of a class, given its name below the folder of its split."""
    return "/" in name and is_readable_image(name) and not is_hidden_name(name)


def is_outside_classes(name: str) -> bool:
    """Return whether a file is an image directly in the folder of its split; it is read if no class has an image."""
    return "/" not in name and is_readable_image(name) and not is_hidden_name(name)


def fits(name: str, pattern: str) -> bool:
    """Return whether a shard's name matches the pattern of a split, or is below the folder that the pattern names."""
    return name.startswith(f"{pattern.rstrip('/')}/") or fnmatchcase(name, pattern)


def _folder_of(split: SplitManifest, manifest: Manifest, listing: Sequence[ObjectInfo]) -> str:
    """Return the prefix of the names of a split's images: from `split`, else its own folder, else the root."""
    patterns = dict(manifest.options["adopted"].get("splits", ()))
    if split.name in patterns:
        folder = patterns[split.name].strip("/")
        return "" if folder == "." else f"{folder}/"
    folder = f"{split.name}/"
    return folder if len(manifest.splits) > 1 or any(info.name.startswith(folder) for info in listing) else ""


def _changes_of_images(split: SplitManifest, folder: str, listing: Sequence[ObjectInfo]) -> str:
    below = [(info, info.name[len(folder) :]) for info in listing if info.name.startswith(folder)]
    images = [info for info, name in below if is_in_class_folder(name)]
    images = images or [info for info, name in below if is_outside_classes(name)]
    before = split.samples + sum(split.rejected.values())
    if len(images) != before:
        return f"{split.name}: {len(images):,} images, {before:,} when they were adopted"
    readable = (info for info in images if is_text(info.name) and not {*info.name} & {*FORBIDDEN})
    num_bytes = sum(info.num_bytes for info in readable)  # loaders cannot read the others, so they are not counted
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
