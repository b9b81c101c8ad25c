"""The public face of `train`: its entries, their programs, and a map of each room."""

import configparser
import importlib
import pkgutil
import subprocess
import sys

import pytest

import train
from tests.support.markdown import ROOT

ROOMS = ["train", *(f"train.{each.name}" for each in pkgutil.iter_modules(train.__path__) if each.ispkg)]


@pytest.mark.parametrize("name", ROOMS)
def test_a_packages_docstring_lists_its_modules(name):
    room = importlib.import_module(name)
    modules = [each.name for each in pkgutil.iter_modules(room.__path__) if not each.ispkg]
    assert [module for module in modules if f"{module}.py" not in room.__doc__] == []


def test_every_entry_has_a_console_script_named_after_it():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    programs = dict(line.split(" = ") for line in setup["options.entry_points"]["console_scripts"].split("\n") if line)
    for name in train.__all__:
        program = f"dataprep-{name.replace('_', '-')}"
        assert programs[program] == f"train.{name}:main"
        assert program in train.__doc__
        assert callable(importlib.import_module(f"train.{name}").main)


def test_an_entry_can_be_run_as_a_module():
    found = subprocess.run(
        [sys.executable, "-m", "train.export", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=800
    )
    assert found.returncode == 0
    assert "dataprep-export runs/mae/" in found.stdout
