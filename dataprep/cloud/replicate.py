"""Copies a finished dataset to other buckets and folders: create-only, checked by size and CRC32C, all or nothing.

    listing of the source, compared with its manifest -> the objects of the dataset
    listing of the target -> the existing objects; another object of the same name is refused before any copy
    shards -> index and events -> the format's metadata -> dataset.json, which makes it a dataset -> its cards
    replicas.json of the dataset and of every copy -> the list of all copies

If the process is killed at any point, a rerun copies only the missing objects.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, replace
from typing import Any

from dataprep.cloud.placement import bucket_name, is_bucket
from dataprep.dataset.adopted import is_adopted
from dataprep.dataset.index import index_files, open_index
from dataprep.dataset.manifest import MANIFEST, MANIFEST_ADVICE, MAX_MANIFEST_BYTES, built_as, manifest_in, no_dataset
from dataprep.dataset.paths import CARDS, PLAN_JSON
from dataprep.dataset.records import Manifest, class_name_of
from dataprep.dataset.replicas import REPLICAS, Replica, read_replicas, record_replicas, same_dataset
from dataprep.dataset.revisions import removed_entries
from dataprep.errors import ConflictError, DataprepError, FormatError, UsageError, VerificationError
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import image_file, image_suffix
from dataprep.messages import shell_words
from dataprep.storage import ObjectInfo, Storage, open_storage
from dataprep.storage.base import read_bounded
from dataprep.storage.checksums import crc32c_of_bytes, crc32c_text, digests_of
from dataprep.storage.copies import check_same, copy_object, stored_crc32c
from dataprep.storage.errors import described_bytes
from dataprep.storage.gcs_location import BucketLocation, bucket_location

QUEUED_PER_THREAD = 4
"""Maximum number of objects queued for each thread: an image folder may have a million objects."""
Phases = tuple[tuple[ObjectInfo, ...], ...]
"""Objects to copy, by phase; a phase is copied completely before the next begins."""
_REMOVED = (
    "it was removed during the copy, so another process is changing the dataset; run this again when that process has "
    "ended"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Copying:
    """A planned copy of a dataset."""

    source: Storage
    target: Storage
    phases: Phases
    """Objects that are missing at the target."""
    existing: int
    """Number of objects that exist at the target already."""
    kept: tuple[str, ...] = ()
    """Cards that differ at the target, and stay there."""

    @property
    def objects(self) -> int:
        return sum(len(phase) for phase in self.phases)

    @property
    def num_bytes(self) -> int:
        return sum(info.num_bytes for phase in self.phases for info in phase)


def dataset_phases(storage: Storage, find_faults: Callable[[Manifest], Iterable[str]]) -> Phases:
    """List all objects of a finished dataset, with the CRC32C that the manifest, the index or the storage has for them.

    Files on disk for which the manifest has only a SHA-256 are read, and compared with it.

    Args:
        find_faults: Function that yields a line for each difference between a manifest and a build's.

    Raises:
        UsageError: There is no finished dataset, or it cannot be copied object by object.
        FormatError: `find_faults` found a fault in the manifest.
        VerificationError: The objects differ from the manifest.
    """
    data = read_bounded(storage, MANIFEST, MAX_MANIFEST_BYTES, advice=MANIFEST_ADVICE)
    if data is None:
        raise no_dataset(storage)
    manifest = manifest_in(data, storage.url_of(MANIFEST))
    if is_adopted(manifest):
        raise UsageError(
            f"{storage.url}: its data was adopted and is where other tools wrote it; copy it with `gcloud storage cp "
            "-r`, then `dataprep adopt` the copy"
        )
    fault = next(iter(find_faults(manifest)), None)
    if fault:
        raise FormatError(f"{storage.url_of(MANIFEST)}: {fault}; run dataprep verify {shell_words(storage.url)}")
    shard_format = FORMATS[manifest.format]
    if any(shard_format.passes_written(split.repeats["stored"]) < split.repeats["stored"] for split in manifest.splits):
        raise UsageError(
            f"{storage.url}: it stores repeated images as symbolic links, which buckets do not have; build it with "
            "`repeat` virtual, or copy the folder to a disk with `cp -a`"
        )
    present = {info.name: info for info in storage.list()}
    # A build removes the manifest first and writes it last: if it is the same now, the listed objects belong to it.
    if MANIFEST not in present or storage.read(MANIFEST, MAX_MANIFEST_BYTES) != data:
        raise VerificationError(f"{storage.url}: it is being overwritten; run the same command again")
    try:
        return _listed(storage, manifest, data, present)
    except FileNotFoundError as error:
        raise VerificationError(f"{error}: {_REMOVED}") from error


def _listed(storage: Storage, manifest: Manifest, data: bytes, present: Mapping[str, ObjectInfo]) -> Phases:
    shards = (_described(storage, shard, present) for split in manifest.splits for shard in split.shards)
    samples = _images(storage, manifest, present) if FORMATS[manifest.format].one_file_per_image else shards
    index = [entry for split in manifest.splits for entry in (*index_files(split), split.events)]
    index += removed_entries(manifest)
    return (
        tuple(samples),
        tuple(_described(storage, entry, present) for entry in index),
        tuple(_described(storage, entry, present) for entry in manifest.files),
        (ObjectInfo(MANIFEST, len(data), crc32c_of_bytes(data)),),
        tuple(
            replace(present[name], crc32c=stored_crc32c(storage, present[name])) for name in CARDS if name in present
        ),
    )


def plan_copy(source_url: str, target_url: str, phases: Phases) -> Copying:
    """List the objects that are missing at a target, without writing anything.

    Raises:
        UsageError: The target is inside the source or contains it, or a build is under way there.
        ConflictError: Objects of other content or name exist that readers would take for a part of the dataset.
    """
    source, target = open_storage(source_url), open_storage(target_url)
    if f"{source.url}/".startswith(f"{target.url}/") or f"{target.url}/".startswith(f"{source.url}/"):
        raise UsageError(f"`to` {target.url}: it is, contains or is inside {source.url}; give a different place")
    present = {info.name: info for info in target.list()}
    if PLAN_JSON in present:
        raise UsageError(f"`to` {target.url}: a build is under way there; give a different place, or finish it")
    wanted = {info.name: info for phase in phases for info in phase}
    tops = {_top(name) for name in wanted if name not in CARDS}
    strange = next((name for name in present if name not in wanted and name != REPLICAS and _top(name) in tops), None)
    if strange is not None:
        raise ConflictError(
            f"{target.url_of(strange)}: not part of {source.url}, but readers would take it for data; give a "
            "different place, or remove it"
        )
    existing, kept = wanted.keys() & present.keys(), []
    for name in sorted(existing, key=lambda name: name != MANIFEST):  # first the manifest, which shows another dataset
        info = wanted[name]
        try:
            check_same(target, replace(info, crc32c=stored_crc32c(source, info)), present[name])
        except ConflictError:
            if name not in CARDS:
                raise
            kept.append(name)
    missing = tuple(tuple(info for info in phase if info.name not in existing) for phase in phases)
    return Copying(
        source=source, target=target, phases=missing, existing=len(existing) - len(kept), kept=tuple(sorted(kept))
    )


def copy_dataset(copying: Copying, *, workers: int, copied: Callable[[int, int], None]) -> None:
    """Copy the missing objects, many at a time.

    Args:
        copied: Called from any thread with the numbers of objects and bytes that were copied; the bytes of a large
            object in several calls.

    Raises:
        ConflictError: Another object exists at the target.
        StorageError: An object could not be copied. Finished copies stay, as the error says, and a rerun continues.
    """
    stop, any_copied = threading.Event(), threading.Event()

    def part(num_bytes: int) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        copied(0, num_bytes)

    def copy(info: ObjectInfo) -> None:
        try:
            copy_object(copying.source, copying.target, info, part)
        except FileNotFoundError as error:
            raise VerificationError(f"{copying.source.url_of(info.name)}: {_REMOVED}") from error
        any_copied.set()
        copied(1, 0)

    copying.target.remove_stale_spools()
    with ThreadPoolExecutor(workers, thread_name_prefix="copy") as threads:
        try:
            for phase in copying.phases:
                _run(threads, copy, phase, QUEUED_PER_THREAD * workers)
        except BaseException as error:
            stop.set()
            threads.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, DataprepError) and any_copied.is_set():
                left = f"what was copied stays at {copying.target.url}, and the same command continues from there"
                raise type(error)(f"{error}; {left}") from error
            raise
    copying.target.remove_stale_spools()  # on disk also their empty folder, which is not part of a dataset


def record_copies(source: Storage, targets: Iterable[Storage], warn: Callable[[str], None]) -> list[Replica]:
    """Write the list of all copies to `replicas.json` of the source and of every copy on the list.

    A list only grows, except that copies which no longer exist are removed; if two processes write at the same time,
    the second adds to the first one's list. Copies on disk are not listed, because other machines could not read them;
    if all are on disk, no list is written.

    Args:
        source: The dataset that was copied.
        warn: Called with one line for each list that could not be written.

    Returns:
        All copies, by URL.
    """
    made = [source, *targets]
    manifest = source.stat(MANIFEST)
    if manifest is None:
        raise VerificationError(f"{source.url_of(MANIFEST)}: it was removed meanwhile; was the dataset removed?")
    manifest = replace(manifest, crc32c=stored_crc32c(source, manifest))
    for place in made:
        if is_bucket(place.url) and place.stat(MANIFEST) is not None and not same_dataset(place, manifest):
            raise VerificationError(
                f"{source.url}: it was overwritten after it was copied; {place.url} is a complete copy of what was "
                "there before, and is not recorded as a copy"
            )
    known = {each.url: each for each in _known(made, warn)}
    known |= {place.url: Replica(place.url, _location(place.url, warn)) for place in made if is_bucket(place.url)}
    urls = {place.url for place in made}
    others = [open_storage(url) for url in known if url not in urls]
    gone = [place.url for place in others if not _still_exists(place, manifest, warn)]
    listed: dict[str, Replica] = {url: each for url, each in known.items() if url not in gone}
    if not listed and not gone:
        return []  # all of them are on disk
    for place in [*made, *(place for place in others if place.url not in gone)]:
        try:
            listed |= {each.url: each for each in record_replicas(place, listed.values(), gone)}
            if place.is_local:
                place.remove_stale_spools()  # and their empty folder
        except DataprepError as error:
            warn(f"the copies are not recorded at {place.url}: {error}")
    return [listed[url] for url in sorted(listed)]


def _known(places: Iterable[Storage], warn: Callable[[str], None]) -> Iterator[Replica]:
    for place in places:
        try:
            yield from (each for each in read_replicas(place) if is_bucket(each.url))
        except DataprepError as error:
            warn(str(error))


def _still_exists(place: Storage, manifest: ObjectInfo, warn: Callable[[str], None]) -> bool:
    """Return whether a copy still exists; a copy that cannot be read counts as existing."""
    try:
        return same_dataset(place, manifest)
    except DataprepError as error:
        warn(f"{place.url} stays on the list of copies: {error}")
        return True


def _location(url: str, warn: Callable[[str], None]) -> BucketLocation:
    try:
        return bucket_location(bucket_name(url))
    except DataprepError as error:
        warn(f"readers will not choose {url} automatically: {error}")
        return BucketLocation(location="")


def _run(
    threads: ThreadPoolExecutor, work: Callable[[ObjectInfo], None], phase: Iterable[ObjectInfo], most: int
) -> None:
    pending: set[Future[None]] = set()
    for info in phase:
        if len(pending) >= most:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
        pending.add(threads.submit(work, info))
    for future in as_completed(pending):
        future.result()


def _images(storage: Storage, manifest: Manifest, present: Mapping[str, ObjectInfo]) -> Iterator[ObjectInfo]:
    """List the images of a folder as the index names them, and compare their number with the files in the folder."""
    listed, suffix = {entry["file"] for entry in manifest.files}, image_suffix(built_as(manifest))
    for split in manifest.splits:
        root = FORMATS[manifest.format].image_root(split.name, split.repeats["stored"])
        for batch in open_index(storage, split, compare=True).batches(["key", "label", "image_bytes", "image_crc32c"]):
            for key, label, num_bytes, crc32c in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                name = image_file(root, key, class_name_of(label, manifest.classes) or "", suffix)
                yield _described(storage, {"file": name, "bytes": num_bytes, "crc32c": crc32c_text(crc32c)}, present)
        found = sum(name.startswith(f"{root}/") and name not in listed for name in present)
        if found != split.samples:
            raise VerificationError(
                f"{storage.url_of(split.name)}: {found:,} files, the manifest has {split.samples:,}; run "
                f"dataprep verify {shell_words(storage.url)}"
            )


def _described(storage: Storage, entry: Mapping[str, Any], present: Mapping[str, ObjectInfo]) -> ObjectInfo:
    """Return an object that the manifest or the index names, with its CRC32C."""
    info, crc32c = present.get(entry["file"]), entry.get("crc32c")
    step = f"run dataprep verify {shell_words(storage.url)}"
    if info is None:
        raise VerificationError(f"{storage.url_of(entry['file'])}: not found, but the manifest names it; {step}")
    if info.num_bytes != entry["bytes"] or (None not in (crc32c, info.crc32c) and crc32c != info.crc32c):
        raise VerificationError(
            f"{storage.url_of(info.name)}: {described_bytes(info.num_bytes, info.crc32c)}, the manifest has "
            f"{described_bytes(entry['bytes'], crc32c)}; {step}"
        )
    if info.crc32c is None and crc32c is None:
        with storage.open(info.name) as stream:
            digests = digests_of(stream)
        if digests.sha256 != entry["sha256"]:
            raise VerificationError(
                f"{storage.url_of(info.name)}: sha256 {digests.sha256[:16]}…, the manifest has "
                f"{entry['sha256'][:16]}…; {step}"
            )
        crc32c = digests.crc32c
    return replace(info, crc32c=info.crc32c or crc32c)


def _top(name: str) -> str:
    return name.partition("/")[0]
