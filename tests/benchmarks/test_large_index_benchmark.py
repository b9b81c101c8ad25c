"""benchmarks/large_index.py on a small index: every dataset can be opened, and the rows of its shards be read."""

import json
import subprocess
import sys

from tests.support.markdown import ROOT


def test_each_index_is_opened_and_read(tmp_path):
    command = [sys.executable, ROOT / "benchmarks/large_index.py", "--rows", "40000", "--rounds", "1"]
    subprocess.run([*command, "--work", tmp_path, "--json", tmp_path / "out.json"], check=True, capture_output=True)
    document = json.loads((tmp_path / "out.json").read_text())
    assert (document["rows"], document["shards"]) == (40_000, 4)
    assert [row["index"] for row in document["table"]] == ["parts", "one file", "small dataset"]
    assert all(row["open_s"] > 0 and row["shard_cpu_ms"] > 0 for row in document["table"])
