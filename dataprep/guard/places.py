"""Looks up where buckets are, each once, and finds the nearest copy of what was refused."""

from __future__ import annotations

import asyncio

from dataprep.cloud.placement import Placement, nearer_copy, placement_of
from dataprep.cloud.prices import Prices
from dataprep.cloud.region import UNKNOWN, Verdict, describe
from dataprep.errors import AccessError
from dataprep.messages import first_line, printable

MAX_DEPTH = 4
"""Number of folders above an object in which a list of copies is looked for, the bucket itself among them."""
RETRY_S = 60.0
"""Time after which a place that could not be found is looked up again."""
MAX_FOLDERS = 1000
"""Maximum number of folders whose copies are remembered."""


class Places:
    """Places of buckets as one reader sees them.

    Args:
        where: The reader's zone or region; None if unknown.
        prices: Prices to apply.
    """

    def __init__(self, where: str | None, prices: Prices) -> None:
        self.where = where
        self._prices = prices
        self._found: dict[str, tuple[float, asyncio.Task[Placement]]] = {}
        """Look-ups by bucket, with the times at which they began."""
        self._copies: dict[str, str] = {}

    async def find(self, bucket: str) -> Placement:
        """Return a bucket's place; if it cannot be found, the verdict is UNKNOWN for RETRY_S."""
        now_s = asyncio.get_running_loop().time()
        began_s, task = self._found.get(bucket, (now_s, None))
        if task is None or (now_s - began_s > RETRY_S and task.done() and task.result().bucket is None):
            task = asyncio.create_task(asyncio.to_thread(self._look_up, bucket))
            self._found[bucket] = now_s, task
        return await asyncio.shield(task)

    async def nearest_copy(self, found: Placement, name: str) -> str:
        """Describe the copy of the dataset around an object that is cheapest to read, or say how to make one."""
        folders = [name.rpartition("/")[0]]
        while folders[-1] and len(folders) < MAX_DEPTH - 1:
            folders.append(folders[-1].rpartition("/")[0])
        if folders[-1]:
            folders.append("")
        for folder in folders:
            url = f"{found.url}/{folder}".rstrip("/")
            if url not in self._copies:
                if len(self._copies) >= MAX_FOLDERS:
                    break
                self._copies[url] = await asyncio.to_thread(self._copy_of, url, found)
            if self._copies[url]:
                return self._copies[url]
        return f"no copy is listed; dataprep replicate {found.url}/... makes one, which loaders find"

    def _look_up(self, bucket: str) -> Placement:
        url = f"gs://{bucket}"
        try:
            return placement_of(url, self.where, self._prices)
        except AccessError as error:
            verdict = Verdict(UNKNOWN, None, f"it is not known where the bucket is: {first_line(error)}")
            return Placement(url, self.where, None, verdict)

    def _copy_of(self, url: str, found: Placement) -> str:
        around = Placement(url, found.where, found.bucket, found.verdict)
        copy = nearer_copy(around, self._prices, lambda _: None)
        if copy is None:
            return ""
        replica, verdict = copy
        return printable(f"nearest copy: {replica.url} in {describe(replica.bucket)}, ${verdict.usd_per_gib:g} per GiB")
