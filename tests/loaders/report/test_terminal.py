"""The report on a terminal: what it shows, in how many columns, and that no escape sequence gets through."""

import io
import re
from dataclasses import replace

from rich.console import Console

from loaders.diagnosis.findings import to_document
from loaders.metrics.earlier import compare
from loaders.report.page import diagnosis_page
from loaders.report.terminal import diagnosis_text
from tests.support.findings import diagnosis, transform_cost
from tests.support.pages import HOSTILE, Page


def printed(found, width=80):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(diagnosis_text(found))
    return console.file.getvalue()


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
