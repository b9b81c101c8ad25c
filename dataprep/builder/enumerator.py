"""Lists the originals of a build's splits, or takes the lists that an earlier run has kept if they are still true.

splits, once for a user's own data ─▶ for each split: kept list, or a new one that is kept ─▶ what the source had
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from dataprep.builder.enumerations import (
    Kept,
    enumeration_file,
    listing_file,
    load_enumeration,
    load_splits,
    splits_file,
)
from dataprep.builder.keeping import Keeping
from dataprep.builder.plan import BuildOptions
from dataprep.builder.request import Progress
from dataprep.builder.source_listing import list_source, load_listing
from dataprep.dataset.records import Enumeration
from dataprep.sources import Dataset
from dataprep.sources.base import Reading
from dataprep.sources.folders import followed_links
from dataprep.storage import Storage


@dataclass(kw_only=True, slots=True)
class Enumerator:
    """Lists the originals of a build's splits, or reads the list that an earlier run has stored."""

    dataset: Dataset
    """The dataset; a user's own data are opened when they are first needed."""
    source: Storage
    keeping: Keeping
    options: BuildOptions
    progress: Progress
    overwrite: bool
    max_reject_ratio: float
    _listing: str | None = None
    """What the source has now, if it is compared as a whole and differs from what an earlier run listed."""
    _listing_file: str = ""
    _is_compared: bool = False
    """Whether the source is compared as a whole, so that images in folders are known to be the same."""
    _may_keep: bool = True
    """Whether lists may be stored; those of a build that is under way stay as it has listed them."""
    _told: bool = False
    """Whether the user knows that an earlier list is used."""
    _found: dict[str, Enumeration] = field(default_factory=dict)
    """Lists of this run, by the names under which they are stored."""

    def __post_init__(self) -> None:
        self.source = _expected(self.source)

    @property
    def afresh(self) -> bool:
        """Whether lists of an earlier run are ignored, because a user's own files have changed, or may have."""
        return (self.overwrite and self.options.own is not None) or self._listing is not None

    def compare(self) -> None:
        """Compare the files of a local source with those that an earlier run listed."""
        if not self.source.is_local or not self.keeping.is_allowed():
            return
        found = list_source(self.source, self.dataset)
        if found is None:
            return
        name = self._listing_file = listing_file(self.source, self.dataset)
        earlier = self.keeping.earlier
        before = None if earlier is None else load_listing(earlier, name)
        self._is_compared = True
        if found == before and not self.overwrite:
            return
        self._listing = found
        self._may_keep = self.overwrite or before is None or not self.keeping.is_under_way()
        if self._may_keep and earlier is not None:
            earlier.delete(name)

    def note(self) -> None:
        """Store what the source had, now that all lists are stored."""
        if self._listing is not None and self._may_keep:
            self.keeping.note(self._listing_file, self._listing)

    def splits(self) -> tuple[str, ...]:
        """Return the splits to build: those that were requested, or all that are found in a user's own data."""
        if self.options.splits or self.dataset.is_published:
            return self.options.splits
        name, earlier = splits_file(self.source, self.dataset), self.keeping.earlier
        kept = () if earlier is None or self.afresh else load_splits(earlier, name)
        if kept:
            return kept
        splits = self._opened(may_keep=self.keeping.is_allowed()).splits
        if self._may_keep and self.keeping.is_allowed():
            if earlier is not None:
                earlier.delete(name)
            for split in splits:
                self(split, None)
            self.keeping.keep_splits(name, splits)
        return splits

    def _opened(self, *, may_keep: bool) -> Dataset:
        # What --overwrite removes stays until the plan is known, but images are unpacked before.
        unpack_to = self.keeping.storage if self.overwrite or may_keep else None
        reading = Reading(
            progress=self.progress.reading,
            unpack_to=unpack_to,
            splits=self.options.splits,
            max_reject_ratio=self.max_reject_ratio,
        )
        if self.options.own is None or not self.options.own.archive:
            for line in followed_links(self.source):
                self.progress.log(line)
        opened = self.dataset.opened(self.source, reading)
        if opened is not self.dataset:
            for note in opened.notes:
                self.progress.log(note)
            self.dataset = opened
        return opened

    def __call__(self, split: str, classes: tuple[str, ...] | None) -> Enumeration:
        """Return the enumeration of a split; `classes` is the class list, if another split's enumeration has it."""
        allow_partial = self.options.allow_partial
        if not self.dataset.is_published:
            classes = None  # classes are found over all splits together
        name = enumeration_file(self.source, self.dataset, split, classes, allow_partial=allow_partial)
        if name not in self._found:
            self._found[name] = self._enumeration(name, split, classes)
        return self._found[name]

    def _enumeration(self, name: str, split: str, classes: tuple[str, ...] | None) -> Enumeration:
        with ThreadPoolExecutor(2) as threads:  # over a network concurrently
            may_keep = threads.submit(self.keeping.is_allowed)
            if not self.source.is_local:
                threads.submit(self._expect_archives)
            kept, earlier = None, self.keeping.earlier
            if earlier is not None and not self.afresh:
                are_same = self._is_compared or self.options.converted is not None
                are_same = are_same or not (self.source.is_local or self.overwrite)
                kept = load_enumeration(earlier, self.source, name, self.progress.log, folders_are_same=are_same)
        if kept is not None:
            self._tell_of(kept)
            return kept.enumeration
        enumeration = self._opened(may_keep=may_keep.result()).enumerate(
            self.source,
            split,
            allow_partial=self.options.allow_partial,
            classes=classes,
            progress=self.progress.reading,
        )
        for note in enumeration.notes:
            self.progress.log(note)
        if self._may_keep and may_keep.result():
            self.keeping.keep(name, enumeration, afresh=self.afresh)
        return enumeration

    def _tell_of(self, kept: Kept) -> None:
        """Say once that a list of folders is used that were not compared."""
        if self._told or self._is_compared or not kept.has_folders or self.options.converted is not None:
            return
        self._told = True
        self.progress.log(
            f"continuing with the listing of {kept.listed or 'an earlier run'}; pictures added since are "
            "not seen (--overwrite lists again)"
        )

    def _expect_archives(self) -> None:
        """Look for the archives that a published dataset has, before it is opened."""
        from dataprep.storage.gcs import ExpectedGCS

        if isinstance(self.source, ExpectedGCS):
            archives = (archive for facts in self.dataset.facts.values() for archive in facts.archives)
            self.source.expect([archive.name for archive in archives])


def _expected(source: Storage) -> Storage:
    if source.is_local:
        return source
    from dataprep.storage.gcs import expected

    return expected(source)
