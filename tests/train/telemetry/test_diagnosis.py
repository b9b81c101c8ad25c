"""`--diagnose` of a run; what it measures, the tests of the entries show."""

import json

import pytest

from dataprep.errors import UsageError
from loaders.config import LoaderConfig
from tests.support.findings import diagnosis
from train.batches.data import open_data
from train.telemetry.diagnosis import _show, diagnose_run


def test_diagnosing_one_of_several_hosts_is_refused(dataset):
    loader = open_data(dataset).training_loader(LoaderConfig(batch_size=8, image_size=32, world_size=2))
    with pytest.raises(UsageError, match="`diagnose` on 2 hosts: expected one; start it on one host"):
        diagnose_run(loader, None, model="", transfer_ahead=0, folder=None, options={})


def test_diagnosing_a_mixture_is_refused(dataset, tmp_path):
    path = tmp_path / "mix.json"
    path.write_text(json.dumps({"version": 1, "datasets": [{"url": dataset, "weight": 1}]}))
    loader = open_data(str(path)).training_loader(LoaderConfig(batch_size=8, image_size=32))
    expected = r"mixture, which only `loaders.mixture` and training without --diagnose read; give one of its datasets"
    with pytest.raises(
        UsageError, match=rf"mix.json: expected a dataset, got what looks like the file of a {expected}"
    ):
        diagnose_run(loader, None, model="", transfer_ahead=0, folder=None, options={})


def test_lines_of_a_diagnosis_that_goes_to_a_pipe_are_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    found = diagnosis()
    _show(found)
    printed = capsys.readouterr().out.splitlines()
    assert found.verdict in printed
    assert [each.advice for each in found.fixes if each.advice not in "\n".join(printed)] == []
    assert [line for line in printed if line != line.rstrip()] == []
