"""A run with a cache on a local disk is measured as in its second epoch, when the cache holds the whole split.

Otherwise the run would read from the bucket what its stages alone then find in the cache, and their rates would be
those of two different runs. The filling has a limit; beyond it the run is measured as in its first epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dataprep.messages import counted, duration, human_bytes
from loaders.config import LoaderConfig
from loaders.diagnosis.fetch_rate import fetch_all_once
from loaders.diagnosis.slow_link import Attempt, wait_for_reads_left_behind
from loaders.loader import Loader

FILL_S = 600.0
"""Longest time for filling a cache: enough for 60 GB at 100 MB/s."""


def with_full_cache(
    attempt: Attempt, loader: Loader, progress: Callable[[str], None], *, fill_s: float = FILL_S
) -> Attempt:
    """Fill the cache of a run that reads from a bucket, and return the run with a sentence about it.

    Without a cache, or where the data lie on a disk, the run stays as it is. A cache that cannot hold the split, or
    that is not full in time, is left out: what it would hold depends on what was read before.

    Args:
        attempt: The run.
        loader: Loader of the run.
        progress: Called with what is done.
        fill_s: Longest time for filling the cache, which keeps what it then has.

    Raises:
        DataprepError: The data cannot be read.
    """
    config = attempt.setup.config
    if config.cache_dir is None or loader.dataset.is_local:
        return attempt
    split_bytes = loader.dataset.split.num_bytes
    if split_bytes > config.cache_bytes:
        held = f"it holds at most {human_bytes(config.cache_bytes)} of {human_bytes(split_bytes)}"
        return _without_cache(attempt, held)
    progress(f"filling the cache: {human_bytes(split_bytes)}, for at most {duration(fill_s)}")
    lacking = lacking_after(loader, config, fill_s)
    if lacking:
        return _without_cache(attempt, f"{lacking}. It keeps them; the next diagnosis continues from there")
    return replace(attempt, cache="Measured from a full cache, as from the second epoch on.")


def lacking_after(loader: Loader, config: LoaderConfig, fill_s: float) -> str:
    """Fill the cache that the config names; return what it has if it is not full in time, else an empty text."""
    total = loader.order.num_samples
    fetched = fetch_all_once(loader, config, fill_s)
    if fetched == total:
        return ""
    wait_for_reads_left_behind()
    return f"in {duration(fill_s)} it got {fetched:,} of {counted(total, 'image')}"


def _without_cache(attempt: Attempt, why: str) -> Attempt:
    setup = attempt.setup
    return replace(
        attempt,
        setup=replace(setup, config=replace(setup.config, cache_dir=None)),
        cache=f"Measured without the cache, as in the first epoch: {why}.",
    )
