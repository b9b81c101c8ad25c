"""Programs with worker processes: one error says what to do where `if __name__ == "__main__":` is missing."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from tests.support.markdown import ROOT, blocks

UNGUARDED = """
from loaders import open_loader

with open_loader({url!r}, batch_size=12, image_size=32, processes=2) as loader:
    for batch in loader:
        print(len(batch.keys))
"""


def run(*arguments, program=None):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, input=program, capture_output=True, text=True, timeout=800, check=False)


def test_a_program_without_the_guard_ends_with_one_error_that_names_it(dataset, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(UNGUARDED.format(url=str(dataset("webdataset"))))
    found = run(script)
    assert found.returncode == 1
    assert found.stderr.count("Traceback") == 1
    assert found.stderr.splitlines()[-1] == (
        "dataprep.errors.UsageError: processes=2: each worker process imports the program, and came to its loader "
        'again; put what uses the loader under `if __name__ == "__main__":`, or leave `processes` out'
    )
    assert found.stdout == ""


def test_a_program_from_a_pipe_is_refused(dataset):
    found = run("-", program=UNGUARDED.format(url=str(dataset("webdataset"))))
    assert found.stderr.count("Traceback") == 1
    assert "must be a file, got <stdin>; write it to a file" in found.stderr.splitlines()[-1]


def test_the_documented_program_runs(dataset, tmp_path):
    (text,) = (block.text for block in blocks("docs/loaders.md") if "processes=12" in block.text)
    for shown, small in (
        ('"gs://bucket/imagenet"', repr(str(dataset("webdataset")))),
        ("batch_size=1024", "batch_size=12, image_size=32"),
        ("processes=12", "processes=2"),
        ("step(batch.images, batch.labels)", "print(batch.images.shape[0])"),
    ):
        assert shown in text
        text = text.replace(shown, small)
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(text))
    found = run(script)
    assert found.stderr == ""
    assert set(found.stdout.split()) == {"12"}
