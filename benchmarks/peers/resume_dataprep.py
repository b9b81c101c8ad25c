"""Our own loader, as docs/loaders.md says: the state of a batch resumes with any number of ranks that divides it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from resume_rank import Contender, Life, run

from loaders import open_loader


class Dataprep(Contender):
    """The shards of `dataprep build`, with the loader's defaults."""

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self._state: object = None

    def steps(self) -> Iterator[list[str]]:
        life, settings = self.life, {"image_size": 32, "threads": 1}
        world = {"rank": life.rank, "world_size": life.world_size}
        with open_loader(str(life.data), batch_size=life.batch_size, **world, **settings) as loader:
            if (before := life.state_before(0)) is not None:
                loader.load_state_dict(json.loads(before.read_bytes()))
            for batch in loader:
                self._state = batch.state
                yield batch.keys

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self._state))


if __name__ == "__main__":
    run(Dataprep, None)
