"""Compares sizes of files with the manifest, so that a truncated shard is found before it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from dataprep.dataset.paths import RETRY_JSON
from dataprep.errors import VerificationError
from dataprep.messages import counted, shell_words

if TYPE_CHECKING:
    from dataprep.dataset.records import SplitManifest
    from dataprep.storage.local import LocalStorage

NAMED_FILES = 3
"""Number of damaged files that an error names."""


def refuse_other_sizes(storage: LocalStorage, split: SplitManifest) -> None:
    """Raise VerificationError, naming shards, if some of a split are missing or have another size than the manifest
    says.

    Folders are listed, and no shard is opened. While `dataprep retry-failed` runs, or after it was interrupted, shards
    are newer than the manifest: then nothing is compared.
    """
    due = {shard["file"]: shard["bytes"] for shard in split.shards}
    damaged = list(size_faults(due.items(), storage.sizes(due)))
    if not damaged or storage.stat(RETRY_JSON) is not None:
        return
    raise VerificationError(
        f"{storage.url}: {counted(len(damaged), 'shard')} of {split.name} not as the manifest lists: "
        f'{first_faults(damaged)}; run "dataprep verify {shell_words(storage.url)}" to see what else is, and '
        "restore them or build again"
    )


def size_faults(due: Iterable[tuple[str, int]], found: Mapping[str, int]) -> Iterator[str]:
    """Yield a clause for each file that is missing or has another size: `x.tar has 3 bytes, expected 9`.

    Args:
        due: Names and sizes of files, in bytes.
        found: Sizes of those that exist, by name.
    """
    for name, num_bytes in due:
        size = found.get(name)
        if size is None:
            yield f"{name} is missing"
        elif size != num_bytes:
            yield f"{name} has {size:,} bytes, expected {num_bytes:,}"


def first_faults(faults: list[str]) -> str:
    """Join the first clauses, and say how many more there are."""
    more = f" and {len(faults) - NAMED_FILES:,} more" if len(faults) > NAMED_FILES else ""
    return f"{'; '.join(faults[:NAMED_FILES])}{more}"
