"""A run with a cache on a local disk is measured as in its second epoch, when the cache holds the whole split.

Otherwise the run would read from the bucket what its stages alone then find in the cache, and their rates would be
those of two different runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dataprep.messages import human_bytes
from loaders.diagnosis.fetch_rate import fetch_all_once
from loaders.diagnosis.slow_link import Attempt
from loaders.loader import Loader


def with_full_cache(attempt: Attempt, loader: Loader, progress: Callable[[str], None]) -> Attempt:
    """Fill the cache of a run that reads from a bucket, and return the run with a sentence about it.

    Without a cache, or where the data lie on a disk, the run stays as it is. A cache that cannot hold the split is left
    out: what it would hold depends on what was read before.

    Args:
        attempt: The run.
        loader: Loader of the run.
        progress: Called with what is done.

    Raises:
        DataprepError: The data cannot be read.
    """
    setup, config = attempt.setup, attempt.setup.config
    if config.cache_dir is None or loader.dataset.is_local:
        return attempt
    split_bytes = loader.dataset.split.num_bytes
    if split_bytes > config.cache_bytes:
        sizes = f"at most {human_bytes(config.cache_bytes)} of {human_bytes(split_bytes)}"
        return replace(
            attempt,
            setup=replace(setup, config=replace(config, cache_dir=None)),
            cache=f"Measured without the cache, as in the first epoch: it holds {sizes}.",
        )
    progress(f"filling the cache: {human_bytes(split_bytes)}")
    fetch_all_once(loader, config)
    return replace(attempt, cache="Measured from a full cache, as from the second epoch on.")
