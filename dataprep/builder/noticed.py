"""What a build tells of its images at its end, because nobody could tell it later or without reading all indexes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dataprep.builder.merge import SHOWN
from dataprep.builder.open_build import OpenBuild
from dataprep.builder.references import original_names
from dataprep.dataset.columns import to_numpy
from dataprep.dataset.hashes import Prints, also_in, shared_images
from dataprep.dataset.paths import readable
from dataprep.dataset.records import ShardReceipt
from dataprep.messages import counted, printable, shell_words

if TYPE_CHECKING:
    import pyarrow as pa


class Noticed:
    """Notes the rejected images of a build, by the names of their files, and images that two splits have.

    A finished dataset has keys only, which lack the suffixes of the files.
    """

    def __init__(self, build: OpenBuild) -> None:
        self._build = build
        self._prints = {split.name: Prints() for split in build.plan.splits}
        self._rejected: Counter[str] = Counter()
        self._names: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, receipt: ShardReceipt, rows: pa.Table) -> None:
        """Look at the next shard, its receipt and its index rows."""
        if len(self._prints) > 1:
            self._prints[receipt.split].add(to_numpy(rows.column("image_bytes")), rows.column("image_crc32c"))
        events = [event for event in receipt.events if event.kind == "rejected"]
        self._rejected[receipt.split] += len(events)
        shown = events[: SHOWN - len(self._names[receipt.split])]
        if shown:
            names = original_names(self._build, [receipt.index], (event.key for event in shown))
            self._names[receipt.split] += [
                f"{printable(names.get(event.key, readable(event.key)))} ({event.reason})" for event in shown
            ]

    def lines(self) -> Iterator[str]:
        """Yield a line for each split with rejected images, and one for all images that two splits have."""
        for split, names in self._names.items():
            if count := self._rejected[split]:
                more = f" and {count - len(names):,} more" if count > len(names) else ""
                verb = "was" if count == 1 else "were"
                yield f"{split}: {counted(count, 'image')} {verb} rejected: {', '.join(names)}{more}"
        shared = ", ".join(also_in(*each[:2], len(each.positions)) for each in shared_images(self._prints))
        if shared:
            inspect = shell_words("dataprep", "inspect", self._build.storage.url)
            yield f"warning: {shared} (the same bytes); {inspect} names the first ones"
