"""`dataprep diagnose`: its verdict on the terminal and on a page, and options that are refused in one line."""

import json
import re

import pytest
from click.testing import CliRunner

from dataprep.commands import diagnose
from dataprep.commands.diagnose import command
from dataprep.errors import UsageError
from loaders.diagnosis.findings import TransformCost
from tests.support.disturbed_device import SLOW_STEP_S, DisturbedDevice
from tests.support.given_rates import GivenRates, give_rates


def diagnosed(url, rate, *more):
    """Call the command for small batches and a simulated device of this rate."""
    words = ["--device", f"simulated:{rate}", "--seconds", "0.3", "--batch-size", "8", "--image-size", "32", *more]
    return CliRunner().invoke(command, [str(url), *map(str, words)], catch_exceptions=False)


def test_the_command_prints_the_verdict_and_writes_a_page(finished, tmp_path, monkeypatch):
    give_rates(monkeypatch, GivenRates())
    page = tmp_path / "report.html"
    done = diagnosed(finished("imagenet-webdataset"), 100, "--html", page)

    assert done.exit_code == 0
    assert "The device is the limit" in done.output
    assert "The device is the limit" in page.read_text()


def test_without_a_terminal_no_line_is_wrapped_or_ends_with_spaces(finished, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    give_rates(monkeypatch, GivenRates())
    before = tmp_path / "before.json"
    url = finished("imagenet-webdataset")
    before.write_text(diagnosed(url, 100, "--json").stdout)
    out = diagnosed(url, 100, "--compare", before).stdout
    assert [line for line in out.splitlines() if line != line.rstrip()] == []
    for line in (
        r"stage +images/s alone +busy +CPU ms/image",
        r" +before +now +now / before",
        r"observed_images_per_s +.*",
    ):
        assert re.search(f"^{line}$", out, re.MULTILINE), out
    assert re.search(r"^predicted together .*, observed .*$", out, re.MULTILINE)
    assert out.splitlines()[0].endswith(".")


def test_measurements_that_contradict_each_other_are_undecided(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(diagnose, "open_device", lambda *words: DisturbedDevice())
    step_s, step_in_run_s = lambda *_: SLOW_STEP_S, lambda device, images: images / 400
    give_rates(monkeypatch, GivenRates(step_s=step_s, step_in_run_s=step_in_run_s))
    page = tmp_path / "report.html"
    done = diagnosed(finished("imagenet-webdataset"), 400, "--apply", "--html", page)

    assert done.exit_code == 3
    assert done.output.count("Undecided: the run made ") == 1
    assert "Run it again while nothing else runs." in " ".join(done.output.split())
    assert "Undecided: the run made " in page.read_text()
    for text in (done.output, page.read_text()):
        assert "MLPerf" not in text and "the limit" not in text


def test_a_slow_transform_is_named_in_sentence_table_json_and_page(finished, tmp_path, monkeypatch):
    name, page = "tests.support.slow_transforms:computing", tmp_path / "report.html"
    cost = TransformCost(
        name=name, s_per_image=0.009, cpu_s_per_image=0.005, prepare_s_per_image=0.01, holds_lock=True, without=None
    )
    prepare = {True: 200.0, False: 2000.0}
    given = GivenRates(prepare=lambda config: prepare[any(config.transforms)], transform=cost)
    give_rates(monkeypatch, given)
    words = (finished("imagenet-webdataset"), 3000, "--transform", name)
    done = diagnosed(*words, "--html", page)
    said = " ".join(done.output.split())

    assert done.exit_code == 0
    assert "Your transform tests.support.slow_transforms:computing takes 9.0 of the 10.0 ms" in said
    assert re.search(r"^  transform +█", done.output, re.MULTILINE)
    assert f"Your transform {name} takes" in page.read_text()
    assert "No single change" not in said
    assert "Without it: × 10.00" in said
    assert "a bound for a faster transform; no option brings it." in said
    assert json.loads(diagnosed(*words, "--json").output)["transform"]["name"] == name


def test_a_transform_is_measured_and_named_whatever_else_runs(finished):
    name = "tests.support.slow_transforms:computing"
    done = diagnosed(finished("imagenet-webdataset"), 3000, "--transform", name, "--json")
    cost = json.loads(done.stdout)["transform"]
    assert cost["name"] == name
    assert 0.005 <= cost["cpu_s_per_image"] <= cost["s_per_image"]
    assert cost["prepare_s_per_image"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "npu"], "--device npu: expected xla, tpu, cuda, cpu or simulated:IMAGES_PER_S"),
        (["--device", "cpu"], "--device cpu: name the --model to train"),
        (["--device", "simulated:5", "--model", "resnet50"], "--model resnet50: a simulated device"),
        (["--device", "simulated:5", "--transform", "nowhere:at_all"], "expected MODULE:NAME of a Python function"),
        (["--device", "simulated:5", "--transform", "json"], "expected MODULE:NAME of a Python function"),
        (["--device", "simulated:5", "--batch-size", "8"], "no such folder; expected the folder or URL of a dataset"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(tmp_path, words, message):
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        CliRunner().invoke(command, [str(tmp_path / "none"), *words], catch_exceptions=False)
