import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from dataprep.builder.pool import Pool
from dataprep.errors import BuildError, ConflictError, StorageError
from dataprep.host import heartbeat
from dataprep.host.heartbeat import beat
from dataprep.host.processes import BUILD_ENVIRONMENT
from tests.support import waiting


def run(task, workers, log, indexes):
    with Pool(workers, log) as pool:
        yield from pool.run(task, indexes)


def square(index):
    return index * index


def die_on(marks: Path, index: int, fatal: int, times: int) -> int:
    """Kill the own process the first `times` times that the fatal task is run."""
    if index == fatal:
        mark = marks / str(len(list(marks.iterdir())))
        if len(list(marks.iterdir())) < times:
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return index


def die(marks, times, index):
    return die_on(marks, index, 3, times)


def fail(error, marks, times, index):
    if index == 2 and len(list(marks.iterdir())) < times:
        (marks / str(len(list(marks.iterdir())))).touch()
        raise error("disk is tired")
    return index


def wait_for(path: Path) -> bool:
    waiting.wait_for(path.exists)
    return path.exists()


def ends_with_the_next(marks: Path, last: int, index: int) -> Future[tuple[int, bool]]:
    """The index, and whether the next one was begun before this one had ended."""
    (marks / str(index)).touch()
    future: Future[tuple[int, bool]] = Future()
    ending = threading.Thread(
        target=lambda: future.set_result((index, index == last or wait_for(marks / str(index + 1))))
    )
    ending.start()
    return future


def awaited_while_the_next_dies(marks: Path, index: int) -> int | Future[int]:
    """Task 0 ends when task 1 is done, which kills its process twice before."""
    if index == 1:
        die_on(marks, index, 1, 2)
        (marks / "done").touch()
        return index
    future: Future[int] = Future()
    threading.Thread(target=lambda: wait_for(marks / "done") and future.set_result(index)).start()
    return future


def stop_on(marks: Path, fatal: int, times: int, index: int) -> int:
    """Suspend the own process the first `times` times that the fatal task is run."""
    if index == fatal and len(list(marks.iterdir())) < times:
        (marks / str(len(list(marks.iterdir())))).touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    return index


def beats_until(end: Path, index: int) -> int:
    """Work until a file is there, with a sign of life every fiftieth of a second."""
    while not end.exists():
        time.sleep(0.02)
        beat()
    return index


def never_ends(index: int) -> Future[int]:
    return Future()


def environment(index):
    return {name: os.environ.get(name) for name in BUILD_ENVIRONMENT}


def variable(index):
    return os.environ.get("DATAPREP_TEST")


def test_every_task_is_done_once():
    assert sorted(run(square, 2, print, range(20))) == [i * i for i in range(20)]
    assert list(run(square, 2, print, [])) == []


class Counted:
    """A task that leaves a mark each time that it is unpickled."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def __call__(self, index: int) -> int:
        return index

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.__dict__ = state
        (self.marks / f"{os.getpid()}-{time.monotonic_ns()}").touch()


def test_the_function_is_sent_to_each_worker_once(tmp_path):
    assert sorted(run(Counted(tmp_path), 2, print, range(20))) == list(range(20))
    assert len(list(tmp_path.iterdir())) <= 2


def test_a_pool_runs_one_function_after_another():
    with Pool(2, print) as pool:
        assert sorted(pool.run(square, range(4))) == [0, 1, 4, 9]
        assert sorted(pool.run(abs, range(4))) == [0, 1, 2, 3]


def test_a_dead_worker_is_replaced_and_its_task_done(tmp_path):
    lines = []
    assert sorted(run(partial(die, tmp_path, 2), 2, lines.append, range(8))) == list(range(8))
    assert lines == ["shard 3: its worker died (signal 9); trying again"] * 2


def test_a_worker_begins_the_next_task_while_the_last_one_finishes(tmp_path):
    results = sorted(run(partial(ends_with_the_next, tmp_path, 3), 1, print, range(4)))
    assert results == [(index, True) for index in range(4)]


def test_a_task_that_is_finishing_is_not_blamed_for_the_death_of_its_worker(tmp_path):
    lines = []
    assert sorted(run(partial(awaited_while_the_next_dies, tmp_path), 1, lines.append, range(2))) == [0, 1]
    assert lines == ["shard 1: its worker died (signal 9); trying again"] * 2


def test_a_dead_server_is_replaced(tmp_path):
    """The server that forks the workers is a process, too; if killed, another one is started for the next worker."""
    with Pool(2, lambda line: None) as pool:
        server = forkserver._forkserver._forkserver_pid
        os.kill(server, signal.SIGKILL)
        os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
        assert sorted(pool.run(partial(die, tmp_path, 2), range(8))) == list(range(8))


def test_a_temporary_folder_with_too_long_a_path_is_an_error_of_one_line(tmp_path):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    program = (
        "from dataprep.errors import UsageError\nfrom dataprep.builder.pool import Pool\n"
        "try:\n    Pool(1, print).__enter__()\nexcept UsageError as error:\n    print(error)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(folder)}, capture_output=True, text=True
    )
    assert run.stdout == (
        f"workers cannot be started with {folder} as the folder for temporary files (AF_UNIX path too long); "
        "set TMPDIR to one that can be written to and has a short path\n"
    ), run.stderr


def test_workers_get_the_current_environment(monkeypatch):
    list(run(square, 1, print, [0]))  # the server is there, whatever ran before
    monkeypatch.setenv("DATAPREP_TEST", "now")
    assert list(run(variable, 1, print, [0])) == ["now"]


STALL_S = 1.0
"""Limit of tests in which a worker hangs."""


@pytest.fixture
def watch_only(monkeypatch):
    """Function that has only those workers watched that a test lets hang: a busy machine keeps others waiting, too."""

    def watch_only(is_hanging):
        watch = Pool._watch

        def watch_those(pool, worker, run):
            if is_hanging(worker):
                watch(pool, worker, run)
            else:
                worker.still.reset()

        monkeypatch.setattr(Pool, "_watch", watch_those)

    return watch_only


def is_suspended(worker):
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(worker.process.pid).status() == psutil.STATUS_STOPPED
    return False


def stalled(task, workers, log, indexes):
    with Pool(workers, log, stall_s=STALL_S) as pool:
        list(pool.run(square, range(workers)))  # workers are there before anything is waited for
        yield from pool.run(task, indexes)


def test_a_suspended_worker_is_named_then_killed_and_its_task_done(tmp_path, watch_only):
    watch_only(is_suspended)
    lines = []
    assert sorted(stalled(partial(stop_on, tmp_path, 3, 2), 2, lines.append, range(8))) == list(range(8))
    assert re.match(r"shard 3: no progress for \d+ s \(worker process \d+\); the worker is killed ", lines[0])
    assert lines[0].endswith("and the shard tried again after 1 s (`stall_minutes`)")
    again = r"shard 3: its worker hung, without progress for \d+ s, and was killed; trying again"
    assert sum(bool(re.fullmatch(again, line)) for line in lines) == 2


def test_a_task_that_keeps_hanging_is_set_aside_and_the_others_done(tmp_path, watch_only):
    watch_only(is_suspended)
    done = []
    results = stalled(partial(stop_on, tmp_path, 3, 99), 2, lambda line: None, range(8))
    with pytest.raises(BuildError, match=r"1 of the shards.*shard 3: hung its worker 3 times, last for \d+ s"):
        done.extend(results)
    assert sorted(done) == [0, 1, 2, 4, 5, 6, 7]


def test_a_task_may_take_longer_than_the_limit_while_it_makes_progress(tmp_path, monkeypatch):
    """Between two looks at it half of the limit passes, and a sign of life comes."""
    lines, now_s, watch = [], itertools.count(step=STALL_S / 2), Pool._watch

    def watch_a_sign(pool, worker, run):
        waiting.wait_for(lambda: worker.still._read() != worker.still._last or worker.pipe.poll())
        watch(pool, worker, run)
        if next(looks) == 8:
            (tmp_path / "end").touch()

    looks = itertools.count()
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    monkeypatch.setattr(Pool, "_watch", watch_a_sign)
    assert list(stalled(partial(beats_until, tmp_path / "end"), 1, lines.append, [0])) == [0]
    assert lines == []


def test_the_run_ends_when_every_worker_hangs_with_every_task(watch_only):
    watch_only(lambda worker: not worker.busy)  # it has begun all of them
    with pytest.raises(BuildError, match=r"3 workers hung one after the other.*last with shard 2; check whether"):
        list(stalled(never_ends, 1, lambda line: None, range(50)))


def test_a_task_that_keeps_killing_is_set_aside_and_the_others_done(tmp_path):
    done = []
    results = run(partial(die, tmp_path, 99), 2, lambda line: None, range(8))
    with pytest.raises(BuildError, match=r"1 of the shards.*shard 3: killed its worker 3 times, last by signal 9"):
        done.extend(results)
    assert sorted(done) == [0, 1, 2, 4, 5, 6, 7]


def test_a_transient_error_is_retried(tmp_path):
    assert sorted(run(partial(fail, StorageError, tmp_path, 2), 2, lambda line: None, range(4))) == [0, 1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_permanent_error_stops_the_run_at_once(tmp_path):
    with pytest.raises(ConflictError, match="disk is tired"):
        list(run(partial(fail, ConflictError, tmp_path, 99), 1, print, range(4)))
    assert len(list(tmp_path.iterdir())) == 1


def test_workers_get_the_allocator_settings_and_the_parent_keeps_its_own():
    before = dict(os.environ)
    assert list(run(environment, 1, print, [0])) == [BUILD_ENVIRONMENT]
    assert dict(os.environ) == before


def test_workers_die_with_a_killed_parent(tmp_path):
    (tmp_path / "tasks.py").write_text(
        "import os, sys, time, pathlib\n"
        "def task(index):\n"
        "    pathlib.Path(sys.argv[1], str(os.getpid())).touch()\n"
        "    time.sleep(600)\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(
        "from dataprep.builder.pool import Pool\n"
        "from tasks import task\n"
        "with Pool(2, print) as pool:\n"
        "    list(pool.run(task, range(2)))\n"
    )
    pids = tmp_path / "pids"
    pids.mkdir()
    parent = subprocess.Popen([sys.executable, script, pids])
    waiting.wait_for(lambda: len(list(pids.iterdir())) == 2)
    parent.kill()
    parent.wait()
    workers = [int(path.name) for path in pids.iterdir()]
    assert len(workers) == 2
    assert waiting.end_soon(workers)
