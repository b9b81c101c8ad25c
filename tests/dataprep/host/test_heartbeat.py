import os
import re
import socket
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from dataprep.host import heartbeat
from dataprep.host.heartbeat import Beats, Standstill, beat, minutes, watched
from tests.support import warm
from tests.support.builds import build_arguments


class Clock:
    def __init__(self, monkeypatch):
        self.now_s = 0.0
        monkeypatch.setattr(heartbeat.time, "monotonic", lambda: self.now_s)


def test_a_standstill_is_warned_of_at_growing_intervals_and_ends_at_the_limit(monkeypatch):
    clock, counter = Clock(monkeypatch), Beats()
    still = Standstill(lambda: counter.value, 1200)
    warned = []
    while not still.is_over:
        clock.now_s += 1
        still.look()
        if still.warning_due():
            warned.append(still.idle_s)
    assert warned == [60, 120, 240, 480, 960]
    counter.value += 1
    still.look()
    assert (still.idle_s, still.is_over) == (0, False)


def test_time_without_a_look_does_not_count_as_idle(monkeypatch):
    clock = Clock(monkeypatch)
    still = Standstill(lambda: 0, 1200)
    clock.now_s = 3600
    still.look()
    assert still.idle_s == 2 * heartbeat.POLL_S


@pytest.mark.parametrize("alive", [beat, lambda: sum(range(100_000))])
def test_a_thread_that_beats_or_computes_is_not_abandoned(alive):
    gave_up = []
    with watched(2.0, lambda idle_s: None, gave_up.append):  # longer than a busy machine keeps a thread waiting
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            alive()
            time.sleep(0.01)
    assert gave_up == []


def test_a_thread_that_waits_forever_is_abandoned():
    ended, warned = threading.Event(), []
    with watched(0.4, warned.append, lambda idle_s: ended.set()):
        assert ended.wait(60)
    assert len(warned) == 1


def test_times_are_written_in_seconds_below_two_minutes():
    assert (minutes(40), minutes(1200)) == ("40 s", "20 min")


@pytest.fixture
def silent_server():
    """Takes every connection and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_build_whose_originals_never_answer_ends_with_an_error_that_names_them(silent_server, tmp_path):
    """With --json and without it, both at once."""
    commands = {}
    for name in ("plain", "json"):
        words = build_arguments("coco-dup5", "gs://silent/coco", tmp_path / name, "webdataset", "--region-policy=off")
        commands[name] = [word for word in words if word != "--json" or name == "json"]
    for err in ended_without_answers(silent_server, commands).values():
        first, *_, last = err.splitlines()
        assert "nothing was read or written for" in first
        assert "this ends after 3 s (--stall-minutes)" in first
        assert re.match("dataprep: listing the originals of train: nothing was read or written for [34] s", last)


def ended_without_answers(server, commands):
    """Run commands at once against a server that never answers; what each wrote to stderr, by its name."""
    environment = {**os.environ, "STORAGE_EMULATOR_HOST": server}
    start = partial(warm.start, environment=environment, folder=Path.cwd(), imported=warm.DATAPREP)
    errors = {}
    with ExitStack() as stack:
        started = {
            name: stack.enter_context(start("dataprep", *map(str, words), "--stall-minutes", "0.05"))
            for name, words in commands.items()
        }
        for name, process in started.items():
            out, errors[name] = process.communicate(800)
            assert (process.returncode, out) == (1, ""), f"{name}: {errors[name]}"
            assert "Traceback" not in errors[name]
    return errors


CONTACT = ("--contact", "https://example.org/tests")
COMMANDS = {
    "verify": ("verify", "gs://silent/dataset"),
    "adopt": ("adopt", "gs://silent/images"),
    "retry-failed": ("retry-failed", "gs://silent/laion", *CONTACT),
    "retry-failed --dry-run": ("retry-failed", "gs://silent/laion", *CONTACT, "--dry-run"),
    "replicate": ("replicate", "gs://silent/dataset", "--to", "gs://copy/dataset"),
}


def test_every_command_whose_bucket_never_answers_ends_with_one_line(silent_server):
    """The code that watches a build watches every command, from the first request on."""
    commands = {name: [*words, "--json"] for name, words in COMMANDS.items()}
    for name, err in ended_without_answers(silent_server, commands).items():
        *_, warned, last = err.splitlines()
        assert warned.startswith("dataprep: warning: "), f"{name}: {err}"
        assert re.search(r"nothing was read or written for [34] s \(--stall-minutes\)", last), f"{name}: {err}"
