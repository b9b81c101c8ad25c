"""Pages: what is needed to render one, that every value is escaped, and that a file that cannot be written is named."""

import re
import sys
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep import pages
from dataprep.errors import UsageError
from tests.support.pages import HOSTILE, Page


def test_a_missing_package_is_named_with_the_way_to_install_it(monkeypatch):
    assert pages.has_report_packages()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert not pages.has_report_packages()
    with pytest.raises(UsageError, match=r"`html` needs jinja2.*pip install 'tpu-dataprep\[report\]'"):
        pages.require_report_packages()


def test_a_page_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"absent/page\.html: cannot be written \(No such file or directory\)"):
        pages.write_page("<p>", tmp_path / "absent/page.html")


@pytest.fixture
def charts(tmp_path, monkeypatch):
    """A page with a chart of every kind, from a template in a package of its own."""
    package = tmp_path / f"hostile_{tmp_path.name}"  # imported once, and gone after its test
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "data/all.html.j2").write_text(
        '{% extends "page.html.j2" %}{% from "charts.html.j2" import area, bars, histogram %}'
        "{% block main %}{{ bars(bar) }}{{ histogram(title, bins) }}{{ area(layers, title, title) }}{% endblock %}"
    )
    monkeypatch.syspath_prepend(tmp_path)
    bar = pages.Bar(name=HOSTILE, value=1, smallest=0.5, largest=1, tone="accent", text=HOSTILE, detail=HOSTILE)
    return pages.render_page(
        "all.html.j2",
        package.name,
        bar=pages.bar_chart(HOSTILE, [bar], target=2.0),
        title=HOSTILE,
        bins=pages.histogram_bins([HOSTILE], [3]),
        layers=pages.area_chart(HOSTILE, [0, 1], [[1]], 2),
    )


def test_charts_escape_every_text(charts):
    page = Page(charts)
    assert {"script", "img"}.isdisjoint(page.tags)
    assert [name for name, _ in page.attributes if name.startswith("on")] == []
    assert sum(HOSTILE in text for text in page.texts) == 6
    assert [value for name, value in page.attributes if name == "aria-label"] == [HOSTILE] * 3


def test_charts_draw_lengths_ranges_targets_and_layers(charts):
    page = Page(charts)
    styles = [value for name, value in page.attributes if name == "style"]
    assert styles[:4] == ["width: 50.0%", "left: 25.0%; width: 25.0%", "left: 100.0%", "width: 100.0%"]
    assert ("d", "M0 1000V500H1000V1000H0Z") in page.attributes


def bar(value, smallest=None, largest=None):
    lowest, highest = value if smallest is None else smallest, value if largest is None else largest
    return pages.Bar(name="x", value=value, smallest=lowest, largest=highest, tone="rest", text="")


def points(path):
    """Corners of an area in shares, from the left and from the bottom."""
    at, found = {"H": 0.0, "V": 0.0}, []
    for letter, numbers in re.findall(r"([MHV])([^MHVZ]*)", path):
        values = [float(number) / pages.SVG_UNITS for number in numbers.split()]
        at.update({"H": values[0], "V": values[1]} if letter == "M" else {letter: values[0]})
        found.append((at["H"], 1 - at["V"]))
    return found


def test_bars_are_as_long_as_their_values():
    chart = pages.bar_chart("x", [bar(300.0), bar(150.0), bar(75.0)])
    assert [drawn.length for drawn in chart.bars] == pytest.approx([1, 0.5, 0.25])
    assert chart.target is None


def test_bars_beyond_the_target_keep_their_proportions():
    chart = pages.bar_chart("x", [bar(900.0), bar(float("inf")), bar(300.0)], target=90.0)
    assert [drawn.length for drawn in chart.bars] == pytest.approx([1, 1, 1 / 3])
    assert chart.target == pytest.approx(0.1)
    assert pages.bar_chart("x", [bar(50.0)], target=100.0).target == 1


def test_a_bars_range_goes_from_the_smallest_to_the_largest_measurement():
    (drawn, other) = pages.bar_chart("x", [bar(2.0, 1.0, 4.0), bar(3.0)]).bars
    assert (drawn.start, drawn.length, drawn.end) == pytest.approx((0.25, 0.5, 1))
    assert other.start == other.end


def test_no_bars_and_bars_of_nothing_make_a_chart():
    assert pages.bar_chart("x", []).bars == ()
    assert pages.bar_chart("x", [bar(0.0)]).bars[0].length == 0


def test_bins_have_their_count_and_share():
    bins = pages.histogram_bins(["a", "b", "c", "d"], [1990, 995, 15, 0])
    assert [each.text for each in bins] == ["1,990 · 66 %", "995 · 33 %", "15 · 0.5 %", ""]
    assert [each.length for each in bins] == pytest.approx([1, 0.5, 15 / 1990, 0])
    assert pages.histogram_bins([], []) == ()


def test_layers_are_as_high_as_their_sums():
    chart = pages.area_chart("x", [0, 1, 4], [[1, 2], [3, 1]], 8)
    lower, upper = map(points, chart.paths)
    assert lower == [(0, 0), (0, 0.125), (0.25, 0.125), (0.25, 0.25), (1, 0.25), (1, 0), (0, 0)]
    assert upper == [
        (0, 0.125), (0, 0.5), (0.25, 0.5), (0.25, 0.375), (1, 0.375), (1, 0.25), (0.25, 0.25), (0.25, 0.125), (0, 0.125)
    ]  # fmt: skip


def test_neighbours_of_the_same_height_are_one_span():
    assert pages.area_chart("x", range(1001), [[5] * 1000], 10).paths == ("M0 1000V500H1000V1000H0Z",)


def test_layers_are_cut_at_the_top():
    (path,) = pages.area_chart("x", [0, 1], [[9]], 3).paths
    assert max(height for _, height in points(path)) == 1


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.floats(0.01, 1000))
def test_ticks_stand_where_their_values_are(spans, highest):
    edges = [0.0]
    for span in spans:
        edges.append(edges[-1] + span)
    chart = pages.area_chart("x", edges, [spans, spans], highest)
    for ticks, most in ((chart.across, edges[-1]), (chart.upward, highest)):
        assert all(tick.place == pytest.approx(tick.value / most, abs=1e-9) for tick in ticks)
        assert all(0 <= before.place < after.place <= 1 for before, after in pairwise(ticks))
        assert 2 <= len(ticks) <= pages.MOST_TICKS


@given(st.floats(0, 1e6), st.floats(0, 1e6))
@example(0.0, 5e-324)
@example(3.0, 0.0)
def test_ticks_lie_inside_any_range(low, span):
    ticks = pages.round_ticks(low, low + span)
    assert len(ticks) <= pages.MOST_TICKS
    assert all(-1e-6 <= tick.place <= 1 + 1e-6 for tick in ticks)


@pytest.mark.parametrize(
    ("high", "values"), [(1, [0, 1]), (2, [0, 1, 2]), (7, [0, 2, 4, 6]), (1000, range(0, 1001, 200))]
)
def test_ticks_of_counts_are_whole_numbers(high, values):
    assert [tick.value for tick in pages.round_ticks(0, high, whole=True)] == list(values)
