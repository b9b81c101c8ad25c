"""The report: what it says, that it escapes, and that it fetches nothing."""

import io
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from loaders.diagnosis.findings import StepTimes
from loaders.report.page import diagnosis_page
from loaders.report.terminal import diagnosis_text
from tests.support.findings import diagnosis
from tests.support.pages import HOSTILE, OUTSIDE, Page


def printed(found, width=80):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(diagnosis_text(found))
    return console.file.getvalue()


@pytest.fixture(scope="module")
def full():
    return diagnosis_page(diagnosis())


def test_page_shows_every_part_of_the_diagnosis(full):
    page, found = Page(full), diagnosis()
    for text in (
        found.verdict,
        "43 % of the accelerator used; 90 % is what MLPerf asks for",
        "the limit prepare decodes, crops, resizes 812 images/s alone 97 % busy at the observed rate 3.62 ms CPU",
        "all together, observed 790",
        "120 steps, median 327.1 ms",
        "wait 55 %",
        "Change Gain Predicted Tried Applied Then limited by Needs",
        "workers Decode with 8 threads (--threads 8) × 2.27 1,830 1,790 1,738 compute another run",
        "--resize 256 × 1.57 1,240 – – prepare the dataset built again",
        "With the best division of the cores: 1,840 images/s (fetch 0.6, prepare 6.7,",
        "codecs pillow 12.3.0, simplejpeg 1.9.0",
        "measured 2026-11-01T12:00:00Z",
    ):
        assert text in page.text
    assert [text for text in page.texts if "images/s alone" in text].__len__() == 4
    assert page.tags.count("mark") == 1


def test_nothing_is_fetched_and_no_script_runs():
    html = diagnosis_page(diagnosis())
    page = Page(html)
    assert {"script", "img", "iframe", "object", "embed", "link", "base", "form", "a"}.isdisjoint(page.tags)
    assert [value for _, value in page.attributes if value and OUTSIDE.search(value) and "gs://" not in value] == []
    assert [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href", "xlink:href")] == []
    assert not re.search(r"@import|url\(", "".join(page.styles))
    assert all(found.startswith("url(#") for found in re.findall(r"url\([^)]*", html))
    assert ("content", "default-src 'none'; img-src data:; style-src 'unsafe-inline'") in page.attributes
    assert "prefers-color-scheme: dark" in html
    assert not re.search(r"#0[0-9a-f]0[0-9a-f]0[0-9a-f]\b|#1[0-9]1[0-9]1[0-9]\b", html.partition("</style>")[2])
    assert len(html) < 250_000
    assert html == diagnosis_page(diagnosis())


def test_hostile_texts_are_escaped():
    found = diagnosis()
    fix = replace(found.fixes[0], name=HOSTILE, settings={HOSTILE: HOSTILE}, advice=HOSTILE)
    hostile = replace(
        found,
        url=HOSTILE,
        device=HOSTILE,
        verdict=HOSTILE,
        contention=HOSTILE,
        fixes=(fix,),
        applied=replace(found.applied, name=HOSTILE, settings={HOSTILE: HOSTILE}),
        machine={HOSTILE: HOSTILE, "codecs": {HOSTILE: HOSTILE}},
        settings={HOSTILE: [HOSTILE]},
        allocation={HOSTILE: 1.0},
    )
    html = diagnosis_page(hostile)
    page = Page(html)
    assert "<script" not in html
    assert "img" not in page.tags
    assert [name for name, _ in page.attributes if name.startswith("on")] == []
    assert sum(HOSTILE in text for text in page.texts) >= 12
    assert "<script>" in printed(hostile, width=400)


def test_a_compute_bound_run_without_changes_has_a_page():
    found = replace(
        diagnosis(),
        limit="compute",
        utilisation=0.97,
        fixes=(),
        applied=None,
        timeline=(),
        contention="cores are short",
        attainable_images_per_s=diagnosis().observed_images_per_s,
    )
    html = diagnosis_page(found)
    assert '<h1 class="good">' in html
    assert '<h1 class="warn">' in diagnosis_page(replace(found, utilisation=0.6))
    assert "Tried" not in Page(html).text
    assert "Applied" not in Page(html).text
    assert "No single change helps." in Page(html).text
    assert "Contention: cores are short." in Page(html).text
    assert "Loaders compared" not in Page(html).text
    assert "No single change helps." in printed(found)
    faster = replace(found, attainable_images_per_s=2 * found.observed_images_per_s)
    for report in (Page(diagnosis_page(faster)).text, printed(faster)):  # what is said first stays true
        assert "With the best division of the cores: " in report
        assert "No single change divides the cores so." in report


def test_steps_that_the_plot_cuts_are_counted():
    steps = [StepTimes(started_s=n, wait_s=0.0, transfer_s=0.0, compute_s=9.0 if n == 3 else 0.5) for n in range(8)]
    page = Page(diagnosis_page(replace(diagnosis(), timeline=tuple(steps))))
    assert "8 steps, median 500.0 ms; 1 longer than the plot is high, up to 9,000 ms" in page.text


RATES = st.floats(1e-3, 1e7) | st.just(math.inf)


@settings(max_examples=30)
@given(
    rates=st.lists(RATES, min_size=4, max_size=4),
    observed=st.floats(1e-3, 1e7),
    parts=st.lists(st.tuples(*[st.floats(0, 1e3)] * 3), max_size=5),
)
def test_any_measurements_make_a_page_and_a_text(rates, observed, parts):
    found, started_s, timeline = diagnosis(), 0.0, []
    for wait_s, transfer_s, compute_s in parts:
        timeline.append(StepTimes(started_s=started_s, wait_s=wait_s, transfer_s=transfer_s, compute_s=compute_s))
        started_s += wait_s + transfer_s + compute_s
    stages = tuple(replace(stage, images_per_s=each) for stage, each in zip(found.stages, rates, strict=True))
    found = replace(found, stages=stages, observed_images_per_s=observed, timeline=tuple(timeline))
    shown = re.findall(r"(\d+) % busy", Page(diagnosis_page(found)).text)
    assert len(shown) == 4
    assert all(int(share) <= 100 for share in shown)
    assert max(len(line) for line in printed(found).splitlines()) <= 80
