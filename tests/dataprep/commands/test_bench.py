"""`dataprep bench` as a user meets it: the table, the JSON, one line for every mistake, and Ctrl-C."""

import json
import re
import signal
import subprocess
import time

import psutil
import pytest

from loaders.bench.run import to_document
from tests.support.builds import command, dataprep, succeeds
from tests.support.findings import bench_table
from tests.support.waiting import end_soon
from tests.support.words import replaced

SMALL = ("--batch-size", 8, "--image-size", 32, "--workers", 2, "--rounds", 2, "--batches", 2)


def test_bench_prints_a_table(finished, tmp_path):
    """Two datasets, each with tables that fit into 80 columns; in a file no line is wrapped or ends with spaces."""
    urls = finished("imagenet-webdataset"), finished("coco-tfrecord")
    (tmp_path / "old.json").write_text(json.dumps(to_document(bench_table())))
    run = succeeds("bench", *urls, *SMALL, "--compare", tmp_path / "old.json")
    lines = run.stdout.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert "differs: settings image_size: 224 before, 32 now" in lines
    assert "no dataset is in both results" in run.stdout
    rules = [line for line in lines if line.startswith("─")]
    assert rules and max(map(len, rules)) <= 80
    (medians,) = (line for line in lines if line.startswith("Medians of "))
    assert medians.endswith("largest process, and of all.")
    assert [line.partition(": train, ")[0] for line in lines if ": train, " in line] == [str(url) for url in urls]
    assert re.findall(r"train,\s+[^:]*?(webdataset|tfrecord)", "\n".join(lines)) == ["webdataset", "tfrecord"]
    rows = [line.split() for line in lines if re.match(r"[\d,]+ +[\d,]+ +[\d,]+ ", line)]
    assert len(rows) == 2
    for images_per_s, slowest, fastest, *_ in rows:
        numbers = [int(text.replace(",", "")) for text in (slowest, images_per_s, fastest)]
        assert numbers == sorted(numbers)
    assert sum(line.startswith("decode ") for line in lines) == 2
    assert "Medians of 2 rounds, each of 2 batches" in run.stdout


def test_bench_prints_one_json_document(finished, tmp_path):
    url = finished("imagenet-imagefolder")
    (tmp_path / "old.json").write_text(json.dumps(to_document(bench_table())))
    words = ("--batch-size", 4, "--split", "val", "--compare", tmp_path / "old.json", "--json")
    run = succeeds("bench", url, *replaced(SMALL, *words))
    assert run.stderr == ""
    document = json.loads(run.stdout)
    assert document["schema_version"] == 1
    settings = {"batch_size": 4, "image_size": 32, "workers": 2, "rounds": 2, "seconds": None, "batches": 2}
    assert document["settings"] == settings
    assert document["machine"]["cores"] >= 1
    (section,) = document["sections"]
    assert (section["url"], section["split"], section["layout"]) == (str(url), "val", "imagefolder")
    assert len(section["rounds_images_per_s"]) == 2
    assert {stage["name"] for stage in section["stages"]} >= {"fetch", "decode"}
    comparison = document["comparison"]
    assert f"sections url: shards/imagenet before, {url} now" in comparison["differences"]
    figures = {figure["name"]: figure["now"] for figure in comparison["figures"]}
    assert figures["sections images_per_s"] == section["images_per_s"]


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        (["nowhere"], 2, r"nowhere: no files found; check the URL"),
        (["x", "--workers", 0], 2, r"--workers.*0 is not in the range"),
        (["x", "--seconds", 1, "--batches", 1], 2, r"--seconds and --batches both set"),
        (["x", "--compare", "none.json"], 2, r"--compare none.json: No such file or directory; give a file that"),
        ([], 2, r"Missing argument 'URL"),
    ],
)
def test_wrong_arguments_of_bench_are_refused_in_one_line(tmp_path, monkeypatch, words, exit_code, message):
    monkeypatch.chdir(tmp_path)
    run = dataprep("bench", *words)
    assert run.returncode == exit_code
    assert re.search(message, run.stderr), run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_no_process_outlives_an_interrupted_bench(finished, number):
    """Stopped while a round runs: with Ctrl-C its process is gone, with kill -9 too, seconds later."""
    url = finished("imagenet-imagefolder")
    words = command("bench", url, "--batch-size", 8, "--seconds", 60, "--workers", 2)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            tree = _tree_of(process.pid)
            process.send_signal(number)
            _, stderr = process.communicate(timeout=800)
        finally:
            process.kill()
    is_interrupt = number == signal.SIGINT
    assert process.returncode == (130 if is_interrupt else -signal.SIGKILL)
    assert ("dataprep: interrupted" in stderr) == is_interrupt
    assert "Traceback" not in stderr
    assert end_soon([each.pid for each in tree])


def _tree_of(pid):
    """Return the processes below one, as soon as there is one."""
    until_s = time.monotonic() + 40
    while time.monotonic() < until_s:
        if tree := psutil.Process(pid).children(recursive=True):
            return tree
        time.sleep(0.05)
    raise AssertionError("no process")
