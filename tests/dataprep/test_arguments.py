"""Values of options, and options for one value that a command line gives twice."""

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import distribution

import click
import pytest

from dataprep.arguments import (
    MOST_COUNT,
    Bytes,
    Finite,
    Request,
    RequestCommand,
    Whole,
    command_of,
    option,
    request,
    spelled,
)
from dataprep.cli import group
from dataprep.commands.build import command as build
from dataprep.commands.build import command_named
from dataprep.commands.build_laion import command as build_laion
from dataprep.commands.train import ENTRIES
from dataprep.errors import DISTRIBUTION, UsageError
from tests.support.builds import dataprep, succeeds
from tests.support.flags import numbers

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
    assert {name for name, each in found.items() if not isinstance(each, RequestCommand)} == passed_on


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


@click.command(cls=RequestCommand)
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
    run = succeeds(*BUILD, "--source", "b.zip", "--help")
    assert run.stdout.startswith("Usage:")


@request
class Sizes(Request):
    """Sizes."""

    headings = ("First", "Other")

    sides: tuple[float, float] | None = option("Two sides.", default=None, low=0, high=1, group="First")
    count: int = option("A count.", default=-1, low=1, unset=-1, also=("--number",))
    is_on: bool = option("A switch.", default=False, valued=True)


def sizes(*words: str) -> Sizes:
    """The request that a command line makes."""
    seen: list[Sizes] = []
    command = command_of(Sizes, lambda asked, as_json: seen.append(asked), "sizes", epilog="")
    command.main(list(words), standalone_mode=False)
    return seen[0]


def test_a_request_knows_what_the_command_line_gives():
    class Given(Sizes):
        @classmethod
        def of_command_line(cls, given, **values):
            return given, values

    seen = []
    command = command_of(Given, lambda asked, as_json: seen.append(asked), "sizes", epilog="")
    command.main(["--number", "3"], standalone_mode=False)
    assert seen == [({"count"}, {"sides": None, "count": 3, "is_on": False})]


def test_an_option_of_two_values_of_an_unset_number_and_of_other_spellings():
    assert sizes() == Sizes()
    assert sizes("--sides", "0.2", "0.8", "--number", "3", "--is-on") == Sizes(sides=(0.2, 0.8), count=3, is_on=True)
    assert sizes("--is-on=True", "--count=2") == Sizes(count=2, is_on=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sides": (0.2,)}, "`sides` must be 2 numbers, got (0.2,)"),
        ({"sides": (0.2, 2)}, "`sides` must be 0 to 1, got 2"),
        ({"count": 0}, "`count` must be 1 or more, or -1, got 0"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_their_fields(values, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        Sizes(**values)


def test_an_error_spells_a_field_as_its_option():
    assert spelled(Sizes, "`is_on`, `number` and `other`") == "--is-on, --number and `other`"


@pytest.mark.parametrize("value", ["nan", "-inf", "1e400", str(2**70), ""])
def test_every_numeric_option_refuses_unusable_numbers(value):
    """An option either refuses it, naming what it got, or turns it into a number that a machine can have."""
    taken = []
    for command, parameter in numbers():
        try:
            number = parameter.type.convert(value, parameter, None)
        except click.BadParameter:
            continue
        if not (abs(number) <= MOST_COUNT or isinstance(parameter.type, Finite | Bytes)) or number in (float("inf"),):
            taken.append(f"{command} {parameter.opts[0]} {value}: {number}")
    assert taken == []


UNITS = "kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB"


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        *((Finite(min=None), value, f"got '{value}', expected a finite number") for value in ("nan", "inf", "-inf")),
        (Bytes(), "9" * 400 + ".0", f"got '{'9' * 400}.0', expected 8 EiB at most"),
        (Bytes(), "2 XB", "got '2 XB', expected a size such as 256MiB, 2 TB or 1048576; its unit is bytes, or one of "
                          f"{UNITS}"),
        (Whole(1, MOST_COUNT), str(2**70), f"{2**70} is not in the range 1<=x<={MOST_COUNT}."),
    ],
)  # fmt: skip
def test_numbers_and_sizes_that_no_machine_has_are_refused(kind, value, message):
    with pytest.raises(click.BadParameter) as refused:
        kind.convert(value, None, None)
    assert refused.value.message == message


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize(("unit", "size"), [
    ("", 1), ("kB", 10**3), ("MB", 10**6), ("GB", 10**9), ("TB", 10**12), ("PB", 10**15),
    ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40), ("PiB", 2**50),
])  # fmt: skip
def test_sizes_have_decimal_and_binary_units(unit, size, space):
    for written in (unit, unit.lower(), unit.upper()):
        assert Bytes().convert(f"2{space}{written}", None, None) == 2 * size
    assert Bytes().convert(f"1.5{space}{unit}", None, None) == int(1.5 * size)


def test_defaults_in_words_are_shown_without_parentheses():
    options = {
        option.opts[0]: option
        for command in (build.get_command(click.Context(build), "folder"), build_laion)
        for option in command.params
    }
    for name, shown in (("--workers", "number of cores"), ("--shard-bytes", "256MiB"), ("--max-body", "20MiB")):
        assert f"[default: {shown}" in str(options[name].get_help_record(click.Context(build_laion)))


def test_a_missing_option_is_named_as_missing():
    run = dataprep("build", "folder", "--source", "a")
    assert (run.returncode, "Error: Missing option '--format'." in run.stderr) == (2, True)
