"""Share of its time that a training loop waits for input, for log lines and TensorBoard.

monitor = StepMonitor(batch_images=1024)
for batch in monitor.waiting(batches):
    step(batch)
    monitor.stepped()
    if step_number % 20 == 0:
        log(monitor.take())     # images_per_s, wait_share, utilisation
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


class StepMonitor:
    """Times waits and steps. A step lasts from the delivery of a batch until the next one is requested.

    Where steps are only queued on a device, the loop waits inside a step for room in the queue, so that the shares are
    right over several steps, but not for each.

    Args:
        batch_images: Images in one step, of this host or of all hosts; `images_per_s` counts the same.
        compute_images_per_s: Rate of the device fed from memory, if it is known (`dataprep diagnose` measures it).
    """

    def __init__(self, *, batch_images: int, compute_images_per_s: float | None = None) -> None:
        self._batch_images, self._compute_images_per_s = batch_images, compute_images_per_s
        self._restart()

    def waiting(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yield the batches, and time the wait for each."""
        iterator = iter(batches)
        while True:
            started_s = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._wait_s += time.perf_counter() - started_s
            yield batch

    def stepped(self) -> None:
        """Count a step that was finished, or queued on the device."""
        self._steps += 1

    def take(self) -> dict[str, float]:
        """Return `images_per_s`, `wait_share` (0..1), `step_s` and `utilisation` (0..1) since the last call.

        The utilisation is that of MLPerf Storage: the rate over the rate of the device fed from memory. Where the
        latter is not known, it is the share of the time in which the loop does not wait.
        """
        elapsed_s = max(time.perf_counter() - self._started_s, 1e-9)
        images_per_s = self._steps * self._batch_images / elapsed_s
        wait_share = min(1.0, self._wait_s / elapsed_s)
        known = self._compute_images_per_s
        found = {
            "images_per_s": images_per_s,
            "wait_share": wait_share,
            "step_s": elapsed_s / max(1, self._steps),
            "utilisation": 1 - wait_share if known is None else min(1.0, images_per_s / known),
        }
        self._restart()
        return found

    def _restart(self) -> None:
        self._started_s = time.perf_counter()
        self._wait_s, self._steps = 0.0, 0
