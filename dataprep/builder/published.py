"""Compares the output with the receipts before the manifest is put: in both directions, by one listing.

    receipts ─▶ expected names, sizes, CRC32Cs ─┬─▶ lost: missing or other bytes ─▶ no receipt any more, built again
    listing of the output ──────────────────────┴─▶ foreign: read with the dataset, and of no receipt ─▶ named

A bucket keeps the CRC32C of each object. A file on a disk is read for its CRC32C before its shard gets a receipt
(shard.py), after the receipt's own bytes were written. Here it is read again only if it is newer than these: then it
was written, replaced, renamed or copied after that. So a build that goes on on another disk reads its files once, and
builds none of them again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from dataprep.builder.claim import removed_names
from dataprep.builder.open_build import OpenBuild
from dataprep.builder.plan import Plan, PlannedSplit
from dataprep.builder.receipts import listed_receipts, receipt_file
from dataprep.dataset.index import events_file, index_names, index_ranges
from dataprep.dataset.paths import BUILD, RETRY
from dataprep.errors import BuildError
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import REPEATED
from dataprep.messages import counted, printable
from dataprep.sources import recorded_class
from dataprep.storage import ObjectInfo
from dataprep.storage.checksums import crc32c_of_file, crc32c_text

SHOWN = 5
"""Maximum number of foreign files in a message."""
READ_IN_ROOT = ("*.tfrecord*", "*.tar", "dataset_info.json", "features.json", "*.labels.txt")
"""Names in the root that readers take for a part of the dataset; other files there, such as a README, do no harm."""


class LostError(BuildError):
    """Files of finished shards are gone or have other bytes; their receipts are removed, so that they are built
    again."""

    def __init__(self, url: str, files: int, shards: int) -> None:
        self.what = (
            f"{url}: files of finished shards are gone or were changed by others: {counted(files, 'file')} of "
            f"{counted(shards, 'shard')}"
        )
        super().__init__(f"{self.what}; run the same command again, which builds these shards again")


class Published:
    """The files that the receipts of a build say are in place.

    Args:
        build: The build.
        others: Files of the dataset that no receipt names, except index and events.
        placed_late: Whether files are put in place after the receipt, which changes their status and not their bytes.
    """

    def __init__(self, build: OpenBuild, others: Iterable[str], *, placed_late: bool = False) -> None:
        self._build, self._placed_late = build, placed_late
        self._read: dict[str, int] = {}
        """Time of the last change of each file that was read, and has the bytes of its receipt."""
        self._others = {*others, *(name for split in build.plan.splits for name in _index_names(split))}
        self._folders, self._linked = _folders(build.plan)
        # 24 bytes a file: an image folder has more than a million.
        self._hashes, self._sizes, self._crc32cs, self._shards = array("Q"), array("q"), array("I"), array("q")

    def expect(self, index: int, files: Iterable[tuple[str, int, int]]) -> None:
        """Remember the files of one shard: name, size, and CRC32C of each."""
        from dataprep.dataset.hashes import name_hash

        for name, num_bytes, crc32c in files:
            self._hashes.append(name_hash(name))
            self._sizes.append(num_bytes)
            self._crc32cs.append(crc32c)
            self._shards.append(index)

    def check(self) -> None:
        """Compare the files in place.

        Raises:
            LostError: Some are missing or differ; their shards have no receipts now, and the same build makes them
                again.
            BuildError: Files of nobody are where readers look, and are named.
        """
        import numpy as np

        from dataprep.dataset.hashes import position_of

        build, storage = self._build, self._build.storage
        order = np.argsort(np.array(self._hashes, np.uint64), kind="stable")
        hashes = np.array(self._hashes, np.uint64)[order]
        done_ns = {} if not storage.is_local else self._done_ns()
        found, wrong, foreign = np.zeros(len(order), bool), [], []
        for info in storage.list():
            at = position_of(hashes, info.name)
            if at is None:
                if self._is_foreign(info.name):
                    foreign.append(info)
                continue
            position = int(order[at])
            if self._is_same(info, position, done_ns):
                found[position] = True
            else:
                wrong.append(info)
        lost = np.flatnonzero(~found)
        if len(lost):
            build.check()
            shards = sorted({self._shards[position] for position in lost})
            for index in shards:
                storage.delete(receipt_file(index, build.root))
            for info in wrong:
                storage.delete_exactly(info)
            raise LostError(storage.url, len(lost), len(shards))
        self._refuse_foreign(foreign)

    def _done_ns(self) -> dict[int, int]:
        """Return the time at which the bytes of each receipt were written, after which the shard's files were read."""
        listed = listed_receipts(self._build.storage, self._build.root)
        return {index: info.written_ns or 0 for index, info in listed.items()}

    def _is_same(self, info: ObjectInfo, position: int, done_ns: dict[int, int]) -> bool:
        crc32c = crc32c_text(self._crc32cs[position])
        if info.num_bytes != self._sizes[position]:
            return False
        if info.crc32c is not None:
            return info.crc32c == crc32c
        changed_ns = info.changed_ns or 0
        newest_ns = info.written_ns or 0 if self._placed_late else changed_ns
        if newest_ns <= done_ns.get(self._shards[position], 0) or self._read.get(info.name) == changed_ns:
            return True
        is_same = crc32c_of_file(Path(self._build.storage.url_of(info.name))) == crc32c
        if is_same:
            self._read[info.name] = changed_ns
        return is_same

    def _is_foreign(self, name: str) -> bool:
        """Return whether readers would take a file for a part of the dataset."""
        top, slash, _ = name.partition("/")
        if top in (BUILD, RETRY) or top in self._linked or name in self._others:
            return False
        if slash:
            return top in self._folders
        return any(fnmatch(top, pattern) for pattern in READ_IN_ROOT)

    def _refuse_foreign(self, foreign: list[ObjectInfo]) -> None:
        """Remove late objects of an overwritten build, and refuse other files of nobody."""
        if not foreign:
            return
        storage = self._build.storage
        removed = removed_names(storage)
        self._build.check()
        for info in foreign:
            if info.name in removed:
                storage.delete_exactly(info)
        odd = [info.name for info in foreign if info.name not in removed]
        if odd:
            more = f" and {len(odd) - SHOWN:,} more" if len(odd) > SHOWN else ""
            raise BuildError(
                f"{storage.url}: {counted(len(odd), 'file')} there that readers would take for a part of the dataset, "
                f"and that this build has not written: {', '.join(map(printable, odd[:SHOWN]))}{more}; move them away "
                "and run the same command again: the shards are done"
            )


def _index_names(split: PlannedSplit) -> list[str]:
    return [events_file(split.name), *index_names(split.name, len(index_ranges(split.shard_samples)))]


def _folders(plan: Plan) -> tuple[set[str], set[str]]:
    """Return the folders in the root in which readers look for a dataset's files, and those that have only links."""
    shard_format, dataset = FORMATS[plan.options.format], recorded_class(plan.options.dataset)
    linked = {
        split.name for split in plan.splits if shard_format.passes_written(split.repeat_stored) < split.repeat_stored
    }
    splits = [*(dataset.splits if dataset else ()), *(split.name for split in plan.splits)]
    return {*splits, "index", REPEATED}, linked
