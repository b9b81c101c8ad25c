"""Workers that die, hang or fail, and which shard is built next, again or never."""

import errno
import heapq
import itertools
import os
import pickle
import random
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
from hypothesis import given
from hypothesis import strategies as st

from dataprep.builder.pool import (
    MAX_ATTEMPTS,
    MAX_DEATHS,
    MAX_LOSSES,
    Dispatch,
    Failure,
    Loss,
    Pool,
    backoff_s,
    failure_of,
    shards_set_aside,
)
from dataprep.errors import AccessError, BuildError, ConflictError, FullError, ImageError, StorageError, UsageError
from dataprep.host import heartbeat
from dataprep.host.heartbeat import beat
from dataprep.host.processes import BUILD_ENVIRONMENT
from tests.support import waiting


def run(task, workers, log, indexes):
    with Pool(workers, log) as pool:
        yield from pool.run(task, indexes)


def square(index):
    return index * index


def marked(marks: Path, times: int) -> bool:
    """Leave a mark, unless there are so many of them."""
    count = len(list(marks.iterdir()))
    if count < times:
        (marks / str(count)).touch()
    return count < times


def die_on(marks: Path, index: int, fatal: int, times: int) -> int:
    """Kill the own process the first `times` times that the fatal task is run."""
    if index == fatal and marked(marks, times):
        os.kill(os.getpid(), signal.SIGKILL)
    return index


def die(marks, times, index):
    return die_on(marks, index, 3, times)


def fail(error, marks, times, index):
    if index == 2 and marked(marks, times):
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
    if index == fatal and marked(marks, times):
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


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (StorageError("the disk is tired"), True),
        (OSError("the disk is tired"), True),
        (FullError("no space"), False),
        (OSError(errno.ENOSPC, "no space"), False),
        (OSError(errno.EDQUOT, "no quota"), False),
        (AccessError("no permission"), False),
        (ConflictError("another writer"), False),
        (ImageError("a bad image"), False),
        (UsageError("other codecs"), False),
        (KeyError("key"), False),
    ],
)
def test_errors_of_storage_and_operating_system_are_retryable(error, may_pass):
    with pytest.raises(type(error)) as raised:
        raise error
    assert failure_of(3, raised.value).may_pass is may_pass


def test_an_expected_error_is_passed_on_as_it_is():
    error = UsageError("other codecs")
    assert failure_of(3, error).error is error


def test_an_unexpected_error_is_named_with_its_location():
    try:
        {}["key"]
    except KeyError as error:
        failure = pickle.loads(pickle.dumps(failure_of(3, error)))
    assert str(failure.error).startswith("shard 3: unexpected KeyError: 'key' (test_an_unexpected_error_is_named")


def test_the_time_before_the_next_attempt_doubles():
    assert [backoff_s(attempts) for attempts in (1, 2, 3)] == [0.5, 1.0, 2.0]


def test_shards_that_were_set_aside_are_named_in_their_order():
    assert str(shards_set_aside({7: "hung", 3: "killed its worker 3 times"})) == (
        "2 of the shards could not be built: shard 3: killed its worker 3 times; shard 7: hung. "
        "All others are done; run the same command again to try these"
    )


WINDOW = 2
"""Number of shards in flight in a process."""
DIED = Loss("node", "died (signal 9)", "killed its worker {} times, last: signal 9")
HUNG = Loss("node", "hung", "hung its worker {} times", hung=True)


def lost_with(node):
    return Loss(node, DIED.how, DIED.too_often)


def test_shards_are_handed_out_in_their_order_and_none_twice():
    dispatch = Dispatch([5, 1, 3, 1])
    assert [dispatch.next_shard(0) for _ in range(4)] == [5, 1, 3, None]
    assert dispatch.left == 3
    dispatch.done(3)
    assert dispatch.left == 2
    assert dispatch.delay_s(0) is None


def test_a_shard_that_lost_its_worker_comes_after_those_that_only_shared_it():
    dispatch = Dispatch(range(3))
    assert [dispatch.next_shard(0) for _ in range(3)] == [0, 1, 2]
    dispatch.give_back([1, 2], 5)
    dispatch.lost(0, HUNG, {"node"}, 5)
    assert [dispatch.next_shard(5) for _ in range(3)] == [1, 2, 0]


def test_what_is_left_no_more_is_never_handed_out():
    dispatch = Dispatch(range(6), is_left=lambda index: index % 2 == 0)
    assert [dispatch.next_shard(0) for _ in range(4)] == [0, 2, 4, None]
    assert dispatch.left == 3


def test_a_retryable_failure_waits_longer_each_time_and_then_ends_the_build():
    dispatch = Dispatch([0])
    failure = Failure(StorageError("503"), may_pass=True)
    now_s = 0.0
    for attempt in range(1, MAX_ATTEMPTS):
        assert dispatch.next_shard(now_s) == 0
        line = dispatch.failed(0, failure, now_s)
        assert line == f"shard 0: 503; trying again in {backoff_s(attempt):g} s"
        assert dispatch.next_shard(now_s) is None
        assert dispatch.delay_s(now_s) == backoff_s(attempt)
        now_s += backoff_s(attempt)
    dispatch.next_shard(now_s)
    with pytest.raises(StorageError, match="503"):
        dispatch.failed(0, failure, now_s)


def test_an_error_of_the_user_ends_the_build_at_once():
    with pytest.raises(UsageError, match="other codecs"):
        Dispatch([0]).failed(0, Failure(UsageError("other codecs"), may_pass=False), 0)


def test_after_a_full_disk_no_shard_is_begun_and_those_in_flight_are_waited_for():
    dispatch = Dispatch(range(9))
    assert [dispatch.next_shard(0) for _ in range(5)] == [0, 1, 2, 3, 4]
    full = Failure(FullError("no space in /a"), may_pass=False)
    line = dispatch.failed(2, full, 0)
    assert line == "no space is left: no other shard is begun; 4 shards under way may still be finished"
    assert dispatch.failed(0, Failure(FullError("no space in /b"), may_pass=False), 0) == ""
    assert dispatch.failed(1, Failure(StorageError("503"), may_pass=True), 0) == ""
    dispatch.give_back([3], 0)
    assert dispatch.next_shard(100) is None
    assert dispatch.left == 1
    dispatch.done(4)
    assert dispatch.left == 0
    with pytest.raises(FullError, match="no space in /a"):
        dispatch.end()


def test_a_full_disk_is_one_line_where_no_other_shard_is_in_flight():
    dispatch = Dispatch(range(9))
    assert dispatch.next_shard(0) == 0
    assert dispatch.failed(0, Failure(FullError("no space"), may_pass=False), 0) == ""
    assert dispatch.left == 0


def test_a_shard_that_kills_its_workers_is_set_aside_with_the_words_of_the_local_pool():
    dispatch = Dispatch([4, 7])
    for _ in range(MAX_DEATHS - 1):
        assert dispatch.lost(4, DIED, {"node"}, 0) == "shard 4: its worker died (signal 9); trying again"
    line = dispatch.lost(4, DIED, {"node"}, 0)
    assert line == "shard 4: killed its worker 3 times, last: signal 9; set aside"
    assert dispatch.set_aside == {4: "killed its worker 3 times, last: signal 9"}


def test_a_worker_that_was_lost_with_its_node_is_not_the_fault_of_its_shard():
    dispatch = Dispatch([0])
    alive = set()
    for number in range(MAX_LOSSES - 1):
        assert dispatch.next_shard(0) == 0
        assert "trying again" in dispatch.lost(0, lost_with(f"node {number}"), alive, 0)
    assert dispatch.next_shard(0) == 0
    assert "lost its worker 20 times" in dispatch.lost(0, lost_with("node"), alive, 0), "but not for ever"
    assert dispatch.left == 0


def test_a_loss_does_not_count_once_its_node_is_found_dead():
    dispatch = Dispatch([0])
    for node in ("a", "b"):
        dispatch.lost(0, lost_with(node), {"a", "b", "c"}, 0)
    assert "trying again" in dispatch.lost(0, lost_with("c"), {"c"}, 0)
    assert not dispatch.set_aside


def test_many_hangs_in_a_row_are_no_single_shards_fault():
    dispatch = Dispatch(range(100))
    for index in range(2 * MAX_DEATHS):
        dispatch.refuse_hangs(index, 2, 60)
        dispatch.lost(index, HUNG, {"node"}, 0)
    with pytest.raises(BuildError, match=r"6 workers hung one after the other, each .* 60 s .* last with shard 5;"):
        dispatch.refuse_hangs(5, 2, 60)
    dispatch.done(50)
    dispatch.refuse_hangs(5, 2, 60)


@given(
    shards=st.integers(1, 60),
    processes=st.integers(1, 8),
    poisonous=st.sets(st.integers(0, 59), max_size=3),
    seed=st.integers(0, 2**32),
)
def test_every_shard_is_done_or_set_aside_whatever_is_lost(shards, processes, poisonous, seed):
    """Workers die at random with their nodes; poisonous shards kill theirs. A loss costs a process its window."""
    chance = random.Random(seed)
    dispatch, done, redone, losses = Dispatch(range(shards)), [], 0, 0
    workers = [[] for _ in range(processes)]
    now_s, steps = 0.0, 0
    while dispatch.left:
        steps += 1
        now_s += 1
        for worker in workers:
            if len(worker) < WINDOW and (index := dispatch.next_shard(now_s)) is not None:
                worker.append(index)
        worker = chance.choice([worker for worker in workers if worker])
        if worker[-1] in poisonous or (chance.random() < 0.2 and losses < MAX_LOSSES // 2):
            *others, blamed = worker
            node = "steady" if blamed in poisonous else f"lost {steps}"
            losses += blamed not in poisonous
            redone += len(worker)
            assert len(worker) <= WINDOW
            dispatch.give_back(others, now_s)
            dispatch.lost(blamed, lost_with(node), {"steady"}, now_s)
            worker.clear()
        else:
            done.append(worker.pop(0))
            dispatch.done(done[-1])
    assert sorted(done) == sorted(set(range(shards)) - dispatch.set_aside.keys())
    assert dispatch.set_aside.keys() <= poisonous
    assert all(reason.startswith("killed its worker 3 times") for reason in dispatch.set_aside.values())
    assert redone <= WINDOW * (losses + MAX_DEATHS * len(poisonous))


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=80), st.integers(1, 8))
def test_the_last_process_ends_at_most_one_shard_after_the_first_that_finds_none(durations_s, processes):
    dispatch = Dispatch(range(len(durations_s)))
    free, ends_s = [(0.0, number) for number in range(processes)], []
    heapq.heapify(free)
    while free:
        now_s, number = heapq.heappop(free)
        index = dispatch.next_shard(now_s)
        if index is None:
            ends_s.append(now_s)
            continue
        dispatch.done(index)
        heapq.heappush(free, (now_s + durations_s[index], number))
    assert max(ends_s) - min(ends_s) <= max(durations_s) + 1e-6
