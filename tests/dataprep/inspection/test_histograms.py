import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.inspection.histograms import (
    ASPECT_EDGES,
    ASPECT_LABELS,
    BYTE_EDGES,
    MAX_SIDE,
    BinCounts,
    Histogram,
    SideCounts,
    Spread,
    byte_labels,
)

examples = settings(deadline=None, derandomize=True, max_examples=200)


def counted(sides):
    counts = SideCounts()
    for start in range(0, len(sides), 7):
        counts.add(np.asarray(sides[start : start + 7], np.int64))
    return counts


def bounds(label):
    """The smallest and largest side that a bin's label names."""
    numbers = [int(word.replace(",", "")) for word in label.split() if word[0].isdigit()]
    if label.startswith("under"):
        return 0, numbers[0] - 1
    if label.endswith("more"):
        return numbers[0], MAX_SIDE
    return numbers[0], numbers[-1]


@examples
@given(st.lists(st.integers(1, MAX_SIDE), min_size=1, max_size=60) | st.lists(st.integers(300, 520), min_size=1))
def test_every_side_is_in_the_bin_that_names_it(sides):
    histogram = counted(sides).histogram()
    assert len(histogram.labels) <= 14
    expected = [sum(low <= side <= high for side in sides) for low, high in map(bounds, histogram.labels)]
    assert list(histogram.counts) == expected
    assert sum(expected) == len(sides)


@examples
@given(st.lists(st.integers(1, MAX_SIDE), min_size=1, max_size=60))
def test_smallest_median_and_largest_are_exact(sides):
    ranked = sorted(sides)
    assert counted(sides).spread() == Spread(ranked[0], ranked[(len(ranked) - 1) // 2], ranked[-1])


def test_outliers_share_a_bin():
    histogram = counted([500] * 500 + [375] * 490 + [20] * 4 + [6_000] * 6).histogram()
    assert histogram.labels[0] == "under 360"
    assert histogram.counts[0] == 4
    assert (histogram.labels[-1], histogram.counts[-1]) == ("520 and more", 6)


def test_a_histogram_of_nothing_is_empty():
    assert SideCounts().spread() is None
    assert SideCounts().histogram() == Histogram((), ())
    assert BinCounts(ASPECT_EDGES, ASPECT_LABELS).histogram(trim=False) == Histogram((), ())


@pytest.mark.parametrize(
    ("width", "height", "label"),
    [
        (500, 375, "about 4:3"),
        (375, 500, "about 3:4"),
        (1920, 1080, "about 16:9"),
        (1080, 1920, "about 9:16"),
        (640, 427, "about 3:2"),
        (427, 640, "about 2:3"),
        (299, 300, "about square"),
        (2000, 1000, "2:1 and wider"),
        (100, 201, "narrower than 1:2"),
    ],
)
def test_aspects_of_cameras_have_a_bin_each(width, height, label):
    counts = BinCounts(ASPECT_EDGES, ASPECT_LABELS)
    counts.add(np.asarray([width / height]))
    histogram = counts.histogram(trim=False)
    assert histogram.labels == ASPECT_LABELS
    assert dict(zip(histogram.labels, histogram.counts, strict=True))[label] == 1


def test_empty_bins_at_the_end_are_trimmed():
    counts = BinCounts(BYTE_EDGES, byte_labels())
    counts.add(np.asarray([999, 4_999, 5_000, 2_000_000], np.float64))
    histogram = counts.histogram(trim=True)
    assert histogram.labels[:4] == ("under 1 kB", "1 kB to 2 kB", "2 kB to 5 kB", "5 kB to 10 kB")
    assert histogram.labels[-1] == "2 MB to 5 MB"
    assert histogram.counts == (1, 0, 1, 1, *[0] * 7, 1)
