"""Options for one value that a command line gives twice."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import distribution

import click
import pytest

from dataprep.arguments import StrictCommand
from dataprep.cli import group
from dataprep.commands.build import command_named
from dataprep.commands.train import ENTRIES
from dataprep.errors import DISTRIBUTION, UsageError
from tests.support.builds import dataprep

BUILD = ["build", "folder", "--source", "a.zip", "--output", "o", "--format", "webdataset"]


def commands(of: click.Group, name: str = "dataprep") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that a group leads to, by the words that call it."""
    context = click.Context(of)
    for word in of.list_commands(context):
        found = of.get_command(context, word)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, f"{name} {word}")
        else:
            yield f"{name} {word}", found


def entries() -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of the training programs."""
    scripts = distribution(DISTRIBUTION).entry_points.select(group="console_scripts")
    for entry in ENTRIES.values():
        (script,) = scripts.select(name=entry.script)
        yield entry.script, import_module(script.module).command


def test_every_command_refuses_several_values_for_one():
    found = {**dict(commands(group)), **dict(entries()), "dataprep build module:NAME": command_named("module:NAME")}
    passed_on = {f"dataprep train {name}" for name in ENTRIES}
    assert {name for name, each in found.items() if not isinstance(each, StrictCommand)} == passed_on


REFUSED = {
    "a second source": (
        [*BUILD, "--source", "b.zip"],
        "--source takes one value and is given 2: a.zip and b.zip; give one of them, or a folder that "
        "holds them: mkdir all && mv a.zip b.zip all, and then --source all",
    ),
    "three sizes": (
        [*BUILD, "--resize", "224", "--resize=256", "--resize", "288"],
        "--resize takes one value and is given 3: 224, 256 and 288; give one of them",
    ),
    "the loader benchmark": (
        ["bench", ".", "--image-size", "64", "--image-size", "32"],
        "--image-size takes one value and is given 2: 64 and 32; give one of them",
    ),
    "a training program": (
        ["train", "vit", "--plan", "--epochs", "1", "--epochs", "2"],
        "--epochs takes one value and is given 2: 1 and 2; give one of them",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_several_values_for_one_are_wrong_usage(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, message = REFUSED[case]
    run = dataprep(*arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.endswith(f": {message}\n")
    assert list(tmp_path.iterdir()) == []


@click.command(cls=StrictCommand)
@click.option("--one", "-o")
@click.option("--many", multiple=True)
@click.option("--loud/--quiet", default=True)
@click.option("--pair", nargs=2)
@click.option("-v", "verbosity", count=True)
@click.argument("words", nargs=-1)
def example(**values: object) -> dict[str, object]:
    """Return the values that were parsed."""
    return values


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--one a -o b", "--one takes one value and is given 2: a and b; give one of them"),
        ("--loud --quiet", "--loud and --quiet are both given; leave one of them out"),
        ("--pair a b --pair a c", "--pair takes one value and is given 2: a b and a c; give one of them"),
    ],
)
def test_all_kinds_of_options_for_one_value(line, message):
    with pytest.raises(UsageError) as error:
        example(line.split(), standalone_mode=False)
    assert str(error.value) == message


def test_what_contradicts_nothing_is_accepted():
    line = "--one a --one a --many x --many y --loud --loud -vv -v word --pair a b -- --one c"
    assert example(line.split(), standalone_mode=False) == {
        "one": "a",
        "many": ("x", "y"),
        "loud": True,
        "pair": ("a", "b"),
        "verbosity": 3,
        "words": ("word", "--one", "c"),
    }


def test_help_is_shown_beside_values_that_contradict_each_other():
    run = dataprep(*BUILD, "--source", "b.zip", "--help")
    assert run.returncode == 0
    assert run.stdout.startswith("Usage:")
