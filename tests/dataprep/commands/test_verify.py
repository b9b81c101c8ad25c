"""The verdict of a verification as an exit code, as lines for people and as JSON."""

import json

import pytest

from dataprep.errors import UsageError
from tests.support.builds import dataprep
from tests.support.finished import verify_here


def test_verify_prints_its_findings_and_exits_with_the_verdict(finished, damaged, tmp_path):
    run = dataprep("verify", finished("imagenet-tfrecord"), "--deep", "--workers", 1)
    assert (run.returncode, run.stderr) == (0, "")
    assert " is complete: " in run.stdout
    assert "every image decoded" in run.stdout
    copy = damaged("imagenet-tfrecord")
    (copy.root / copy.shards()[0]).unlink()
    copy.write("x.tfrecord-1", b"x")
    run = dataprep("verify", copy.root, "--workers", 1)
    assert run.returncode == 1
    assert [line.split()[0] for line in run.stdout.splitlines()] == ["missing", "extra"]
    assert "differs from its manifest: 2 findings (1 extra, 1 missing). " in run.stderr
    advice = run.stderr.partition("missing). ")[2]
    ways = [advice.index(way) for way in ("dataprep replicate OTHER_COPY --to", "dataset.json", "--overwrite")]
    assert ways == sorted(ways)  # the cheapest first
    run = dataprep("verify", copy.root, "--json", "--workers", 1)
    report = json.loads(run.stdout)
    assert (run.returncode, report["verdict"], report["counts"]) == (1, "differs", {"extra": 1, "missing": 1})
    run = dataprep("verify", tmp_path / "nothing")
    assert (run.returncode, run.stdout) == (2, "")
    assert "no dataset there (no dataset.json); check the URL" in run.stderr


def test_verify_names_an_unfinished_build(tmp_path):
    (tmp_path / "_build").mkdir()
    (tmp_path / "_build/plan.json").write_text("{}")
    with pytest.raises(UsageError, match="a build there is not finished: run it again to finish it"):
        verify_here(tmp_path)
