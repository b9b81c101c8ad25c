"""How many images are requested ahead, by properties and by hand."""

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from loaders.diagnosis.ahead import (
    BEYOND,
    BUSY_INTERPRETER,
    MORE_AHEAD,
    MOST_READS,
    ROOM,
    batches_needed,
    rate_of_processes,
    reads_needed,
)

USUAL = 128
counts = st.integers(1, 4096)
speeds = st.floats(0.1, 1e6)


def test_sixteen_slow_requests_become_as_many_as_are_usual_and_those_of_a_farther_bucket_more():
    """An image arrives after 32 ms, and decoding, the next limit, makes 1,650 a second: 53 requests do not reach it."""
    assert reads_needed(16, 16 / 0.032, 1650, USUAL) == USUAL
    assert reads_needed(16, 16 / 0.1, 1650, USUAL) == math.ceil(BEYOND * 165)
    assert batches_needed(USUAL, 32) == 8


def test_a_device_without_a_limit_asks_for_no_more_than_the_most():
    assert reads_needed(16, 500, math.inf, USUAL) == MOST_READS
    assert reads_needed(MOST_READS, 500, math.inf, USUAL) == MORE_AHEAD * MOST_READS


@given(in_flight=counts, fetch=speeds, beyond=speeds, usual=counts)
def test_fetching_gets_beyond_the_next_limit_in_one_step_or_has_the_most_requests(in_flight, fetch, beyond, usual):
    reads = reads_needed(in_flight, fetch, beyond, usual)
    assert reads >= max(usual, MORE_AHEAD * in_flight)
    assert reads >= MOST_READS or fetch / in_flight * reads >= BEYOND * beyond * (1 - 1e-9)
    assert reads <= max(usual, MORE_AHEAD * in_flight, MOST_READS)


@given(in_flight=counts, fetch=speeds, beyond=speeds, factor=st.floats(1, 100))
def test_a_higher_next_limit_never_asks_for_fewer_requests(in_flight, fetch, beyond, factor):
    assert reads_needed(in_flight, fetch, factor * beyond, USUAL) >= reads_needed(in_flight, fetch, beyond, USUAL)


@given(reads=counts, rows=counts)
def test_while_half_of_the_images_ahead_have_arrived_all_requests_can_be_in_flight(reads, rows):
    batches = batches_needed(reads, rows)
    assert batches * rows >= 2 * reads
    assert (batches - 1) * rows < 2 * reads, "and no batch more"


@given(fetch=speeds, own_cores=st.floats(0, 16), processes=st.integers(0, 64))
def test_processes_fetch_more_only_where_one_interpreter_is_busy(fetch, own_cores, processes):
    found = rate_of_processes(fetch, own_cores, processes)
    assert found == (fetch * max(1, processes) if own_cores >= BUSY_INTERPRETER else fetch)


def test_the_figures_of_the_document_are_those_of_the_program():
    text = (Path(__file__).parents[3] / "docs/bottleneck.md").read_text()
    section = text.split("### Requests in flight")[1].split("\n### ")[0].replace("\n", " ")
    words = {2: "twice", 4: "four times"}
    assert f"bring fetching alone to {words[BEYOND]} the rate" in section
    assert f"at least {words[MORE_AHEAD]} as many as now, and no fewer than the {USUAL} that" in section
    assert f"beyond {MOST_READS}, no more than {words[MORE_AHEAD]} as many as now" in section
    assert f"makes room for {words[ROOM]} as many images" in section
    assert f"keeps the interpreter of one process busy ({BUSY_INTERPRETER} cores)" in text
