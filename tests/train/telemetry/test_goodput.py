"""Time by cause: every moment counts once, over attempts as well; the events say the same."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.telemetry.goodput import CAUSES, Goodput, GoodputEvents, earlier_attempts, goodput_text, process_start_s

SPENT = st.lists(st.tuples(st.sampled_from(sorted(CAUSES)), st.integers(0, 1000)), max_size=12)


class Clock:
    """Time that a test sets."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


@given(st.lists(st.tuples(SPENT, st.integers(0, 1000)), min_size=1, max_size=4))
def test_the_time_of_all_causes_is_the_time_since_the_first_start(tmp_path_factory, attempts):
    path = tmp_path_factory.mktemp("run") / "goodput.jsonl"
    clock, expected = Clock(100.0), dict.fromkeys(CAUSES, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.telemetry.goodput.time.time", clock)
        for step, (spent, gap_s) in enumerate(attempts):
            goodput = Goodput(clock.now_s, clock)
            events = GoodputEvents(path=path, job="runs/mae")
            events.begin(goodput, step)
            for cause, elapsed_s in spent:
                with goodput.during(cause):
                    clock.now_s += elapsed_s
                expected[cause] += elapsed_s
            events.log(goodput, step + 1)
            assert goodput.seconds() == pytest.approx(expected)
            assert sum(expected.values()) == clock.now_s - 100
            with path.open("a") as file:
                file.write('{"job_name": "ru')  # cut by a kill
            clock.now_s += gap_s
            expected["idle"] += gap_s


def event(updates: int, at_s: float, **seconds: float) -> str:
    every = {**dict.fromkeys(CAUSES, 0.0), **seconds}
    return json.dumps(
        {"job_name": "a", "step_count": updates // 10, "step_start_time": at_s, "updates": updates, "seconds": every}
    )


def test_updates_beyond_the_checkpoint_are_repeated():
    lines = [
        "no JSON",
        '{"job_start_time": 1.0}',
        event(10, 50, compute=40, input=1),
        event(20, 90, compute=70, input=9),
    ]
    found = earlier_attempts([*lines, '{"updates": 30}'], 15)
    assert (found.until_s, found.count) == (90, 1)
    assert (found.seconds["compute"], found.seconds["repeated"]) == (40, 30)
    assert found.seconds["input"] == 9
    assert earlier_attempts(lines, 20).seconds["repeated"] == 0
    assert earlier_attempts(["no JSON"], 0) is None


def test_a_clock_that_is_behind_the_last_attempt_shortens_the_start():
    goodput = Goodput(80.0, Clock(100.0))
    goodput.follow(earlier_attempts([event(1, 90, compute=90)], 1))
    assert goodput.seconds() == {**dict.fromkeys(CAUSES, 0.0), "compute": 90, "start": 10}


def test_events_lie_between_the_steps_that_they_belong_to(tmp_path):
    clock = Clock(10.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.telemetry.goodput.time.time", clock)
        goodput = Goodput(4.0, clock)
        events = GoodputEvents(path=tmp_path / "goodput.jsonl", job="runs/mae")
        events.begin(goodput, 0)
        for cause, now_s in (("compute", 10), ("input", 13), ("checkpoint", 15), ("compute", 20)):
            clock.now_s = now_s
            goodput.enter(cause)
        clock.now_s = 30
        events.log(goodput, 7)
        with goodput.during("checkpoint"):
            clock.now_s = 34
        events.end(goodput)
    found = [json.loads(line) for line in (tmp_path / "goodput.jsonl").read_text().splitlines()]
    assert {each.pop("job_name") for each in found} == {"runs/mae"}
    start, preparing, prepared, first, *spans, second, saving, saved, last, end = found
    assert (start, preparing) == ({"job_start_time": 4.0}, {"training_prep_start_time": 4.0})
    assert (prepared, end) == ({"training_prep_end_time": 10}, {"job_end_time": 34})
    assert [(each["step_count"], each["step_start_time"], each["updates"]) for each in (first, second, last)] == [
        (0, 10, 0),
        (1, 30, 7),
        (2, 34, 7),
    ]
    assert (saving["custom_badput_event_start_time"], saved["custom_badput_event_end_time"]) == (30, 34)
    named = [each["custom_badput_event_type"] for each in spans]
    assert named == ["input", "input", "checkpoint", "checkpoint"]
    times = [next(value for name, value in each.items() if name.endswith("_time")) for each in spans]
    assert times == [10, 12, 12, 17]


def test_causes_that_take_much_get_advice():
    text = goodput_text({**dict.fromkeys(CAUSES, 0.0), "compute": 90.0, "input": 6.0, "checkpoint": 4.0})
    assert text == (
        f"of 100 s since the first start: compute 90.0%, input 6.0%, checkpoint 4.0%\n  input (6 s): {CAUSES['input']}"
    )


def test_a_process_knows_when_it_started():
    import psutil

    assert process_start_s() == pytest.approx(psutil.Process().create_time(), abs=5)
