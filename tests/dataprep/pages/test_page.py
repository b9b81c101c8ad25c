"""Pages: what is needed to render one, that every value is escaped, and that a file that cannot be written is named."""

import sys

import pytest

from dataprep.errors import UsageError
from dataprep.pages.charts import Bar, area_chart, bar_chart, histogram_bins
from dataprep.pages.page import has_report_packages, render_page, require_report_packages, write_page
from tests.support.pages import HOSTILE, Page


def test_a_missing_package_is_named_with_the_way_to_install_it(monkeypatch):
    assert has_report_packages()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert not has_report_packages()
    with pytest.raises(UsageError, match=r"--html needs jinja2.*pip install 'tpu-dataprep\[report\]'"):
        require_report_packages()


def test_a_page_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"absent/page\.html: cannot be written \(No such file or directory\)"):
        write_page("<p>", tmp_path / "absent/page.html")


@pytest.fixture
def charts(tmp_path, monkeypatch):
    """A page with a chart of every kind, from a template in a package of its own."""
    package = tmp_path / "hostile_charts"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "data/all.html.j2").write_text(
        '{% extends "page.html.j2" %}{% from "charts.html.j2" import area, bars, histogram %}'
        "{% block main %}{{ bars(bar) }}{{ histogram(title, bins) }}{{ area(layers, title, title) }}{% endblock %}"
    )
    monkeypatch.syspath_prepend(tmp_path)
    bar = Bar(name=HOSTILE, value=1, smallest=0.5, largest=1, tone="accent", text=HOSTILE, detail=HOSTILE)
    return render_page(
        "all.html.j2",
        "hostile_charts",
        bar=bar_chart(HOSTILE, [bar], target=2.0),
        title=HOSTILE,
        bins=histogram_bins([HOSTILE], [3]),
        layers=area_chart(HOSTILE, [0, 1], [[1]], 2),
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
