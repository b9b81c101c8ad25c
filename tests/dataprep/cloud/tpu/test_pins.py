"""The pinned packages for TPUs go with setup.cfg, and with each other's absence."""

import configparser
import re

import pytest

from dataprep.cloud.tpu.jobs import FRAMEWORKS
from tests.support.markdown import ROOT

SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")


def name_of(requirement: str) -> str:
    return re.split(r"[\[=<>]", requirement)[0].lower().replace("_", "-")


def pins(framework: str) -> dict[str, str]:
    lines = (ROOT / f"dataprep/data/tpu-{framework}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_pins_of_a_framework_hold_what_the_package_needs(framework):
    needed = {name_of(line) for line in SETUP["options"]["install_requires"].split()}
    assert needed <= set(pins(framework))
    for line in SETUP["options"]["install_requires"].split():
        name, _, least = line.partition(">=")
        pinned = pins(framework)[name_of(name)]
        assert [int(part) for part in re.findall(r"\d+", pinned)] >= [int(part) for part in least.split(".")]


def test_the_pinned_torch_is_the_one_of_the_tests():
    for line in SETUP["options.extras_require"]["xla"].split():
        name, _, version = line.partition("==")
        assert pins("torch")[name_of(name)] == version


def test_each_framework_has_its_own_libtpu():
    torch, jax = pins("torch"), pins("jax")
    assert torch["libtpu"] == "0.0.21"
    assert jax["libtpu"].startswith("0.0.42")
    assert "jax" not in torch
    assert "torch" not in jax
