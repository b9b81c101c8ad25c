"""A diagnosis beside an earlier one: nothing that differed is silent, and hostile files are refused in one line."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from dataprep.errors import UsageError
from loaders.diagnosis.comparison import compare_diagnoses, read_diagnosis
from loaders.diagnosis.findings import to_document
from loaders.report.page import diagnosis_page
from loaders.report.terminal import comparison_text
from tests.support.findings import diagnosis
from tests.support.pages import HOSTILE, Page


def written(folder: Path, found) -> Path:
    path = folder / "before.json"
    path.write_text(json.dumps(to_document(found)))
    return path


def printed(renderable) -> str:
    console = Console(width=100, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()


def test_a_diagnosis_beside_itself_has_ratios_of_one_and_no_difference(tmp_path):
    found = replace(diagnosis(), settings={"scale": (0.2, 1.0), "batch_size": 64})
    comparison = compare_diagnoses(read_diagnosis(written(tmp_path, found)), found)
    assert comparison.differences == ()
    assert {figure.ratio for figure in comparison.figures} <= {1.0, None}
    assert comparison.before_verdict == found.verdict
    assert "differs" not in printed(comparison_text(comparison, found.limit))


def test_everything_that_differs_is_said_before_the_ratios(tmp_path):
    found = diagnosis()
    machine = {**found.machine, "cores": 96}
    stages = tuple(replace(stage, images_per_s=2 * stage.images_per_s) for stage in found.stages)
    settings = {**found.settings, "batch_size": 999}
    other = replace(found, url="gs://other/place", device="simulated:1", machine=machine, settings=settings)
    other = replace(other, stages=stages, observed_images_per_s=0.0, limit="transfer", verdict="You wait.")
    comparison = compare_diagnoses(read_diagnosis(written(tmp_path, other)), found)
    text = printed(comparison_text(comparison, found.limit))
    for said in ("url: gs://other/place before", "device: simulated:1 before", "cores: 96 before", "batch_size: 999"):
        assert said in "\n".join(comparison.differences)
        assert said in text
    assert "before: You wait." in text
    assert f"The limit was transfer, and is {found.limit} now." in text
    figures = {figure.name: figure for figure in comparison.figures}
    assert figures["observed"].ratio is None
    assert {figures[f"{stage.name} alone"].ratio for stage in found.stages} == {0.5}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("", "before.json"),
        ("[]", "before.json"),
        ('{"schema_version": 99}', "schema_version 99, expected 1; measure it again"),
        ('{"schema_version": 1}', "before.json"),
    ],
)
def test_a_file_that_is_no_diagnosis_is_refused_in_one_line(tmp_path, content, said):
    path = tmp_path / "before.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError) as raised:
        read_diagnosis(path)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_page_shows_the_earlier_run_with_every_text_escaped(tmp_path):
    found = diagnosis()
    earlier = replace(found, verdict=HOSTILE, url=HOSTILE)
    comparison = compare_diagnoses(read_diagnosis(written(tmp_path, earlier)), found)
    html = diagnosis_page(found, comparison)
    page = Page(html)
    assert "script" not in page.tags
    assert "Beside the earlier run" in html
    assert "Now / before" in html
    assert sum(HOSTILE in text for text in page.texts) == 2
    assert "Beside the earlier run" not in diagnosis_page(found)
