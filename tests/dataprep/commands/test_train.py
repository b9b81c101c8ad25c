"""`dataprep train` starts the console scripts of `train` with all arguments unchanged, and imports none before."""

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from dataprep.cli import group
from dataprep.commands import train
from dataprep.commands.train import ENTRIES
from dataprep.errors import DISTRIBUTION, UsageError

SCRIPTS = metadata.distribution(DISTRIBUTION).entry_points.select(group="console_scripts")


def started(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    """Exit code and output of `dataprep train` in this process, which has imported the frameworks already."""
    with pytest.raises(SystemExit) as ended:
        group(["train", *words], standalone_mode=False)
    return (ended.value.code, *capsys.readouterr())


def test_every_training_program_is_listed_with_one_line():
    listed = CliRunner().invoke(group, ["train", "--help"]).stdout
    assert {entry.script for entry in ENTRIES.values()} == {script.name for script in SCRIPTS} - {"dataprep"}
    for name, entry in ENTRIES.items():
        assert re.search(rf"^  {name} +{re.escape(entry.help)}$", listed, re.MULTILINE)


def test_listing_the_programs_imports_no_framework():
    code = "import sys; from dataprep.cli import group; group(['train', '--help'], standalone_mode=False)"
    run = subprocess.run([sys.executable, "-c", f"{code}; print(*sys.modules)"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    loaded = {name.partition(".")[0] for name in run.stdout.splitlines()[-1].split()}
    assert loaded.isdisjoint({"train", "loaders", "torch", "jax", "numpy"})


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_prints_the_help_of_its_console_script(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [ENTRIES[name].script, "--help"])
    with pytest.raises(SystemExit) as ended:
        SCRIPTS[ENTRIES[name].script].load()()
    expected = (ended.value.code, *capsys.readouterr())
    assert started([name, "--help"], capsys) == expected
    assert f"{ENTRIES[name].script} " in expected[1].split("Examples:")[1]


def test_an_entry_gets_its_arguments_unchanged(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "argv", ["dataprep"])
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda entry: lambda: seen.append((entry.name, sys.argv)))
    words = ["--epochs=3", "-x", "--", "a b", "--help", "--", "-h"]
    assert group(["train", "resnet-jax", *words], standalone_mode=False) is None
    assert group(["train", "train-vit"], standalone_mode=False) is None
    assert seen == [
        ("dataprep-train-resnet-jax", ["dataprep-train-resnet-jax", *words]),
        ("dataprep-train-vit", ["dataprep-train-vit"]),
    ]


def test_an_entry_runs_and_its_errors_and_exit_codes_are_those_of_its_script(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["dataprep"])
    sizes = ["--image_size", "16", "--patch_size", "8", "--embed_dim", "32", "--num_heads", "2", "--num_blocks", "1"]
    code, out, _ = started(["vit", "--plan", "--plan_devices", "2", "--json", *sizes], capsys)
    assert (code, json.loads(out)["devices"]) == (0, 2)
    code, out, said = started(["export", str(tmp_path / "x.pth"), str(tmp_path / "y.txt")], capsys)
    assert (code, out) == (2, "")
    assert said.startswith("dataprep-export: ") and said.count("\n") == 1


def test_the_installed_programs_end_in_the_same_way():
    bin = Path(sys.executable).parent
    lines = (["dataprep", "train", "export", "nowhere.pth"], ["dataprep-export", "nowhere.pth"])
    runs = [subprocess.run([bin / word, *more], capture_output=True, text=True) for word, *more in lines]
    assert [run.returncode for run in runs] == [2, 2]
    assert runs[0].stderr == runs[1].stderr
    assert runs[0].stderr.startswith("Usage: dataprep-export [OPTIONS] CHECKPOINT OUTPUT")


def test_an_unknown_entry_is_refused():
    run = CliRunner().invoke(group, ["train", "gan"])
    assert run.exit_code == 2
    assert "No such command 'gan'" in run.stderr


def test_a_missing_console_script_says_to_install_again():
    with pytest.raises(UsageError, match=f"dataprep-nothing: not among .* installed {DISTRIBUTION}; install it again"):
        train._find("dataprep-nothing")
