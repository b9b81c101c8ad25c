"""Commands under the guard: real clients, refusals, signals, exit codes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from dataprep.errors import UsageError
from dataprep.guard.escapes import Watch
from dataprep.guard.ledger import Budget
from dataprep.guard.report import GuardReport
from dataprep.guard.run import BUDGET_ENDED, NOT_EXECUTABLE, NOT_FOUND, REFUSED, GuardSettings, run_guarded
from tests.support.guarded import HERE, LINES, NAME, USD_PER_GIB, read_command
from tests.support.waiting import wait_for

URLS = [f"gs://{bucket}/{NAME}" for bucket in USD_PER_GIB]
LIGHT = ("google-cloud-storage", "obstore", "tensorstore", "gcsfs")
"""Clients that start in less than a second; make soak SHOW=guard has all."""


def ran(*words: object, grace_s: float = 100.0, stdout: int | None = None, **budget: object) -> tuple[int, GuardReport]:
    settings = GuardSettings(where=HERE, budget=Budget(**budget), grace_s=grace_s)
    return asyncio.run(run_guarded([str(word) for word in words], settings, stdout=stdout))


def python(program: str) -> tuple[str, str, str]:
    return sys.executable, "-c", program


def test_four_clients_in_five_places_are_counted_to_the_byte(placed):
    before = placed.stats()["bytes_served"]
    code, report = ran(*read_command(",".join(LIGHT), *URLS))
    served = placed.stats()["bytes_served"] - before
    assert code == 0
    assert report.bytes_read == served == len(LIGHT) * len(URLS) * len(LINES)
    assert {each.bucket: each.usd_per_gib for each in report.buckets} == USD_PER_GIB
    for each in report.buckets:
        assert each.bytes_read == len(LIGHT) * len(LINES)
        assert each.usd >= each.bytes_read / 2**30 * USD_PER_GIB[each.bucket]
    assert report.escaped == ()


def test_four_clients_fail_outside_the_allowed_places_and_say_why(placed, tmp_path):
    said = tmp_path / "said"
    with said.open("wb") as file:
        code, report = ran(
            *read_command(",".join(LIGHT), f"gs://guard-far/{NAME}"), stdout=file.fileno(), allowed=("us-central1",)
        )
    assert code == REFUSED
    assert (report.bytes_read, report.budget_ended) == (0, False)
    assert report.refused == len(LIGHT)
    lines = said.read_text().splitlines()
    assert len(lines) == len(LIGHT)
    for line in lines:
        assert "gs://guard-far in europe-west4, read from us-central1-a at $0.05 per GiB: only us-central1 may" in line


ENDLESS = """
import subprocess, sys
from tests.support.guarded import CLIENTS, ENVIRONMENT
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], stdin=subprocess.DEVNULL)
open(sys.argv[1], "w").close()
while True:
    try:
        CLIENTS["obstore"](sys.argv[2])
    except Exception as error:
        print(error, file=sys.stderr)
"""


def test_a_command_that_goes_on_is_ended_with_all_its_processes_when_the_budget_ends(placed, tmp_path):
    code, report = ran(*python(ENDLESS), tmp_path / "started", f"gs://guard-far/{NAME}", max_usd=0.00002)
    assert code == BUDGET_ENDED
    assert report.budget_ended
    assert report.bytes_read == len(LINES)
    assert not processes_with(str(tmp_path))


def test_a_command_that_ignores_sigterm_is_killed(placed, tmp_path):
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ENDLESS
    code, _ = ran(*python(deaf), tmp_path / "started", f"gs://guard-far/{NAME}", max_usd=0.00001, grace_s=0.1)
    assert code == BUDGET_ENDED
    assert not processes_with(str(tmp_path))


TRAINING = """
import pathlib, signal, sys, time
from tests.support.guarded import CLIENTS

def store(*_):
    time.sleep(float(sys.argv[3]))
    pathlib.Path(sys.argv[1], "checkpoint").touch()
    sys.exit()

signal.signal(signal.SIGTERM, store)
pathlib.Path(sys.argv[1], "trains").touch()
try:
    CLIENTS["obstore"](sys.argv[2])
except Exception as error:
    print(error, file=sys.stderr)
pathlib.Path(sys.argv[1], "refused").touch()
time.sleep(1000)
"""
"""Stores a checkpoint when it is asked to end."""
SCRIPTS = {
    "that SIGTERM ends at once": '"$@"; echo "it goes on here"',
    "that ends when the read is refused": '"$@" & while [ ! -e "$4/refused" ]; do sleep 0.02; done',
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_training_behind_a_shell_script_has_the_grace_time(placed, tmp_path, script):
    words = ("bash", "-c", script, "bash", *python(TRAINING), tmp_path, f"gs://guard-far/{NAME}")
    code, _ = ran(*words, 0.7, max_usd=0)  # longer than the command has to report the refused read
    assert code == BUDGET_ENDED
    assert (tmp_path / "checkpoint").exists()
    assert not processes_with(str(tmp_path))


def test_a_training_behind_a_shell_script_is_killed_after_the_grace_time(placed, tmp_path):
    words = ("bash", "-c", '"$@"; true', "bash", *python(TRAINING), tmp_path, f"gs://guard-far/{NAME}")
    assert ran(*words, 600, max_usd=0, grace_s=0.1)[0] == BUDGET_ENDED
    assert not (tmp_path / "checkpoint").exists()
    assert not processes_with(str(tmp_path))


def test_a_signal_to_the_guard_leaves_the_grace_time_as_well(placed, tmp_path):
    ask = f'"$@" & while [ ! -e "$4/trains" ]; do sleep 0.02; done; kill -TERM {os.getpid()}; wait'
    words = ("bash", "-c", ask, "bash", *python(TRAINING), tmp_path, f"gs://guard-region/{NAME}")
    assert ran(*words, 0.7)[0] == 128 + signal.SIGTERM
    assert (tmp_path / "checkpoint").exists()
    assert not processes_with(str(tmp_path))


def processes_with(word: str) -> list[str]:
    """Command lines of processes with a word among theirs; of one that was just killed only if it does not end."""
    wait_for(lambda: not _processes_with(word))
    return _processes_with(word)


def _processes_with(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if word in text.split("\0"):
            found.append(text)
    return found


def test_a_reader_that_knows_no_proxy_is_listed_as_escaped(placed, tmp_path, monkeypatch):
    monkeypatch.setenv("GUARD_TEST_UPSTREAM", placed.url.removeprefix("http://"))
    monkeypatch.setenv("GUARD_TEST_SEEN", str(tmp_path / "seen"))
    sample = Watch.sample

    def told(watch):
        sample(watch)
        if watch.found:
            (tmp_path / "seen").touch()

    monkeypatch.setattr(Watch, "sample", told)
    code, report = ran(*read_command("past-the-guard", f"gs://guard-near/{NAME}"))
    assert code == 0
    assert report.bytes_read == 0
    assert [each.address for each in report.escaped] == [placed.url.removeprefix("http://")]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (python("raise SystemExit(7)"), 7),
        (python("import os; os.kill(os.getpid(), 9)"), 137),
        (["/no/such/program"], NOT_FOUND),
        (["/etc/hostname"], NOT_EXECUTABLE),
    ],
)
def test_the_exit_code_is_that_of_the_command(gcs, words, code):
    assert ran(*words)[0] == code


def test_signals_reach_the_command(gcs):
    program = f"import os, signal, time; os.kill({os.getpid()}, signal.SIGINT); time.sleep(100)"
    assert ran(*python(program))[0] == 128 + signal.SIGINT


def test_a_signal_that_comes_while_the_command_starts_reaches_it(gcs, monkeypatch):
    start = asyncio.create_subprocess_exec

    async def interrupted(*words, **options):
        process = await start(*words, **options)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.1)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", interrupted)
    assert ran("sleep", 600)[0] == 128 + signal.SIGINT  # Python ends with 1 where it comes before its handler is there


def test_a_limit_needs_the_readers_place():
    with pytest.raises(
        UsageError, match=r"a limit of \$5\.00 needs prices, .* give its zone or region, e\.g\. --zone us-central1-a"
    ):
        GuardSettings(where=None, budget=Budget(max_usd=5))
    assert GuardSettings(where=None).budget == Budget()
