"""Parts of a build as processes, some of which are killed for good: for the tests and, at full count, the soak."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence

from tests.support.builds import command
from tests.support.crashes import receipts_of


def parts_of_a_build(
    arguments: Sequence[object], output: object, counts: Sequence[int], killed: set[int], rng: random.Random
) -> int:
    """Run all parts at once, kill some when a few receipts are there, and wait for the others.

    Args:
        arguments: Words of the build, without `--part`.
        output: Where the dataset is built.
        counts: Numbers of parts, one for each group of parts that work beside each other.
        killed: Numbers of the parts that are killed for good in every group; at least one part remains.
        rng: Chooses when.

    Returns:
        Shards that the remaining parts built; some may have been built twice.
    """
    wanted = {(count, number): rng.randint(0, 3) for count in counts for number in killed}
    with tempfile.TemporaryFile("w+") as said:
        processes = {
            (count, number): subprocess.Popen(
                command(*arguments, "--json", "--part", f"{number}/{count}"),
                stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True,
            )
            for count in counts
            for number in range(1, count + 1)
        }  # fmt: skip
        for key, receipts in sorted(wanted.items(), key=lambda item: item[1]):
            _kill_at(processes.pop(key), output, receipts)
        built = 0
        for process in processes.values():
            out, _ = process.communicate(timeout=800)
            said.seek(0)
            assert process.returncode == 0, said.read()[-3000:]
            built += json.loads(out)["shards_built"]
    return built


def _kill_at(process: subprocess.Popen[str], output: object, receipts: int) -> None:
    """Kill a part and its workers as soon as so many shards are done, unless it has ended."""
    while process.poll() is None and len(receipts_of(output)) < receipts:
        time.sleep(0.01)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
