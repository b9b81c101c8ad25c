"""Adopts data of other tools: finds them, reads every shard's headers, and writes index and manifest."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import groupby, islice

from dataprep.adoption.find import AdoptRequest, Found, FoundShard, HeadFiles, find, left_out
from dataprep.adoption.labels import FROM_ONE, NO_LABELS, distinct_keys, key_hash, listed_fields, shard_prefixes
from dataprep.adoption.records import APART, DOTTED, Description, describe
from dataprep.adoption.shards import Progress, ReadJob, ReadShard, read_shards, with_classes
from dataprep.arrays import NDArray, np, pa
from dataprep.dataset import index as indexes
from dataprep.dataset.adopted import changes_of, is_adopted, open_data, open_linked, remember_data
from dataprep.dataset.columns import strings
from dataprep.dataset.documents import decode
from dataprep.dataset.hashes import position_of, repeated
from dataprep.dataset.manifest import MANIFEST, bytes_entry, manifest_bytes, read_manifest, schema_version
from dataprep.dataset.paths import BUILD, HEAD_SPLIT, PLAN_JSON
from dataprep.dataset.randomness import ORDER_VERSION
from dataprep.dataset.records import FileEntry, Head, Manifest, SplitManifest, renumbering
from dataprep.errors import AccessError, ConflictError, DataprepError, SourceError, StorageError, UsageError
from dataprep.formats.img2dataset import STATUSES, is_ours
from dataprep.formats.tfds import DATASET_INFO, FEATURES, MAX_DESCRIPTION_BYTES
from dataprep.messages import counted, did_you_mean, shell_words, shown
from dataprep.storage import Storage, open_storage
from dataprep.storage.base import TooLargeError, read_bounded
from dataprep.storage.readonly import ReadOnlyStorage
from dataprep.storage.spool import temporary_folder

_ADOPTING = f"{BUILD}/adopting.json"
"""File with the adoption that owns the output, and the names of the files that it removes and places."""
_ROOT = f"{BUILD}/adopting-"
"""Prefix of the names of the folders of running adoptions."""
_INDEX_FILE = re.compile(r"index/[^/]+\.parquet")
MAX_INTENT_BYTES = 64 << 20
"""Maximum size of that file; an index has at most 99,999 parts a split."""
_ADVICE = f"remove {BUILD}/"


@dataclass(frozen=True, slots=True)
class Adoption:
    """An adopted dataset."""

    url: str
    """URL of manifest and index, for the loader."""
    manifest: Manifest
    already: bool
    """Whether the data had been adopted before."""
    changes: str = ""
    """Description of changes to the data since then; empty if none were found."""
    notes: tuple[str, ...] = ()
    """Messages to the user about the data that were read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Intent:
    """The adoption that owns the output, as `_build/adopting.json` holds it."""

    content: str
    """Hash of everything that the files of the adoption depend on: two runs with the same hash may share the output."""
    names: tuple[str, ...]
    """Names of the files that this adoption writes."""
    removes: tuple[str, ...]
    """Files of an earlier adoption, which are removed before any is placed; empty once that is done."""

    def document(self) -> bytes:
        """Return the content of the file."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class _ReadData:
    """The data that were found, the content of their shards, and their description for TFDS."""

    found: Found
    results: Sequence[ReadShard]
    classes: tuple[str, ...]
    description: Description


def adopt(request: AdoptRequest, progress: Progress, *, workers: int = 0, head: HeadFiles | None = None) -> Adoption:
    """Write index and manifest, unless they exist. Raises UsageError if there is nothing to adopt, another dataset
    exists, or the choice is ambiguous without further options, and SourceError if the data are damaged; the text says
    where.

    Args:
        workers: Number of worker processes; with 0 this process reads the shards.
        head: The part of a folder's files that `head_files` lists; None: all files.
    """
    data, index = open_linked(request.url), open_storage(request.index_url or request.url)
    if isinstance(index, ReadOnlyStorage):
        raise UsageError(f"{index.url}: dataprep only reads from there; keep the index elsewhere: `index` DIR")
    existing = read_manifest(index)
    if existing is not None:
        _check_existing(index, existing, data, request)
        if not request.overwrite:
            _refuse_other_flags(index, existing, request)
            remember_data(index, data)
            changes = changes_of(data, existing) if is_adopted(existing) else ""
            return Adoption(index.url, existing, already=True, changes=changes)
    elif index.stat(PLAN_JSON) is not None:
        raise UsageError(
            f"{index.url}: a build is under way there; finish it, or keep the index elsewhere: `index` DIR"
        )
    progress.step("listing")
    found = find(data, request, head)
    if found.has_classes_in_root and index.url == data.url:
        raise UsageError(
            f"{data.url}: its folders are the classes, and torchvision would take index/ next to them for one more "
            "class; keep the index elsewhere: `index` DIR"
        )
    with temporary_folder() as folder:
        job = ReadJob(data_url=data.url, found=found, labels=request.labels, digest=request.digest)
        results = read_shards(job, folder, progress, workers)
        if not any(result.samples for result in results):
            shards = counted(len(results), "shard")
            raise SourceError(f"{data.url}: no image in {shards}; {_reasons(results)}")
        _refuse_unknown_field(data.url, request.labels, results)
        results, texts = with_classes(data.url, results)
        read = _ReadData(found, results, texts or _classes(found, results), _describe(index, data, found, results))
        notes = (
            *_skipped(found),
            *_apart(results),
            *_keys_that_recur(found, results),
            *_labels(read, texts),
            *_without_image(read),
            *_uncounted(results),
            *read.description.remarks,
        )
        for line in notes:
            progress.log(line)
        progress.step("writing index and manifest")
        try:
            manifest = _publish(index, data, request, read, existing)
        except AccessError as error:
            hint = "" if request.index_url else "; if the data are read-only, keep the index elsewhere: `index` DIR"
            raise AccessError(f"{error}{hint}") from error
        except (DataprepError, OSError):
            theirs = read_manifest(index)  # another run may have finished and cleaned up meanwhile
            if theirs is None or theirs == existing:
                raise
            with temporary_folder() as again:
                if _write(open_storage(str(again)), index, data, request, read, existing) != theirs:
                    raise
            return Adoption(index.url, theirs, already=True)
        with suppress(StorageError):  # nothing that is left there is needed
            index.delete_tree(BUILD)
    return Adoption(index.url, manifest, already=False, notes=notes)


def _check_existing(index: Storage, existing: Manifest, data: Storage, request: AdoptRequest) -> None:
    """Raise UsageError if the existing manifest describes other data, or was written by a build."""
    if is_adopted(existing):
        their_url = open_data(index, existing, named=False).url
        if their_url != data.url and not request.overwrite:
            raise UsageError(
                f"{index.url}: the index of {their_url} exists there already; choose another `index`, or `overwrite` it"
            )
    elif request.overwrite or request.index_url:
        raise UsageError(f"{index.url}: a dataset of `dataprep build` exists there already; it can be loaded as it is")


def _refuse_other_flags(index: Storage, existing: Manifest, request: AdoptRequest) -> None:
    """Raise UsageError for a flag that differs from the existing index; flags that are not given are not compared."""
    adopted = existing.options["adopted"] if is_adopted(existing) else {}
    splits = [list(pair) for pair in request.splits]
    other = {
        "`shuffled`": request.shuffled and not existing.shuffled,
        "`digest`": request.digest and not adopted.get("digest"),
        f"`labels` {shell_words(request.labels)}": request.labels is not None
        and request.labels != adopted.get("labels"),
        "`class_names`": bool(request.class_names) and request.class_names != existing.classes,
        f"`format` {shell_words(request.format)}": request.format not in ("auto", existing.format),
        **{f"`split` {'='.join(map(shell_words, pair))}": splits != list(adopted.get("splits", ())) for pair in splits},
    }
    flags = ", ".join(flag for flag, is_other in other.items() if is_other)
    if flags and is_adopted(existing):
        raise UsageError(
            f"{index.url}: an index exists there already, made without {flags}; add `overwrite` to read the data "
            f"again, or leave {flags} out"
        )
    if flags:
        raise UsageError(f"{index.url}: a dataset of `dataprep build` exists there already; leave {flags} out")


def _refuse_unknown_field(url: str, field: str | None, results: Sequence[ReadShard]) -> None:
    """Raise UsageError if no sample has a label in the field that the user names."""
    if field in (None, NO_LABELS) or any(result.labels for result in results):
        return
    fields = sorted(sum((result.fields for result in results), Counter()))
    hint = did_you_mean(field, [*fields, "cls", "label"]) or "; leave it out for the usual ones (cls, label, ...)"
    others = ", ".join(fields) or "no other fields"
    raise UsageError(
        f"{url}: `labels` {field}: no sample has a label there{hint} The samples have {others}; `labels` {NO_LABELS} "
        "leaves labels out"
    )


def _skipped(found: Found) -> Iterator[str]:
    """Yield a line for each split that has files which are not images, and for pictures next to shards."""
    if found.pictures:
        count, example = counted(len(found.pictures), "picture"), shown(found.pictures[0])
        yield f"{count} next to the shards left out, such as {example}; `format` imagefolder reads pictures instead"
    for split, images in found.images.items():
        if images.skipped:
            yield f"{split}: {counted(images.skipped.total(), 'file')} left out: {left_out(images.skipped)}"


def _apart(results: Sequence[ReadShard]) -> Iterator[str]:
    """Yield a line if members of samples are not next to their image in a tar."""
    count = sum(event.reason == APART for result in results for event in result.events)
    if count:
        yield (
            f"members of {counted(count, 'sample')}, such as labels, were not taken: the members of a sample must "
            "follow each other in a tar"
        )


def _keys_that_recur(found: Found, results: Sequence[ReadShard]) -> Iterator[str]:
    """Yield a line for each split whose images share keys; the index gives them different ones."""
    splits = dict.fromkeys(shard.split for shard in found.shards)
    for split in splits:
        hashes = _sorted_hashes(
            result for shard, result in zip(found.shards, results, strict=True) if shard.split == split
        )
        twice = repeated(hashes)
        images = int((np.searchsorted(hashes, twice, "right") - np.searchsorted(hashes, twice)).sum())
        if images:
            place = "end with a checksum of the file's name" if found.images else "begin with their shard's name"
            yield (
                f"{split}: {counted(images, 'image')} have the same key as another image, ignoring case; "
                f"their keys {place}"
            )


def _labels(read: _ReadData, texts: tuple[str, ...]) -> Iterator[str]:
    """Yield a line if labels are numbered by their texts, or are integers without names."""
    if texts:
        yield f"labels are text: {counted(len(texts), 'class')}, sorted by name"
    elif read.found.images and (line := renumbering(read.classes)):
        yield line
    elif read.found.classes is None and read.classes:
        used = set[int]().union(*(result.labels for result in read.results))
        unused = len(read.classes) - len(used)
        without = f", {unused:,} of them without an image" if unused else ""
        yield (
            f"labels are integers from {min(used):,} to {max(used):,} and stay as they are: "
            f"{counted(len(read.classes), 'class')}{without}; dataprep adopt with `class_names` FILE names them"
        )
    elif read.classes and not read.found.images and read.found.kind != "tfds":  # names that the user gives
        used = set[int]().union(*(result.labels for result in read.results))
        if used and 0 not in used:
            yield (
                f"warning: no image is of class 0, {shown(read.classes[0])}, the labels are {min(used):,} to "
                f"{max(used):,}: if they begin at 1, {FROM_ONE}"
            )


def _without_image(read: _ReadData) -> Iterator[str]:
    """Yield a line if the index begins with heads, so that class folders without an image are classes."""
    heads = HEAD_SPLIT in read.found.images and read.found.images[HEAD_SPLIT].heads
    used = set[int]().union(*(result.labels for result in read.results))
    if heads and (empty := [name for number, name in enumerate(read.classes) if number not in used]):
        names = ", ".join(shown(name) for name in empty[:3])
        more = f" and {len(empty) - 3:,} more" if len(empty) > 3 else ""
        yield f"no image in {counted(len(empty), 'class folder')}: {names}{more}; their labels stay unused"


def _uncounted(results: Sequence[ReadShard]) -> Iterator[str]:
    """Yield a line with the first reason if img2dataset's rows cannot be counted."""
    problem = next((result.problem for result in results if result.problem), "")
    if problem:
        yield f"{problem}; without it rows are not counted"


def _describe(index: Storage, data: Storage, found: Found, results: Sequence[ReadShard]) -> Description:
    """Describe TFRecords for TFDS, with files next to the manifest, unless a description exists."""
    if not found.is_img2dataset or found.format != "tfrecord":
        return Description({}, ())
    existing = next((name for name in (DATASET_INFO, FEATURES) if index.stat(name) is not None), None)
    if existing is not None and not _is_described(index):
        return Description({}, (f"{index.url_of(existing)} exists already and is left as it is",))
    if index.url == data.url:
        return describe(found, results, "")
    if not data.is_local:
        return Description({}, ("TFDS needs its description next to files in a bucket: adopt without `index`",))
    return describe(found, results, f"{data.url}/")


def _is_described(index: Storage) -> bool:
    """Return whether `adopt` wrote the description."""
    try:
        return is_ours(index.read(DATASET_INFO, MAX_DESCRIPTION_BYTES))
    except (FileNotFoundError, TooLargeError):
        return False


def _reasons(results: Sequence[ReadShard]) -> str:
    """Return why no sample has an image, and what to do about it."""
    events = [event for result in results for event in result.events]
    dotted = next((event.detail for event in events if event.reason == DOTTED), "")
    counts = Counter(event.reason for event in events).most_common()
    reasons = ", ".join(f"{counted(count, 'sample')}: {reason}" for reason, count in counts)
    return dotted or f"{reasons or 'they are empty'}; check `format`"


# Index and manifest


def _publish(
    index: Storage, data: Storage, request: AdoptRequest, read: _ReadData, existing: Manifest | None
) -> Manifest:
    """Publish index, events and manifest, the manifest last, as a build does: create-only, and only while the output is
    this adoption's (`_claim`). Raises ConflictError if another adoption has written there in the meantime, or a file
    that no adoption wrote has one of the names."""
    root = f"{_ROOT}{uuid.uuid4().hex}"
    index.remove_stale_spools()
    if index.is_local:
        index.create(f"{root}/begun", b"")  # nothing else creates the folder, see `Storage.staged`
    content = _content_of(request, read, existing)
    _claim(index, root, _intent(content, read), existing)
    staged = index.staged(root, lambda: _refuse_overtaken(index, content))
    manifest = _write(staged, index, data, request, read, existing)
    staged.create(MANIFEST, manifest_bytes(manifest))
    remember_data(index, data)
    return manifest


def _write(
    target: Storage, index: Storage, data: Storage, request: AdoptRequest, read: _ReadData, existing: Manifest | None
) -> Manifest:
    """Write the files of an index at the URL of `index` to `target`, and return the manifest that lists them."""
    found, results, description = read.found, read.results, read.description
    for name, content in description.files.items():
        target.create(name, content)
    classes = read.classes
    splits = tuple(_publish_split(target, found, split, pairs, len(classes)) for split, pairs in _by_split(read))
    fields = listed_fields(sum((result.fields for result in results), Counter()))
    samples = sum(result.samples for result in results)
    heads = _heads(read)
    adopted = {
        "kind": found.kind,
        "data_url": data.url if index.url != data.url else None,
        "labels": request.labels,
        "splits": [list(pair) for pair in request.splits],
        "digest": request.digest,
        "fields": {name: samples - count for name, count in fields.items()},
        **({"heads": heads} if heads else {}),
    }
    return Manifest(
        name=found.name,
        schema_version=schema_version(splits),
        revision=existing.revision + 1 if existing is not None else 1,
        format=found.format,
        plan_hash=_content_hash(found, splits),
        order_version=ORDER_VERSION,
        options={"adopted": adopted},
        sources=(),
        codecs={},
        licence=found.licence,
        origin=f"{found.kind} data, adopted as they were",
        classes=classes,
        shuffled=request.shuffled,
        checked="none",
        partial=False,
        splits=splits,
        files=tuple(bytes_entry(name, content) for name, content in sorted(description.files.items())),
    )


def _heads(read: _ReadData) -> list[Head]:
    """Return the heads with which the index of a folder begins, except those that add no sample."""
    images = read.found.images.get(HEAD_SPLIT)
    if images is None:
        return []
    bounds = images.bounds()
    results = dict(_by_split(read))[HEAD_SPLIT]
    heads, digest, done = list[Head](), hashlib.sha256(), 0
    for cut in images.heads:
        shards = bisect_left(bounds, cut)
        for _, result in results[done:shards]:
            rows = result.rows()
            digest.update(
                json.dumps([rows.column(name).to_pylist() for name in ("file", "image_bytes", "label")]).encode()
            )
        done = shards
        samples = sum(result.samples for _, result in results[:shards])
        if samples > (heads[-1]["samples"] if heads else 0):
            heads.append(Head(shards=shards, samples=samples, plan=digest.hexdigest()))
    return heads


def _by_split(read: _ReadData) -> list[tuple[str, list[tuple[FoundShard, ReadShard]]]]:
    pairs = groupby(zip(read.found.shards, read.results, strict=True), key=lambda pair: pair[0].split)
    return [(split, list(group)) for split, group in pairs]


def _content_of(request: AdoptRequest, read: _ReadData, existing: Manifest | None) -> str:
    """Return a hash of everything that the files of an adoption depend on, except the content of the data."""
    shards = [
        (shard.name, shard.num_bytes, shard.crc32c, hashlib.sha256(result.key_hashes.tobytes()).hexdigest())
        for shard, result in zip(read.found.shards, read.results, strict=True)
    ]
    labels = [sorted(result.labels.items()) for result in read.results]
    files = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(read.description.files.items())}
    asked = asdict(replace(request, overwrite=False))
    revision = existing.revision if existing is not None else 0
    content = json.dumps([asked, read.found.format, shards, labels, read.classes, files, revision], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _intent(content: str, read: _ReadData) -> _Intent:
    """Return the intent of an adoption that has nothing to remove: every name that it will place."""
    names = [MANIFEST, *read.description.files]
    for split, pairs in _by_split(read):
        parts = len(indexes.index_ranges([result.samples for _, result in pairs]))
        names += [*indexes.index_names(split, parts), indexes.events_file(split)]
    return _Intent(content=content, names=tuple(names), removes=())


def _removed(index: Storage, existing: Manifest | None, interrupted: _Intent | None) -> tuple[str, ...]:
    """Return the names of files that earlier adoptions wrote, the manifest first, so that readers see no dataset once
    it is removed. A stranger may have written the list, so only names of an index are accepted."""
    names: set[str] = set()
    if interrupted is not None:
        names.update(interrupted.names, interrupted.removes)
    if existing is not None:
        names.add(MANIFEST)
        names.update(
            entry["file"] for split in existing.splits for entry in (*indexes.index_files(split), split.events)
        )
    own = {name for name in names if name == MANIFEST or _INDEX_FILE.fullmatch(name)}
    described = {DATASET_INFO, FEATURES} if _is_described(index) else set()
    return tuple(sorted(own | described, key=lambda name: (name != MANIFEST, name)))


def _claim(index: Storage, root: str, intent: _Intent, existing: Manifest | None) -> None:
    """Make an adoption the owner of the output, and remove what an earlier one has written or begun to write there.

    An interrupted adoption looks like a running one: this one takes the output from it, and a running one ends with an
    error. Runs of the same adoption share the output.

    Args:
        root: Folder of this run's own files.
        existing: The manifest that was there before the data were read.

    Raises:
        ConflictError: Another adoption has written there meanwhile.
    """
    with index.alone():
        _refuse_other_manifest(index, existing)
        data = read_bounded(index, _ADOPTING, MAX_INTENT_BYTES, advice=_ADVICE)
        owner = None if data is None else decode(data, _Intent, where=index.url_of(_ADOPTING), advice=_ADVICE)
        if owner is None or owner.content != intent.content:
            owner = replace(intent, removes=_removed(index, existing, owner))
            if not index.replace(_ADOPTING, owner.document(), data):
                raise ConflictError(_busy(index))
            _refuse_other_manifest(index, existing)  # it may have been written before the output was taken
        if not owner.removes:
            return
        for folder in {"/".join(info.name.split("/")[:2]) for info in index.list(BUILD) if info.name.count("/") > 1}:
            if folder.startswith(_ROOT) and folder != root:
                index.take_away(folder)  # from here on its run cannot place any file
        for name in owner.removes:
            info = index.stat(name)
            _refuse_overtaken(index, intent.content)  # after the stat: what a later owner places has another generation
            if info is not None:
                index.delete_exactly(info)
        if not index.replace(_ADOPTING, intent.document(), owner.document()):
            _refuse_overtaken(index, intent.content)


def _refuse_other_manifest(index: Storage, existing: Manifest | None) -> None:
    if read_manifest(index) not in (None, existing):
        raise ConflictError(_busy(index))


def _refuse_overtaken(index: Storage, content: str) -> None:
    """Raise ConflictError if another adoption owns the output now."""
    data = read_bounded(index, _ADOPTING, MAX_INTENT_BYTES, advice=_ADVICE)
    if data is None or decode(data, _Intent, where=index.url_of(_ADOPTING), advice=_ADVICE).content != content:
        raise ConflictError(_busy(index))


def _busy(index: Storage) -> str:
    return (
        f"{index.url}: an adoption with other options has taken over this output; keep this index elsewhere "
        "(`index` DIR), or run this again with `overwrite` when the other one has ended"
    )


def _classes(found: Found, results: Sequence[ReadShard]) -> tuple[str, ...]:
    if found.classes is not None:
        return found.classes
    most = max((max(result.labels, default=-1) for result in results), default=-1)
    return tuple(str(label) for label in range(most + 1))


def _publish_split(
    index: Storage, found: Found, split: str, pairs: Sequence[tuple[FoundShard, ReadShard]], num_classes: int
) -> SplitManifest:
    events = [event for _, result in pairs for event in result.events]
    labels: Counter[int] = sum((result.labels for _, result in pairs), Counter())
    sizes = [result.image_bytes if found.images else shard.num_bytes for shard, result in pairs]
    schema = indexes.index_schema(with_files=bool(found.images))
    statuses, reasons = _row_counts([result for _, result in pairs])

    rows = _distinct(pairs)

    def put(name: str, part: range) -> FileEntry:
        return indexes.publish_row_groups(index, name, islice(rows, len(part)), schema)

    return SplitManifest(
        name=split,
        samples=sum(result.samples for _, result in pairs),
        num_bytes=sum(sizes),
        shards=tuple(
            {"file": shard.name, "samples": result.samples, "bytes": size, "sha256": "", "crc32c": shard.crc32c}
            for (shard, result), size in zip(pairs, sizes, strict=True)
        ),
        class_counts=tuple(labels[label] for label in range(num_classes)),
        repeats={"count": 1, "stored": 1},
        repaired={},
        rejected=dict(sorted(Counter(event.reason for event in events).items())),
        index=indexes.publish_index(split, [result.samples for _, result in pairs], put),
        events=indexes.publish_row_groups(
            index, indexes.events_file(split), iter([indexes.events_table(events)]), indexes.events_schema()
        ),
        statuses=statuses,
        reasons=reasons,
    )


def _row_counts(results: Sequence[ReadShard]) -> tuple[dict[str, int], dict[str, int]]:
    """Count img2dataset's rows by status and reason, each once; empty if a shard has no counts."""
    counts = [result.counts for result in results if result.counts is not None]
    if not counts or len(counts) < len(results):
        return {}, {}
    statuses: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for each in counts:
        statuses.update(each.statuses)
        reasons.update(each.reasons)
    return {status: statuses[status] for status in STATUSES}, {name: n for name, n in sorted(reasons.items()) if n}


def _distinct(pairs: Sequence[tuple[FoundShard, ReadShard]]) -> Iterator[pa.Table]:
    """Yield the rows of every shard, with keys that are unique in the split."""
    hashes = _sorted_hashes(result for _, result in pairs)
    twice = frozenset(repeated(hashes).tolist())
    prefixes = shard_prefixes([shard.name for shard, _ in pairs])
    for prefix, (_, result) in zip(prefixes, pairs, strict=True):
        rows = result.rows()
        if twice and not twice.isdisjoint(result.key_hashes.tolist()):
            files = rows.column("file").to_pylist() if "file" in rows.column_names else [""] * rows.num_rows
            seen: Counter[int] = Counter()
            taken: set[int] = set()
            keys = rows.column("key").to_pylist()
            for position, key in enumerate(keys):
                hashed = key_hash(key)
                if hashed in twice:
                    others = distinct_keys(key, prefix, files[position], seen[hashed])
                    keys[position] = next(
                        other
                        for other in others
                        if key_hash(other) not in taken and position_of(hashes, other.lower()) is None
                    )
                    taken.add(key_hash(keys[position]))
                    seen[hashed] += 1
            rows = rows.set_column(0, rows.schema.field(0), strings(keys))
        yield rows


def _sorted_hashes(results: Iterable[ReadShard]) -> NDArray[np.uint64]:
    return np.sort(np.concatenate([result.key_hashes for result in results]))


def _content_hash(found: Found, splits: Sequence[SplitManifest]) -> str:
    """Return a hash of everything that determines the order of the samples, independent of the URLs."""
    content = [found.format, [[split.name, split.shards, split.index["sha256"]] for split in splits]]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
