"""Plots without text: as long and as high as their values, with ticks where these stand."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.plots import Bar, bare_bars, bare_layers


def right_ends(svg):
    """Of the bars of a plot."""
    return [max(map(float, re.findall(r"[ML] (\S+) ", path))) for path in re.findall(r'd="([^"]*z)\s*"', svg)]


def test_bars_are_as_long_as_their_values():
    svg = bare_bars("x", [Bar(value, value, value, "rest") for value in (300.0, 150.0, 75.0)])
    first, second, third = right_ends(svg)
    assert second / first == pytest.approx(0.5)
    assert third / first == pytest.approx(0.25)
    assert 'preserveAspectRatio="none"' in svg
    cut, target = right_ends(bare_bars("x", [Bar(each, each, each, "warn") for each in (900.0, 100.0)], target=100.0))
    assert target / cut == pytest.approx(0.5)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.floats(0.01, 1000))
def test_ticks_stand_where_their_values_are(spans, highest):
    edges = [0.0]
    for span in spans:
        edges.append(edges[-1] + span)
    layers = bare_layers("x", edges, [spans, spans], highest)
    for ticks, most in ((layers.times, edges[-1]), (layers.heights, highest)):
        assert all(tick.place == pytest.approx(tick.value / most, abs=1e-9) for tick in ticks)
        assert all(0 <= before.place < after.place <= 1 for before, after in pairwise(ticks))
        assert 2 <= len(ticks) <= 8
