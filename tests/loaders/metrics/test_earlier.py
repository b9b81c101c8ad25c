"""Earlier results: read up to a bound and refused in one line; what differs is named before the ratios."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from dataprep.errors import UsageError
from loaders.bench.run import to_document as bench_document
from loaders.diagnosis.findings import to_document as diagnosis_document
from loaders.metrics import earlier
from loaders.metrics.earlier import compare, read_earlier
from tests.support.findings import bench_table, diagnosis

COMMAND = "dataprep bench --json"


def read(document):
    """A document after it was written and read."""
    return json.loads(json.dumps(document))


def printed(found) -> str:
    console = Console(width=100, file=io.StringIO())
    console.print(found.text())
    return console.file.getvalue()


def test_a_file_above_the_bound_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(earlier, "MAX_RESULT_BYTES", 10)
    path = tmp_path / "result.json"
    path.write_text(" " * 11)
    with pytest.raises(UsageError, match="more than 10 bytes; give a file that dataprep bench --json wrote"):
        read_earlier(path, "sections", COMMAND)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "give a file that dataprep bench --json wrote"),
        ("[]", "give a file that dataprep bench --json wrote"),
        ('{"sections": []}', "no schema_version or no list 'sections'; give a file"),
        ('{"schema_version": 7, "sections": []}', "schema_version 7, expected 1; measure it again"),
        (
            '{"schema_version": 1, "limit": "compute"}',
            "no list 'sections'; give a file that dataprep bench --json wrote",
        ),
        (None, "No such file or directory; give a file"),
    ],
)
def test_other_files_are_refused_with_one_line(tmp_path, text, message):
    if text is not None:
        (tmp_path / "old.json").write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        read_earlier(tmp_path / "old.json", "sections", COMMAND)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("document", "part", "names"),
    [
        (
            diagnosis_document(replace(diagnosis(), settings={"scale": (0.2, 1.0), "batch_size": 64})),
            "stages",
            {"observed_images_per_s", "predicted_images_per_s", "stages prepare images_per_s", "wait_share"},
        ),
        (bench_document(bench_table()), "sections", {"sections images_per_s", "sections slowest_images_per_s"}),
    ],
    ids=["diagnose", "bench"],
)
def test_a_result_beside_itself_has_ratios_of_one_and_no_difference(tmp_path, document, part, names):
    path = tmp_path / "before.json"
    path.write_text(json.dumps(document))
    found = compare(read_earlier(path, part, COMMAND), document)
    assert found.differences == ()
    assert {figure.ratio for figure in found.figures} <= {1.0, None}
    assert names <= {figure.name for figure in found.figures}
    assert "differ" not in printed(found)


def test_everything_that_differs_is_said_before_the_ratios():
    now = diagnosis()
    stages = tuple(replace(stage, images_per_s=2 * stage.images_per_s) for stage in now.stages)
    machine = {**now.machine, "cores": 96, "time": "another", "codecs": {**now.machine["codecs"], "pillow": "0.1"}}
    other = replace(now, url="gs://other/place", device="simulated:1", machine=machine, stages=stages)
    other = replace(other, settings={**now.settings, "batch_size": 999}, limit="transfer", observed_images_per_s=0.0)
    found = compare(read(diagnosis_document(other)), diagnosis_document(now))
    text = printed(found)
    for said in (
        "url: gs://other/place before",
        "device: simulated:1 before",
        "machine cores: 96 before",
        "machine codecs pillow: 0.1 before",
        "settings batch_size: 999 before",
        "limit: transfer before",
    ):
        assert said in "\n".join(found.differences)
        assert said in text
    assert len(found.differences) == 6
    figures = {figure.name: figure for figure in found.figures}
    assert figures["observed_images_per_s"].ratio is None
    assert {figures[f"stages {stage.name} images_per_s"].ratio for stage in now.stages} == {0.5}


def test_datasets_are_matched_by_url_and_split_unless_there_is_one():
    table = bench_table()
    (section,) = table.sections
    elsewhere = replace(section, url="gs://other/place", images_per_s=2 * section.images_per_s)
    one, other, both = (
        read(bench_document(replace(table, sections=sections)))
        for sections in ((section,), (elsewhere,), (elsewhere, section))
    )
    found = compare(other, one)
    assert found.differences == (f"sections url: gs://other/place before, {section.url} now",)
    assert {figure.name: figure.ratio for figure in found.figures}["sections images_per_s"] == 0.5
    assert compare(both, one).differences[-1].startswith("no dataset is in both results")
    known = {figure.name: figure.ratio for figure in compare(both, both).figures}
    assert known[f"sections {section.url} {section.split} images_per_s"] == 1.0
