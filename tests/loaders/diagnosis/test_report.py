"""The report as a page and on a terminal: what it says, that it escapes, and that it fetches nothing."""

import io
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from loaders.diagnosis.findings import StepTimes, to_document
from loaders.diagnosis.report import diagnosis_page, diagnosis_text
from loaders.metrics.earlier import compare
from tests.support.findings import diagnosis, transform_cost
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


def test_a_terminal_shows_the_same_in_80_columns():
    found = diagnosis()
    text = printed(found)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert " ".join(text.split()).startswith(found.verdict)
    for part in (
        "790 of the accelerator's 1,840 images/s: 43 % used (MLPerf asks for 90 %)",
        "predicted together 812, observed 790",
        "wait 55 %",
        "1. workers: × 2.27; images/s predicted 1,830, tried 1,790, applied 1,738;",
        "2. resize: × 1.57; images/s predicted 1,240; then limited by prepare; needs",
    ):
        assert part in text
    assert "then limited by compute; needs another run" in " ".join(text.split())
    assert [line.split()[0] for line in text.splitlines() if line.endswith("the limit")] == ["prepare"]


def test_each_change_has_its_rates_in_one_place_and_nothing_else_repeats_them():
    text = printed(diagnosis(), width=200)
    (line,) = [line for line in text.splitlines() if "1,738" in line]
    assert line.startswith("1. workers: ")
    assert text.count("1,830") == 1
    unapplied = printed(replace(diagnosis(), applied=None), width=200)
    assert "images/s predicted 1,830, tried 1,790; then" in unapplied


def test_a_run_that_is_faster_than_a_stage_alone_calls_that_rate_a_lower_bound():
    """324 images/s, and a device that took 291 alone, are not 100 % of 291."""
    sample = diagnosis()
    fetch, prepare, transfer, compute = sample.stages
    stages = replace(fetch, images_per_s=300.0), prepare, transfer, replace(compute, images_per_s=330.0)
    found = replace(
        sample, observed_images_per_s=324.0, stages=stages, compute_alone_images_per_s=291.0, utilisation=324 / 330
    )

    text = " ".join(printed(found).split())
    assert "324 of the accelerator's 330 images/s: 98 % used" in text
    assert "Alone the accelerator took 291 images/s, in the steps of this run 330: something slowed it down" in text
    assert "330 is a lower bound of what it takes" in text
    meaning = "≤: the rate of fetch alone is a lower bound, 300 images/s, while the run made 324; so it may be busy for"
    assert meaning in text
    assert "≤ 100 %" in text
    assert "lower bound" not in printed(sample)
    undecided = " ".join(printed(replace(found, undecided="the rates contradict each other")).split())
    assert "≤ 100 %" in undecided
    assert meaning in undecided, "the mark is explained wherever it is shown"


def test_the_first_line_and_the_headline_say_what_other_programs_use_and_nothing_repeats_it():
    words = "You are waiting for images to be decoded, while other programs use 3.2 of 8 cores: 790 images/s."
    busy = replace(diagnosis(), other_cores=3.25, verdict=words)
    assert " ".join(printed(busy).split()).startswith(words)
    (headline,) = re.findall(r"<h1[^>]*>(.*?)</h1>", diagnosis_page(busy))
    assert headline == words
    for report in (printed(busy), diagnosis_page(busy)):
        assert len(re.findall("other programs", report, re.IGNORECASE)) <= (1 if report == printed(busy) else 2)


def test_escape_sequences_do_not_reach_the_terminal():
    assert "\x1b" not in printed(replace(diagnosis(), url="gs://\x1b[2Jbucket", device="\x1b]0;x\x07"))


def test_a_transform_is_a_part_of_preparing_and_a_run_without_it_is_marked_as_a_bound():
    found = replace(diagnosis(), transform=transform_cost(), limit="cores")
    text = printed(found)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text, "a column is cut off"
    rows = [line.split()[0] for line in text.splitlines() if line.rstrip().endswith(("ores", "2.12"))]
    assert rows == ["prepare", "transform"]
    note = (
        "Your transform mytrans:slow takes 2.3 of the 3.6 ms for which a thread prepares an image, 2.1 ms of them CPU "
        "time. Without it: × 2.08, 1,640 images/s tried, then limited by prepare. That is a bound for a faster "
        "transform; no option brings it."
    )
    assert note in " ".join(text.split())
    assert note in diagnosis_page(found)
    assert "interpreter lock" not in note
    locked = replace(found, transform=replace(transform_cost(), holds_lock=True))
    lock_note = (
        "It holds the interpreter lock: the threads of a process take turns in it, so a process prepares at most "
        "472 images/s, whatever its number of threads. Worker processes have a lock each."
    )
    assert lock_note in " ".join(printed(locked).split())
    assert lock_note in diagnosis_page(locked)
    for report in (printed(replace(found, fixes=())), diagnosis_page(replace(found, fixes=()))):
        assert "No setting helps; a faster transform does." in report
        assert "No single change" not in report
    alone = replace(found, transform=replace(transform_cost(), without=None), fixes=())
    assert "Without it" not in printed(alone)
    assert "No single change divides the cores so." in printed(replace(alone, limit="fetch"))
    assert "No setting helps." in printed(replace(alone, limit="prepare"))


def test_the_page_shows_the_earlier_run_with_every_text_escaped():
    found = diagnosis()
    earlier = replace(found, verdict=HOSTILE, url=HOSTILE)
    comparison = compare(to_document(earlier), to_document(found))
    html = diagnosis_page(found, comparison)
    page = Page(html)
    assert "script" not in page.tags
    assert "Beside the earlier run" in html
    assert "Now / before" in html
    assert sum(HOSTILE in text for text in page.texts) == 2
    assert "Beside the earlier run" not in diagnosis_page(found)
