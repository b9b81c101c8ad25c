"""Losses and other numbers of updates that are still to be read, because reading them waits for the device."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from dataprep.dataset.paths import named
from dataprep.errors import DataprepError
from dataprep.messages import counted

_SHOWN_KEYS = 4
"""Number of keys in the message about a batch."""
_TO_TRY = "try a lower learning rate, a longer warm-up or a lower weight decay"


@dataclass(slots=True)
class Unread:
    """Numbers of the updates since the last reading."""

    folder: Path | None
    """Folder for a file with the keys of a batch whose loss is not finite."""
    saved_step: int = -1
    """Step of the newest checkpoint of the run; -1: there is none."""
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

    def overflowed(self, step: int, keys: list[str], why: str) -> NoReturn:
        """End the run because an update exceeds the range of numbers, unless an earlier loss is not finite.

        Args:
            step: Number of the update.
            keys: Keys of the batch's samples.
            why: What exceeds it.

        Raises:
            DataprepError: Always.
        """
        self.check()
        self._end(step, f"{why}, expected finite weights", "overflow", keys)

    def refuse(self, step: int, names: list[str]) -> None:
        """End the run if arrays that are about to be saved have values that are not finite.

        Args:
            step: Number of updates that were done.
            names: Names of these arrays.

        Raises:
            DataprepError: There is such an array.
        """
        if names:
            more = f" and {counted(len(names) - 1, 'more array')}" if len(names) > 1 else ""
            raise DataprepError(
                f"step {step}: values that are not finite in {names[0]}{more}, expected finite ones in a checkpoint, "
                f"so none is written; {self._kept}; {_TO_TRY}"
            )

    @property
    def _kept(self) -> str:
        if self.saved_step < 0:
            return "nothing is kept, because no checkpoint was saved"
        return f"nothing after the checkpoint of step {self.saved_step:,} is kept"

    def _report(self, step: int, loss: float, keys: list[str]) -> NoReturn:
        self._end(step, f"the loss is {loss}, expected a finite one", str(loss), keys)

    def _end(self, step: int, what: str, loss: str, keys: list[str]) -> NoReturn:
        where = ""
        if self.folder is not None:
            path = self.folder / f"not-finite-{step:09d}.json"
            path.write_text(json.dumps({"step": step, "loss": loss, "keys": keys}) + "\n")
            where = f", all of them in {path}"
        raise DataprepError(
            f"step {step}: {what}; of {len(keys):,} samples the first are "
            f"{', '.join(map(named, keys[:_SHOWN_KEYS]))}{where}; {self._kept}; look at the samples, or {_TO_TRY}"
        )
