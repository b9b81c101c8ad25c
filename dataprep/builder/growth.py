"""The recipe of builds from original files, which can also append new originals to a finished dataset.

originals ─▶ compared with the samples that are there ─▶ plan of new shards ─▶ shards ─▶ the next revision
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from dataprep.arrays import np
from dataprep.builder import merge, shard
from dataprep.builder.archives import ArchiveRecipe, check_kept, ordered, plan_of, storable
from dataprep.builder.cards import own_cards, replace_cards
from dataprep.builder.enumeration import Keeping
from dataprep.builder.finished import dataset_names, next_number, publish_revision, replace_index
from dataprep.builder.output import OpenBuild
from dataprep.builder.plan import BuildOptions, BuildRequest, Plan, Progress, other_versions, physical_key
from dataprep.builder.receipts import read_receipts
from dataprep.builder.recipe import Planned
from dataprep.dataset import records
from dataprep.dataset.columns import numbers_or_zero, to_numpy
from dataprep.dataset.documents import differences
from dataprep.dataset.hashes import name_hashes, position_of
from dataprep.dataset.index import (
    events_schema,
    events_table,
    open_index,
    publish_row_groups,
    read_events,
    revised_name,
)
from dataprep.dataset.paths import named
from dataprep.dataset.revisions import first_shards, removed_keys
from dataprep.dataset.spill import SpilledReferences, enumeration_sha256, spilled
from dataprep.errors import BuildError, SourceError, UsageError
from dataprep.formats import FORMATS
from dataprep.messages import counted, printable
from dataprep.storage import Storage, open_storage

_SHOWN = 5
"""New classes that a message names."""


class GrowingRecipe(ArchiveRecipe):
    """Builds and grows datasets from images in archives and folders."""

    def plan_growth(
        self, request: BuildRequest, progress: Progress, manifest: records.Manifest, data: bytes, *, keep: bool
    ) -> Planned | None:
        """List all originals, and plan shards of those whose keys the dataset does not have."""
        storage = open_storage(request.output_url)
        keeping = Keeping(storage if keep else None)
        dataset, options, found = self._enumerated(request, progress, keeping)
        plan = plan_of(options, found, [])
        _refuse_other_options(storage, plan, manifest)
        splits, orders = [], []
        for before in manifest.splits:
            listed = found[before.name]
            refs = spilled(listed.refs)
            if plan.classes != manifest.classes:
                refs = refs.relabelled([manifest.classes.index(name) for name in plan.classes])
            new, removed = _new_references(storage, manifest, before, refs, options)
            if removed:
                progress.log(f"{before.name}: left out {counted(removed, 'image')} that dataprep remove took out")
            if not len(new):
                continue
            # As large as the shards that there are: `num_shards` and the default are of the first build.
            sized = replace(options, num_shards=None, shard_bytes=max(1, before.num_bytes // len(before.shards)))
            split, order = ordered(dataset, before.name, replace(listed, refs=new), sized)
            first = next_number(manifest, before, len(split.shard_samples))
            splits.append(
                replace(
                    split,
                    first_shard=len(before.shards),
                    first_number=first,
                    built_shards=first_shards(manifest, before.name, len(before.shards)),
                    enumeration_sha256=enumeration_sha256(listed.refs),
                )
            )
            orders.append(order)
        if not splits:
            return None
        grows = hashlib.sha256(data).hexdigest()
        plan = replace(plan, splits=tuple(splits), classes=manifest.classes, grows=grows)
        return storable(plan, orders, keeping)

    def grow(
        self,
        build: OpenBuild,
        request: BuildRequest,
        manifest: records.Manifest,
        data: bytes,
        log: Callable[[str], None],
    ) -> records.Manifest:
        """Put images in place, add to index, events and annotations, and publish the next revision."""
        build.check()
        storage, plan, revision = build.storage, build.plan, manifest.revision + 1
        whole = open_storage(storage.url)
        before = {split.name: split for split in manifest.splits}
        events = {split.name: revised_name(before[split.name].events["file"], revision) for split in plan.splits}
        published = merge.Published(build, [*dataset_names(whole, manifest), *events.values()])
        noticed = merge.BuildNotes(build)
        splits, changes, seen = dict(before), list(manifest.changes), self._seen(build, request, published, noticed)
        merged: dict[str, merge.Merged] = {}
        for planned in plan.splits:
            found = merged[planned.name] = merge.Merged(build, planned, check=partial(check_kept, build), seen=seen)
            deque(found.rows(), maxlen=0)
        added = [each.split(before[name].index, before[name].events) for name, each in merged.items()]
        if any(merge.rejects_too_many(split, request.max_reject_ratio) for split in added):
            raise BuildError(
                f"{storage.url}: more new images than `max_reject_ratio` {request.max_reject_ratio:g} allows were "
                f"rejected: {'; '.join(noticed.lines())}. Correct the originals, or run the same command with a higher "
                "ratio: the shards are done"
            )
        shard.place_images(build)
        published.check()
        for planned, more in zip(plan.splits, added, strict=True):
            old, new, shards = before[planned.name], merged[planned.name], plan.shards_of(planned.name)
            rows = (found[1] for found in read_receipts(storage, shards, build.root) if found is not None)
            index, entry = replace_index(whole, old, rows, len(shards)), old.events
            if new.events:
                table = events_table([*read_events(storage, old.events["file"]), *new.events])
                entry = publish_row_groups(storage, events[planned.name], iter([table]), events_schema())
            splits[planned.name] = replace(merge.grown_split(old, more), index=index, events=entry)
            changes.append(records.Change(revision, planned.name, "added", len(old.shards), old.samples))
        digests = {entry["file"]: entry["sha256"] for entry in manifest.files}
        grown = [splits[planned.name] for planned in plan.splits]
        files = {entry["file"]: entry for entry in manifest.files}
        files |= {entry["file"]: entry for entry in shard.publish_annotations(build, grown, digests)}
        sources = [entry for entry in manifest.sources if entry["split"] not in merged] + plan.source_entries()
        wanted = replace(
            manifest,
            splits=tuple(splits.values()),
            sources=tuple(sorted(sources, key=lambda entry: list(splits).index(entry["split"]))),
            files=tuple(files.values()),
            changes=tuple(changes),
        )
        cards = own_cards(whole, manifest)
        made = publish_revision(whole, manifest, data, wanted)
        replace_cards(whole, made, cards)
        for line in noticed.lines():
            log(line)
        return made


ARCHIVES = GrowingRecipe()


def _refuse_other_options(storage: Storage, plan: Plan, manifest: records.Manifest) -> None:
    """Raise UsageError if a dataset's options or versions differ from a plan's, or it lacks a class or feature."""
    versions = other_versions(manifest.codecs, plan.codecs)
    new = sorted(set(plan.classes) - set(manifest.classes))
    if options := differences(plan.options.document(), manifest.options):
        fault = f"the dataset was built with other options: {'; '.join(options)}; give those"
    elif versions:
        fault = f"the dataset was {versions}, and other versions write other bytes; install those"
    elif new or bool(plan.classes) != bool(manifest.classes):
        names = f"{counted(len(new), 'new class')} ({', '.join(map(printable, new[:_SHOWN]))})"
        fault = (
            f"{names if new else 'the originals have no classes'}, and the labels of the samples that are there would "
            "be others; build all of it as another dataset"
        )
    elif plan.features != manifest.features:
        fault = "the originals have other features than the samples that are there; build all of it as another dataset"
    else:
        return
    raise UsageError(f"{storage.url}: `append`: {fault}")


def _new_references(
    storage: Storage,
    manifest: records.Manifest,
    split: records.SplitManifest,
    refs: SpilledReferences,
    options: BuildOptions,
) -> tuple[SpilledReferences, int]:
    """Return the references whose keys a split has never had, and how many of the others were removed from it. Raises
    SourceError if an original has another size or checksum than the sample of its key."""
    is_copied = options.images.short_side is None and not options.images.apply_exif
    is_copied &= options.images.jpeg == "untouched"
    events = {event.key.lower() for event in read_events(storage, split.events["file"])}
    hashes, sizes, sums = [name_hashes(events)], [np.full(len(events), -1)], [np.zeros(len(events), np.int64)]
    index = open_index(storage, split, compare=True)
    for number in range(len(split.shards)):  # an interrupted growth may have added rows to the index
        batch = index.read_group(number, ["key", "image_bytes", "image_crc32c"])
        keys = [key.lower() for key in batch.column("key").to_pylist()]
        hashes.append(name_hashes(keys))
        known = np.array([is_copied and key not in events for key in keys], np.bool_)
        sizes.append(np.where(known, to_numpy(batch.column("image_bytes")), -1))
        sums.append(numbers_or_zero(batch.column("image_crc32c"), np.int64))
    order = np.argsort(np.concatenate(hashes), kind="stable")
    found, num_bytes, crc32c = (np.concatenate(each)[order] for each in (hashes, sizes, sums))
    has_passes = FORMATS[options.format].passes_written(split.repeats["stored"]) > 1
    removed, left_out, new = removed_keys(storage, manifest, split.name), 0, SpilledReferences()
    for ref in refs:
        key = physical_key(ref.key, 0) if has_passes else ref.key
        at = position_of(found, key.lower())
        if at is None:
            if removed and hashlib.sha256(key.encode()).digest() in removed:
                left_out += 1
            else:
                new.add(ref)
        elif num_bytes[at] >= 0 and (ref.num_bytes, ref.crc32c or crc32c[at]) != (num_bytes[at], crc32c[at]):
            raise SourceError(
                f"{ref.source}: {named(ref.key)} has {ref.num_bytes:,} bytes, and the sample of this key "
                f"{num_bytes[at]:,}, or another checksum: `append` never changes a sample; give the image "
                "another name, or build all of it as another dataset"
            )
    return new, left_out
