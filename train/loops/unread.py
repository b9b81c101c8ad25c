"""Losses and other numbers of updates that are still to be read, because reading them waits for the device."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dataprep.dataset.keys import named
from dataprep.errors import DataprepError

_SHOWN_KEYS = 4
"""Number of keys in the message about a batch."""


@dataclass(slots=True)
class Unread:
    """Numbers of the updates since the last reading."""

    folder: Path | None
    """Folder for a file with the keys of a batch whose loss is not finite."""
    _updates: list[tuple[int, Mapping[str, Any], list[str]]] = field(default_factory=list)

    def add(self, step: int, numbers: Mapping[str, Any], keys: list[str]) -> None:
        """Note one update.

        Args:
            step: Number of the update.
            numbers: Scalars on the device, including `loss`.
            keys: Keys of the batch's samples.
        """
        self._updates.append((step, numbers, keys))

    def check(self) -> None:
        """Read the losses and check them, but do not forget the numbers.

        Raises:
            DataprepError: A loss is not finite.
        """
        for step, numbers, keys in self._updates:
            if not math.isfinite(loss := float(numbers["loss"])):
                self._report(step, loss, keys)

    def take(self) -> dict[str, float]:
        """Return the means since the last call, and forget the numbers.

        Raises:
            DataprepError: A loss is not finite.
        """
        self.check()
        updates, self._updates = self._updates, []
        names = updates[0][1] if updates else ()
        return {name: math.fsum(float(numbers[name]) for _, numbers, _ in updates) / len(updates) for name in names}

    def _report(self, step: int, loss: float, keys: list[str]) -> None:
        where = ""
        if self.folder is not None:
            path = self.folder / f"not-finite-{step:09d}.json"
            path.write_text(json.dumps({"step": step, "loss": str(loss), "keys": keys}) + "\n")
            where = f", all of them in {path}"
        raise DataprepError(
            f"step {step}: the loss is {loss}, expected a finite one; of {len(keys):,} samples the first are "
            f"{', '.join(map(named, keys[:_SHOWN_KEYS]))}{where}; look at them, or resume with a lower learning rate"
        )
