"""A host that saves its part of checkpoints, and finds the newest one, in a process of its own.

    python -m tests.support.own_disk RANK WORLD_SIZE FOLDER MEETING save:1 save:2 newest at:1

Hosts tell each other their texts by files in the folder MEETING, as devices do. A line of JSON says what came of each
word: a step, null where there is no checkpoint, or the text of the error, which ends the process.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

from dataprep.errors import DataprepError
from tests.support.parted_states import cut_state, state
from train.checkpoints import parts
from train.checkpoints.checkpoint import load_any
from train.checkpoints.parts import PartFolder


def main(rank: int, world_size: int, url: str, meeting: Path, words: list[str]) -> None:
    times = count()

    def gather(text: str) -> list[str]:
        here, number = meeting / f"new-{rank}", next(times)
        here.write_text(text)
        here.rename(meeting / f"{number}-{rank}")
        paths = [meeting / f"{number}-{each}" for each in range(world_size)]
        while not all(path.exists() for path in paths):
            time.sleep(0.005)
        return [path.read_text() for path in paths]

    parts.socket.gethostname = lambda: f"tpu-w-{rank}"
    folder = PartFolder(url, rank=rank, world_size=world_size, keep=2, gather=gather)
    told: list[str] = []
    folder.remove_unfinished()
    for what, _, step in (word.partition(":") for word in words):
        try:
            if what == "save":
                folder.save(int(step), cut_state(state(int(step)), rank, world_size))
                print(step)
                continue
            found: Any = (
                load_any(folder.at_step(int(step)), folder) if what == "at" else folder.newest_valid(told.append)
            )
            print(json.dumps(None if found is None else held(found if what == "at" else found[1], rank, world_size)))
        except DataprepError as error:
            print(json.dumps(str(error)))
            return


def held(loaded: dict, rank: int, world_size: int) -> int:
    """Return the step of a state whose values on this host are those that were saved."""
    expected = state(loaded["step"])
    for found, whole in (
        (loaded["model"]["a"], expected["model"]["a"]),
        (loaded["optimizer"]["state"][0]["m"], expected["optimizer"]["state"][0]["m"]),
    ):
        rows = len(whole) // world_size
        assert found[rank * rows : (rank + 1) * rows].equal(whole[rank * rows : (rank + 1) * rows])
    assert loaded["model"]["b"].equal(expected["model"]["b"])
    return int(loaded["step"])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), sys.argv[5:])
