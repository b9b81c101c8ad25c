"""Runs a command on all workers of a TPU: starts it once, follows it even if connections drop, and collects its
logs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dataprep.cloud.gcloud import Sent
from dataprep.cloud.tpu.fleet import Answer, Fleet, require_all
from dataprep.cloud.tpu.worker import RunState
from dataprep.errors import StorageError, UndecidedError, UsageError
from dataprep.messages import shell_words

START_ATTEMPTS = 3
STARTUP_POLL_S = 10.0
STARTUP_TIMEOUT_S = 1800.0
"""Maximum time for which the start-up script is waited for."""
HIDDEN = "…hidden"
"""Text that replaces a variable's value."""
UNKNOWN = "…"
"""Text in place of a number that a dry run does not know."""
ENDED = ("done", "lost", "absent")
Framework = Literal["torch", "jax", "torch-tpu"]
FRAMEWORKS: Mapping[Framework, Mapping[str, str]] = {
    "torch": {"PJRT_DEVICE": "TPU", "PYTHONUNBUFFERED": "1"},
    "jax": {"JAX_PLATFORMS": "tpu,cpu", "PYTHONUNBUFFERED": "1"},
    "torch-tpu": {"PYTHONUNBUFFERED": "1"},
}
"""Environment variables of a run, by framework. They prevent JAX from silently using the CPU if the TPU is in use."""
WORKER, WORKERS = "DATAPREP_WORKER", "DATAPREP_WORKERS"
"""Environment variables of a run with the worker's number, from 0, and the number of workers."""
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """Settings for following a run."""

    poll_s: float = 30.0
    patience_s: float = 900.0
    """Maximum time for which a worker may be unreachable."""
    grace_s: float = 60.0
    """Time that a program gets to write a checkpoint when its run is ended."""
    keep_going: bool = False
    """Whether the other workers continue if one has failed. In a program over all chips they would wait forever."""


def check_run(name: str) -> str:
    """Check and return a run's name, which is also the name of its folders.

    Raises:
        UsageError: The name is not valid for a folder.
    """
    if not _RUN.fullmatch(name):
        raise UsageError(f"`run` {name!r}: expected letters, digits, _, . and -, 64 characters at most")
    return name


def start(fleet: Fleet, run: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Start a run at most once on every worker; a repeated call starts it only on workers on which it has not started.

    Raises:
        UsageError: The run exists with another command.
        UndecidedError: Some workers were not reached.
    """
    count, words = len(fleet.target.instances), ["start", "--variables", run, "--", *argv]
    missing = list(range(count))
    for _ in range(START_ATTEMPTS):
        answers = fleet.call(*words, workers=missing, sent=lambda worker: _sent(env, worker, count))
        refusals = (answer for answer in answers if "error" in answer.reply and not answer.reply.get("again"))
        refused = next(refusals, None)
        if refused:
            raise UsageError(f"worker {refused.worker}: {refused.trouble}")
        missing = [answer.worker for answer in answers if answer.code != 0]
        if not missing:
            return
    trouble = next(answer.trouble for answer in answers if answer.code != 0)
    raise UndecidedError(
        f"run {run} is not known to have started on worker{'s' if len(missing) > 1 else ''} "
        f"{', '.join(map(str, missing))}: {trouble}; the same command with `run` {shell_words(run)} starts it only "
        "there"
    )


def _sent(env: Mapping[str, str], worker: int, count: int) -> Sent:
    """Return the variables of a worker as JSON for stdin; values that are secrets are not shown."""
    known = {item for framework in FRAMEWORKS.values() for item in framework.items()}
    shown = {key: value if (key, value) in known else HIDDEN for key, value in env.items()}
    place = {WORKER: str(worker), WORKERS: str(count)}
    unknown = place | {WORKERS: UNKNOWN}  # only a dry run is shown, and it does not look up the workers
    return Sent(text=json.dumps(place | dict(env)), shown=json.dumps(unknown | shown, ensure_ascii=False))


def follow(
    fleet: Fleet, run: str, watch: Watch, *, note: Callable[[str], None], show: Callable[[str], None]
) -> dict[int, RunState]:
    """Follow a run until it has ended on every worker; connections may drop meanwhile.

    Args:
        fleet: The workers, on which the run has been started.
        run: Name of the run.
        watch: Settings for following the run.
        note: Called with lines about the run.
        show: Called with the output of worker 0.

    Returns:
        State of the run on each worker, by its number.

    Raises:
        UndecidedError: A worker could not be reached for too long.
    """
    states: dict[int, RunState] = {}
    heard_s = dict.fromkeys(range(len(fleet.target.instances)), time.monotonic())
    shown_bytes, ending = 0, False
    while True:
        answers = fleet.call("state", run)
        if fleet.gcloud.dry_run:
            break
        _hear(answers, states, heard_s, note)
        shown_bytes += _show_log(fleet, run, states.get(0, {}), shown_bytes, show)
        if len(states) == len(heard_s) and all(state["state"] in ENDED for state in states.values()):
            break
        failed = {worker: state for worker, state in states.items() if has_failed(state)}
        if failed and not watch.keep_going and not ending:
            worker, state = next(iter(failed.items()))
            note(f"worker {worker}: {outcome(state)}; the other workers would wait for it, so they are ended")
            fleet.call("kill", run, f"--grace-s={watch.grace_s}", timeout_s=watch.grace_s + 120)
            ending = True
            continue
        silent = [worker for worker, at_s in heard_s.items() if time.monotonic() - at_s > watch.patience_s]
        if silent:
            raise UndecidedError(
                f"worker {silent[0]} has not answered for {watch.patience_s:.0f} s; the run continues: follow it again "
                f"with `run` {shell_words(run)}"
            )
        time.sleep(watch.poll_s)
    return dict(sorted(states.items()))


def collect_logs(fleet: Fleet, run: str, folder: Path) -> list[Path]:
    """Write the output of every worker to `worker-00.log` and so on."""
    answers = fleet.call("log", run)
    if not fleet.gcloud.dry_run:
        folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for answer in answers:
        if answer.code == 0:
            paths.append(folder / f"worker-{answer.worker:02d}.log")
            paths[-1].write_text(answer.out)
    return paths


def prepare(fleet: Fleet, note: Callable[[str], None]) -> None:
    """Wait until the start-up script has ended on all workers, and make libtpu's folder of logs writable for all users.

    Raises:
        StorageError: The script failed on a worker.
        UndecidedError: The script did not end within STARTUP_TIMEOUT_S.
    """
    deadline_s = time.monotonic() + STARTUP_TIMEOUT_S
    while True:
        answers = fleet.call("prepare")
        require_all(answers, "prepare")
        startups = {answer.worker: answer.reply["startup"] for answer in answers}
        failed = {worker: said for worker, said in startups.items() if said.startswith("failed")}
        if failed:
            worker, said = next(iter(failed.items()))
            raise StorageError(
                f"worker {worker}: the start-up script {said}; see: sudo journalctl -u google-startup-scripts, "
                "fix it there, and run setup again after a restart"
            )
        running = [worker for worker, said in startups.items() if said == "running"]
        if not running:
            for answer in answers:
                if answer.reply["logs"] != "fine":
                    note(f"worker {answer.worker}: {answer.reply['logs']}, or libtpu cannot write its logs there")
            return
        if time.monotonic() > deadline_s:
            raise UndecidedError(f"the start-up script still runs on {len(running)} workers; run setup again later")
        note(f"the start-up script still runs on {len(running)} of {len(startups)} workers")
        time.sleep(STARTUP_POLL_S)


def has_failed(state: RunState) -> bool:
    """Return whether a run has ended with an error."""
    return state["state"] in ENDED and state.get("code") != 0


def outcome(state: RunState) -> str:
    """Describe how a run has ended."""
    if state["state"] == "lost":
        return "lost: the machine restarted, or the run's watcher was killed"
    if state["state"] == "absent":
        return "never started"
    if state["state"] != "done":
        return str(state["state"])
    if "reason" in state:
        return f"could not start: {state['reason']}"
    return f"exit code {state['code']}" if state["code"] >= 0 else f"ended by signal {-state['code']}"


def _hear(
    answers: Sequence[Answer], states: dict[int, RunState], heard_s: dict[int, float], note: Callable[[str], None]
) -> None:
    for answer in answers:
        if "state" in answer.reply:
            heard_s[answer.worker] = time.monotonic()
            states[answer.worker] = answer.reply
        else:
            note(f"worker {answer.worker}: {answer.trouble}; will be tried again")


def _show_log(fleet: Fleet, run: str, state: RunState, shown_bytes: int, show: Callable[[str], None]) -> int:
    """Show the new output of worker 0, and return its number of bytes."""
    fresh = int(state.get("log_bytes", 0)) - shown_bytes
    if fresh <= 0:
        return 0
    (answer,) = fleet.call("log", run, f"--offset={shown_bytes}", f"--limit={fresh}", workers=[0])
    if answer.code != 0:
        return 0
    show(answer.out)
    return fresh
