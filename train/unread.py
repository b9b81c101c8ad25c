"""Numbers of updates that nobody looked at yet: a look waits for the device."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dataprep.errors import DataprepError

_SHOWN_KEYS = 4


@dataclass(slots=True)
class Unread:
    """Of the updates since the last look."""

    folder: Path | None
    """Where the keys of a batch that led to no finite loss are written."""
    _updates: list[tuple[int, Mapping[str, Any], list[str]]] = field(default_factory=list)

    def add(self, step: int, numbers: Mapping[str, Any], keys: list[str]) -> None:
        """One update.

        Args:
            step: Its number.
            numbers: Scalars on the device, `loss` among them.
            keys: Of the samples.
        """
        self._updates.append((step, numbers, keys))

    def check(self) -> None:
        """Look, and forget nothing.

        Raises:
            DataprepError: A loss is not finite.
        """
        for step, numbers, keys in self._updates:
            if not math.isfinite(loss := float(numbers["loss"])):
                self._report(step, loss, keys)

    def take(self) -> dict[str, float]:
        """Means since the last look.

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
            f"{', '.join(keys[:_SHOWN_KEYS])}{where}; look at them, or resume with a lower learning rate"
        )
