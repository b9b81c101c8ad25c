"""Runs whose logs go to a bucket and are killed, that are traced, and whose time is counted: what other programs read.

TensorBoard, xprof and ml-goodput-measurement run in an environment of their own, of tests/support/tensorboard.txt.

python -m tests.support.watched_runs FLAG…     train.pretrain_mae in JAX, with the delays of the variables below
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from dataprep.storage import open_storage
from dataprep.watching import LOG_FILE, ask_profile, log_lines
from tests.support.training import REPOSITORY, SMALL, flags_of, losses, start
from tests.support.training_jax import environment
from train.telemetry.goodput import GOODPUT_FILE
from train.telemetry.logs import complete_bytes

LOST_S = 30.0
"""Seconds of logs in a bucket that a kill may take."""


@cache
def readers() -> Path:
    """Return the Python of the environment with TensorBoard and others, which is made once."""
    folder, pins = REPOSITORY / "build/tensorboard", REPOSITORY / "tests/support/tensorboard.txt"
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, folder], check=True)
    python = folder / "bin/python"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, "-r", pins], check=True)
    return python


def read(program: str, *arguments: str) -> Any:
    """Run a program with the readers; return the JSON that it prints last."""
    ran = subprocess.run([readers(), "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


SCALARS = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
tag = "train/loss"
print(json.dumps({each.step: each.value for each in events.Scalars(tag)} if tag in events.Tags()["scalars"] else {}))
"""


def killed_logs(data: str, url: str, kills: int, rng: random.Random) -> str:
    """Kill a run that logs to a bucket again and again; TensorBoard finds all but the last seconds after each kill."""
    flags = {**SMALL, "data_path": data, "device": "cpu", "epochs": 100_000, "ckpt_interval_steps": 20}
    storage, lost_s, gone = open_storage(url), [0.0], {"TensorBoard": set[int](), LOG_FILE: set[int]()}
    for number in range(kills):
        seen: dict[int, tuple[float, float]] = {}
        arguments = flags_of(output_dir=url, resume="automatic", **flags)
        with start("train.pretrain_mae", *arguments, PYTHONUNBUFFERED="1") as process:
            reader = threading.Thread(target=_note, args=(process, seen))
            reader.start()
            while not seen:
                time.sleep(0.01)
                assert process.poll() is None, process.stderr.read()[-3000:]
            time.sleep(rng.uniform(1, 40))
            process.kill()
            killed_s = time.monotonic()
            reader.join()
        found = {int(step): loss for step, loss in read(SCALARS, url).items()}
        for info in storage.list("events.out.tfevents."):
            content = storage.read(info.name)
            assert complete_bytes(content, is_log=False) == len(content), f"kill {number}: {info.name} is cut"
        for step in found.keys() & seen.keys():
            assert abs(found[step] - seen[step][1]) < 1e-6, f"kill {number}: step {step}"
        logged = [line["step"] for _, line in log_lines(storage.read(LOG_FILE)) if line is not None and "loss" in line]
        assert logged == sorted(set(logged)), f"kill {number}: {LOG_FILE} repeats a step"
        for name, steps in (("TensorBoard", set(found)), (LOG_FILE, set(logged))):
            lost = {step: killed_s - at_s for step, (at_s, _) in seen.items() if step not in steps}
            assert max(lost.values(), default=0.0) < LOST_S, f"kill {number}: {name} lost {lost}"
            lost_s += lost.values()
            gone[name] = gone[name] - seen.keys() | lost.keys()
            lacking = set(range(1, max(steps) + 1)) - steps - gone[name]
            assert not lacking, f"kill {number}: {name} lacks {sorted(lacking)}"
    return f"{kills} kills, {len(logged):,} steps; at most {max(lost_s):.1f} s lost"


def _note(process: Any, seen: dict[int, tuple[float, float]]) -> None:
    for text in process.stdout:
        if '"loss"' in text:
            line = json.loads(text)
            seen[line["step"]] = time.monotonic(), line["loss"]


TOOLS = """
import json, sys
from xprof.convert import raw_to_tool_data
paths = sys.argv[1:]
names = raw_to_tool_data.xspace_to_tool_names(paths)
trace, _ = raw_to_tool_data.xspace_to_tool_data(paths, "trace_viewer", {})
print(json.dumps([names, len(json.loads(trace)["traceEvents"])]))
"""


def traced(data: str, folder: Path, framework: str, seconds: float = 3.0) -> str:
    """Ask a run for a trace: xprof opens it, and the run goes on."""
    flags = {**SMALL, "data_path": data, "output_dir": folder, "epochs": 100_000, "max_steps": 4000}
    if framework == "jax":
        run = start("train.pretrain_mae", *flags_of(**flags, framework="jax"), **environment(), PJRT_DEVICE="")
    else:
        run = start("train.pretrain_mae", *flags_of(**flags, device="xla"))
    seen: dict[int, tuple[float, float]] = {}
    with run as process:
        reader = threading.Thread(target=_note, args=(process, seen))
        reader.start()
        while len(seen) < 300:
            time.sleep(0.01)
            assert process.poll() is None, process.stderr.read()[-3000:]
        asked_s = time.monotonic()
        traces = ask_profile(str(folder), seconds)
        ended_s = time.monotonic()
        count = len(seen)
        while len(seen) < count + 300 and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        reader.join()
    times = sorted(at_s for at_s, _ in seen.values())
    outside = [b - a for a, b in pairwise(times) if not asked_s <= b <= ended_s]
    step_s = sorted(outside)[len(outside) // 2]
    inside = sum(asked_s <= at_s <= ended_s for at_s in times)
    names, events = read(TOOLS, *(url for url in traces if url.endswith(".xplane.pb")))
    assert "trace_viewer" in str(names) and events > 0
    lost = (ended_s - asked_s) / step_s - inside
    return f"{len(names)} tools of xprof, {events:,} events; {lost:.0f} steps of {step_s * 1e3:.1f} ms lost"


# Goodput with delays of known size

INPUT_S, COMPILE_S, SAVE_S, SLEPT = (f"PLANTED_{name}" for name in ("INPUT_S", "COMPILE_S", "SAVE_S", "FILE"))
"""Variables with the delay of each batch, of each compilation, and of each fsync of a checkpoint, and with the file to
which each is written as it ends."""
IDLE_S, RESTARTS, STEPS, SAVED_STEPS = 7.0, 3, 40, 10
COUNTED = {"input": 0.5, "compile": 15.0, "checkpoint": 5.0, "idle": IDLE_S}
MOST_OFF, MOST_OFF_SUM = 0.05, 0.01


def _slept(cause: str, seconds: float) -> None:
    time.sleep(seconds)
    with Path(os.environ[SLEPT]).open("a") as file:
        file.write(json.dumps([cause, seconds]) + "\n")


def plant_delays() -> None:
    """Delay batches, compilations and the disk of checkpoints of this process, as the variables say."""
    from train.loops import jax as loop
    from train.loops import jax_transformer_steps as steps

    delays = {name: float(os.environ[name]) for name in (INPUT_S, COMPILE_S, SAVE_S)}
    batches, normalised, fsync = loop.device_batches, steps.normalised, os.fsync

    def slow_batches(*arguments: Any, **options: Any) -> Iterator[Any]:
        for batch in batches(*arguments, **options):
            _slept("input", delays[INPUT_S])
            yield batch

    def slowly_traced(images: Any) -> Any:
        _slept("compile", delays[COMPILE_S])
        return normalised(images)

    def slow_fsync(descriptor: int) -> None:
        if "checkpoint" in os.readlink(f"/proc/self/fd/{descriptor}"):
            _slept("checkpoint", delays[SAVE_S])
        fsync(descriptor)

    loop.device_batches, steps.normalised, os.fsync = slow_batches, slowly_traced, slow_fsync


def _attempts(data: str, folder: Path, share: float) -> tuple[dict[str, float], dict[str, float], float]:
    """Run with three kills and a share of the delays; return counted and planted seconds by cause, and wall time."""
    log, slept, planted = folder / "run", folder / "slept.jsonl", dict.fromkeys(COUNTED, 0.0)
    names = {INPUT_S: "input", COMPILE_S: "compile", SAVE_S: "checkpoint"}
    delays = {name: str(share * COUNTED[cause]) for name, cause in names.items()}
    variables = {**environment(), "PJRT_DEVICE": "", **delays, SLEPT: str(slept)}
    flags = {**SMALL, "data_path": data, "output_dir": log, "epochs": 100, "max_steps": STEPS}
    flags |= {"ckpt_interval_steps": SAVED_STEPS, "resume": "automatic", "framework": "jax"}
    started_s, killed_s = time.time(), 0.0
    for attempt in range(RESTARTS + 1):
        if killed_s:
            time.sleep(share * IDLE_S)
            planted["idle"] += time.time() - killed_s
        with start("tests.support.watched_runs", *flags_of(**flags), **variables) as process:
            stop_at = (attempt + 1) * SAVED_STEPS + 5
            while process.poll() is None and (attempt == RESTARTS or not _reached(log, stop_at)):
                time.sleep(0.005)
            process.kill()
            killed_s = time.time()
            _, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    wall_s = (log / GOODPUT_FILE).stat().st_mtime - started_s  # a process that has written its last ends uncounted
    for cause, seconds in map(json.loads, slept.read_text().splitlines()):
        planted[cause] += seconds
    events = [json.loads(text) for text in (log / GOODPUT_FILE).read_text().splitlines()]
    return [each["seconds"] for each in events if "seconds" in each][-1], planted, wall_s


def _reached(log: Path, step: int) -> bool:
    return (log / LOG_FILE).exists() and max(losses(log), default=0) >= step


def counted_delays(data: str, folder: Path) -> str:
    """Plant delays of known size: each is counted for its cause, beside a run without, and the sum is the wall time."""
    found = {}
    for name, share in (("without", 0.0), ("delayed", 1.0)):
        (folder / name).mkdir()
        found[name] = _attempts(data, folder / name, share)
        seconds, _, wall_s = found[name]
        off = abs(sum(seconds.values()) / wall_s - 1)
        assert off < MOST_OFF_SUM, f"{name}: {sum(seconds.values()):.2f} s counted of {wall_s:.2f} s"
    (without, little, _), (delayed, much, wall_s) = found["without"], found["delayed"]
    shares = {}
    for cause in COUNTED:
        planted_s = much[cause] - little[cause]
        shares[cause] = (delayed[cause] - without[cause]) / planted_s - 1
    said = ", ".join(f"{cause} {much[cause] - little[cause]:.1f} s {off:+.1%}" for cause, off in shares.items())
    assert max(map(abs, shares.values())) < MOST_OFF, said
    return f"{said}; sum {sum(delayed.values()) / wall_s - 1:+.2%} of {wall_s:.0f} s"


def main() -> None:
    from train.pretrain_mae import main as train

    plant_delays()
    train()


if __name__ == "__main__":
    main()
