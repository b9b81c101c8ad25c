"""Which shard is built next, again or never: properties of the decisions, on a simulated cluster without a clock."""

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.builder.pool import MAX_ATTEMPTS, MAX_DEATHS, MAX_LOSSES, Dispatch, Failure, Loss, backoff_s
from dataprep.errors import BuildError, FullError, StorageError, UsageError

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
