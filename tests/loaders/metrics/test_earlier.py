"""Files of earlier results: read up to a bound; what differs is named."""

from dataclasses import dataclass

import pytest

from dataprep.errors import UsageError
from loaders.metrics import earlier
from loaders.metrics.earlier import changed, machine_differences, read_earlier


@dataclass(frozen=True)
class Result:
    rate: float


def test_a_result_of_the_right_version_is_read(tmp_path):
    path = tmp_path / "result.json"
    path.write_text('{"schema_version": 3, "rate": 2.5, "more": []}')
    assert read_earlier(path, Result, 3, "dataprep bench --json") == Result(2.5)


def test_a_file_above_the_bound_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(earlier, "MAX_RESULT_BYTES", 10)
    path = tmp_path / "result.json"
    path.write_text(" " * 11)
    with pytest.raises(UsageError, match="more than 10 bytes; give a file that dataprep bench --json wrote"):
        read_earlier(path, Result, 3, "dataprep bench --json")


def test_only_what_differs_is_named():
    assert [*changed("setting", {"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4})] == [
        "setting b: 2 before, 3 now",
        "setting c: None before, 4 now",
    ]


def test_the_time_and_load_of_a_machine_may_differ():
    machine = {"cores": 2, "platform": "x", "python": "3.13", "dataprep": "1", "codecs": {"pillow": "1"}}
    other = {**machine, "cores": 4, "busy_cores_before": 1, "codecs": {"pillow": "2"}}
    assert [*machine_differences(machine, other)] == [
        "machine cores: 2 before, 4 now",
        "version of pillow: 1 before, 2 now",
    ]
