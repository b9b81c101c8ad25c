"""The pinned packages for TPUs go with setup.cfg, and with each other's absence."""

import configparser
import re

import pytest

from dataprep.cloud.tpu.jobs import FRAMEWORKS
from scripts.check_python import SUPPORTED
from tests.support.markdown import ROOT
from tests.test_setup import pins_of

SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")


def name_of(requirement: str) -> str:
    return re.split(r"[\[=<>]", requirement)[0].lower().replace("_", "-")


def pins(framework: str, python: str) -> dict[str, str]:
    return pins_of(f"dataprep/data/tpu-{framework}.txt", python)


@pytest.mark.parametrize("python", SUPPORTED)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_pins_of_a_framework_hold_what_the_package_needs(framework, python):
    needed = {name_of(line) for line in SETUP["options"]["install_requires"].split()}
    assert needed <= set(pins(framework, python))
    for line in SETUP["options"]["install_requires"].split():
        name, _, least = line.partition(">=")
        pinned = pins(framework, python)[name_of(name)]
        assert [int(part) for part in re.findall(r"\d+", pinned)] >= [int(part) for part in least.split(".")]


@pytest.mark.parametrize("python", SUPPORTED)
def test_the_pinned_torch_is_the_one_of_the_tests(python):
    for line in SETUP["options.extras_require"]["xla"].split():
        name, _, version = line.partition("==")
        assert pins("torch", python)[name_of(name)] == version


@pytest.mark.parametrize("python", SUPPORTED)
def test_the_pinned_jax_is_the_one_of_the_tests(python):
    ours, theirs = pins_of("constraints.txt", python), pins("jax", python)
    assert {name: theirs[name] for name in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint")} == {
        name: ours[name] for name in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint")
    }


@pytest.mark.parametrize(("python", "libtpu"), [("3.11", "0.0.42.1"), ("3.12", "0.0.50.1"), ("3.13", "0.0.50.1")])
def test_each_framework_has_its_own_libtpu(python, libtpu):
    torch, jax = pins("torch", python), pins("jax", python)
    assert torch["libtpu"] == "0.0.21"
    assert jax["libtpu"] == libtpu
    assert "jax" not in torch
    assert "torch" not in jax


@pytest.mark.parametrize("python", ["3.12", "3.13"])
def test_torch_tpu_has_jax_beside_it_and_the_codecs_of_the_tests_but_a_newer_torch(python):
    ours, theirs = pins_of("constraints.txt", python), pins("torch-tpu", python)
    same = ("flax", "google-crc32c", "jax", "msgspec", "numpy", "optax", "orbax-checkpoint", "pillow", "simplejpeg")
    assert {name: theirs[name] for name in same} == {name: ours[name] for name in same}
    assert theirs["torch-tpu"] == "0.2.0"
    assert (2, 11) <= tuple(int(part) for part in theirs["torch"].split(".")[:2]) <= (2, 15)
    assert "torch-xla" not in theirs
