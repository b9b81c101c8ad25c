"""Checks whether `dataset.json` is one that a build would write: sums, options, and the published facts.

All functions are pure functions of a manifest whose types and names dataprep/builder/finished.py has checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from dataprep.builder.recipe import recipe_of
from dataprep.dataset.manifest import built_as
from dataprep.dataset.randomness import ORDER_VERSION
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.formats import FORMATS
from dataprep.messages import quoted
from dataprep.sources import Dataset, SplitFacts
from dataprep.sources.own import CONVERTED


def consistency_faults(manifest: Manifest) -> Iterator[str]:
    """Yield contradictions inside a manifest, and to what builds write. Expects no shape faults and no layout
    faults."""
    names = [split.name for split in manifest.splits]
    if manifest.order_version != ORDER_VERSION:
        yield f"order_version {manifest.order_version}, this dataprep reads {ORDER_VERSION}; update dataprep"
    recipe = recipe_of(built_as(manifest))
    shuffled = recipe.is_shuffled(manifest)
    if manifest.revision < 1 or manifest.shuffled != shuffled:
        yield f"revision {manifest.revision}, shuffled {manifest.shuffled}; expected 1 or more, {str(shuffled).lower()}"
    if len(set(manifest.classes)) != len(manifest.classes):
        yield "a class occurs twice"
    elif list(manifest.classes) != sorted(manifest.classes) and built_as(manifest) != CONVERTED.name:
        yield "classes are not sorted"  # a conversion keeps their order
    sources = sorted({source["split"] for source in manifest.sources})
    if sources != sorted(set(names)):
        yield f"sources are those of {', '.join(sources) or 'nothing'}, the splits {', '.join(names)}"
    yield from _option_faults(manifest, names)
    yield from recipe.option_faults(manifest)
    for split in manifest.splits:
        for fault in _split_faults(manifest, split):
            yield f"split {split.name}: {fault}"


def _option_faults(manifest: Manifest, split_names: list[str]) -> Iterator[str]:
    pairs = {
        "dataset": (manifest.options.get("dataset"), built_as(manifest)),
        "format": (manifest.options.get("format"), manifest.format),
        "splits": (manifest.options.get("splits"), split_names),
    }
    for name, (option, fact) in pairs.items():
        if option != fact:
            yield f"options.{name} is {quoted(option)}, elsewhere it says {quoted(fact)}"


def _split_faults(manifest: Manifest, split: SplitManifest) -> Iterator[str]:
    samples, num_bytes = (sum(int(shard[field]) for shard in split.shards) for field in ("samples", "bytes"))
    sums = {
        "samples": (split.samples, samples),
        "num_bytes": (split.num_bytes, num_bytes),
        "classes counted": (len(split.class_counts), len(manifest.classes)),
    }
    if manifest.classes:
        sums["samples of all classes"] = (sum(split.class_counts), samples)
    for name, (got, expected) in sums.items():
        if got != expected:
            yield f"{name} {got:,}, expected {expected:,}"
    if not split.shards:
        yield "no shards, expected one at least"
    if split.statuses or split.reasons:
        rows = sum(source.get("rows", 0) for source in manifest.sources)
        counted = {"statuses": sum(split.statuses.values()), "reasons": sum(split.reasons.values())}
        for name, count in counted.items():
            if count != rows:
                yield f"{name} of {count:,} rows, the sources have {rows:,}"
        if split.statuses.get("success") != samples:
            yield f"success {split.statuses.get('success')}, the shards have {samples:,} samples"


def published_faults(manifest: Manifest, dataset: Dataset, classes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield differences from the published facts, each with its split or `classes`; a partial dataset may differ.

    Args:
        classes: The published classes.
    """
    if manifest.partial or not dataset.is_published:
        return
    if manifest.classes != classes:
        other = sorted(set(manifest.classes) ^ set(classes))[:3]
        yield "classes", f"{len(manifest.classes):,} classes, published are {len(classes):,}; not in both: {other}"
    for split in manifest.splits:
        yield from (
            (split.name, fault) for fault in _published_counts(manifest, split, dataset.split_facts(split.name))
        )


def _published_counts(manifest: Manifest, split: SplitManifest, facts: SplitFacts) -> Iterator[str]:
    passes = FORMATS[manifest.format].passes_written(split.repeats["stored"])
    rejected = sum(split.rejected.values())
    if facts.samples is not None and split.samples + rejected != facts.samples * passes:
        yield (
            f"{split.samples:,} samples and {rejected:,} rejected; published are {facts.samples:,}"
            + (f", stored {passes} times" if passes > 1 else "")
        )
    if facts.class_samples is None:
        return
    fewest, most = (bound * passes for bound in facts.class_samples)
    for name, count in zip(manifest.classes, split.class_counts, strict=False):
        if not fewest - rejected <= count <= most:
            yield f"class {quoted(name)} has {count:,} samples; published are {fewest:,} to {most:,}"
