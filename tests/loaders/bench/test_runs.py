"""Runs of a loader, and the row that they make."""

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.bench.runs import Contender, Run, last_line, row_of, stage_shares
from loaders.bench.table import OURS

RATES = st.floats(0.1, 1e6)


def run(**changes):
    values = dict.fromkeys(("images_per_s", "cpu_ms_per_image", "first_batch_s", "largest_mb", "sum_mb"), 1.0)
    return Run(**{**values, "images": 10, "stages": {}, "version": "1", **changes})


# Rows


@given(st.lists(RATES, min_size=1, max_size=9), st.floats(1, 1e6))
def test_a_row_has_the_median_and_the_spread(rates, bytes_per_image):
    contender = Contender(loader=OURS, layout="tfrecord", root="x")
    row = row_of(contender, [run(images_per_s=rate) for rate in rates], bytes_per_image)
    assert row.rounds_images_per_s == tuple(rates)
    assert (row.slowest_images_per_s, row.fastest_images_per_s) == (min(rates), max(rates))
    below = sum(rate <= row.images_per_s for rate in rates)
    above = sum(rate >= row.images_per_s for rate in rates)
    assert min(below, above) * 2 >= len(rates)
    assert row.mb_per_s == pytest.approx(row.images_per_s * bytes_per_image / 1e6)


@given(st.lists(st.tuples(RATES, RATES, RATES), min_size=1, max_size=4))
def test_stage_shares_add_up(times):
    runs = [
        run(stages={"decode": {"items": 5, "busy_s": busy_s, "get_wait_s": get_s, "put_wait_s": put_s}})
        for busy_s, get_s, put_s in times
    ]
    (share,) = stage_shares(runs)
    assert share.busy_share + share.get_wait_share + share.put_wait_share == pytest.approx(1)
    assert share.busy_ms_per_image == pytest.approx(1e3 * sum(busy_s for busy_s, _, _ in times) / (10 * len(times)))


def test_a_stage_that_did_nothing_has_no_shares():
    (share,) = stage_shares([run(stages={"fetch": dict.fromkeys(("items", "busy_s", "get_wait_s", "put_wait_s"), 0)})])
    assert asdict(share) == {
        "name": "fetch",
        "busy_share": 0,
        "get_wait_share": 0,
        "put_wait_share": 0,
        "busy_ms_per_image": 0,
    }


def test_the_last_line_of_a_failed_run_is_its_reason():
    assert last_line("Traceback\n  File x\nOSError: broken\n\n") == "OSError: broken"
    assert last_line("Timeout (0:02:00)!\nThread 1\n  File y\n") == "Timeout (0:02:00)!"
    assert last_line("") == "no output"


def test_threads_that_decode_wait_for_the_bytes_of_fetch():
    nothing = {"items": 8, "busy_s": 0.0, "get_wait_s": 0.0, "put_wait_s": 0.0}
    stages = {"fetch": nothing | {"get_wait_s": 3.0}, "decode": nothing | {"busy_s": 1.0}}
    _, decode = stage_shares([run(stages=stages)])
    assert (decode.name, decode.busy_share, decode.get_wait_share) == ("decode", 0.25, 0.75)
