"""`dataprep demo-data`: archives, a table of URLs with what becomes of its rows, and the server that answers."""

import json
import signal
import subprocess
import urllib.request
from collections import Counter

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from dataprep.commands.demo_data import command as demo_data
from dataprep.errors import UsageError
from tests.support.builds import command, dataprep


def run(*words: object) -> str:
    """What the command prints; an error is raised."""
    result = CliRunner().invoke(demo_data, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_archives_are_written_and_listed_with_their_sizes(tmp_path):
    lines = run("coco", tmp_path / "demo", "--images", 20).splitlines()
    assert [line.split("  ")[0] for line in lines] == sorted(str(path) for path in (tmp_path / "demo").iterdir())
    report = json.loads(run("coco", tmp_path / "demo", "--images", 20, "--json"))
    assert (report["name"], report["images"]["train"]) == ("coco", 20)
    assert set(report["files"]) <= {path.name for path in (tmp_path / "demo").iterdir()}


def test_a_dry_run_writes_nothing(tmp_path):
    assert run("coco", tmp_path / "demo", "--dry-run") == f"coco: 400 images would be written into {tmp_path}/demo\n"
    assert not (tmp_path / "demo").exists()


def test_a_table_is_written_without_a_server(tmp_path):
    folder = tmp_path / "demo"
    words = ("laion", folder, "--images", 24)
    first = run(*words, "--base-url", "https://images.example.org/demo/")
    assert "24 URLs at https://images.example.org/demo/, served by the same command with --serve" in first
    urls = pq.read_table(folder / "laion.parquet").column("URL").to_pylist()
    assert urls[0] == "https://images.example.org/demo/images/000000.jpg"
    expected = json.loads((folder / "expected.json").read_text())
    assert len(expected) == len(urls) == 24
    assert dict(Counter(end["status"] for end in expected))["success"] >= 18
    written_s = (folder / "images/000000.jpg").stat().st_mtime
    again = run(*words, "--base-url", "https://images.example.org/demo/")
    assert (again, (folder / "images/000000.jpg").stat().st_mtime) == (first, written_s)
    assert json.loads(run(*words, "--json"))["base_url"] == "http://127.0.0.1:8000"
    assert pq.read_table(folder / "laion.parquet").column("URL")[0].as_py().startswith("http://127.0.0.1:8000/images/")


def test_demo_web_is_served_until_ctrl_c(tmp_path):
    words = command("demo-data", "laion", tmp_path / "demo", "--images", 20, "--serve", "--port", 0, "--json")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        said = json.loads(server.stdout.readline())
        assert "until Ctrl-C" in server.stderr.readline()
        url = pq.read_table(said["table"]).column("URL")[0].as_py()
        assert url.startswith(said["base_url"])
        with urllib.request.urlopen(url) as answer:
            assert answer.read() == (tmp_path / "demo/images/000000.jpg").read_bytes()
        taken = said["base_url"].rpartition(":")[2]
        beside = dataprep("demo-data", "laion", tmp_path / "other", "--serve", "--port", taken)
        assert (beside.returncode, beside.stderr.count("\n")) == (2, 1)
        assert f"--port {taken}: Address already in use; choose another one, or 0 for any" in beside.stderr
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0
        assert server.stderr.read() == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("laion", "--odd"), "laion always has its oddities; leave --odd out"),
        (("coco", "--serve"), "coco consists of archives, which need no server"),
        (("imagenet", "--base-url", "http://a.example/"), "leave --serve and --base-url out"),
        (("laion", "--port", "0"), "--port 0 needs --serve"),
    ],
)
def test_options_that_exclude_each_other_are_refused(tmp_path, arguments, text):
    name, *options = arguments
    with pytest.raises(UsageError, match=text):
        run(name, tmp_path / "demo", *options)
    assert not (tmp_path / "demo").exists()


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "laion.parquet").write_bytes(b"someone's own")
    with pytest.raises(UsageError, match=r"holds laion\.parquet, which is not a demo"):
        run("laion", tmp_path)
    assert (tmp_path / "laion.parquet").read_bytes() == b"someone's own"
