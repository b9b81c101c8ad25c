import click
import pytest

from dataprep.arguments import MOST_COUNT, Bytes, Finite
from dataprep.commands.build import command as build
from dataprep.commands.build_laion import command as build_laion
from dataprep.commands.options import COUNT
from tests.support.flags import numbers


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


def test_nan_and_infinity_are_refused():
    for value in ("nan", "inf", "-inf"):
        with pytest.raises(click.BadParameter, match=f"got '{value}', expected a finite number"):
            Finite(min=None).convert(value, None, None)


def test_a_size_beyond_every_disk_is_refused():
    with pytest.raises(click.BadParameter, match="expected 8 EiB at most"):
        Bytes().convert("9" * 400 + ".0", None, None)


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize(("unit", "size"), [
    ("", 1), ("kB", 10**3), ("MB", 10**6), ("GB", 10**9), ("TB", 10**12), ("PB", 10**15),
    ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40), ("PiB", 2**50),
])  # fmt: skip
def test_sizes_have_decimal_and_binary_units(unit, size, space):
    for written in (unit, unit.lower(), unit.upper()):
        assert Bytes().convert(f"2{space}{written}", None, None) == 2 * size
    assert Bytes().convert(f"1.5{space}{unit}", None, None) == int(1.5 * size)


def test_a_size_of_another_unit_is_refused_with_the_units_that_there_are():
    with pytest.raises(click.BadParameter) as refused:
        Bytes().convert("2 XB", None, None)
    assert refused.value.message == (
        "got '2 XB', expected a size such as 256MiB, 2 TB or 1048576; its unit is bytes, or one of kB, MB, GB, TB, PB, "
        "KiB, MiB, GiB, TiB, PiB"
    )


def test_defaults_in_words_are_shown_without_parentheses():
    options = {
        option.opts[0]: option
        for command in (build.get_command(click.Context(build), "folder"), build_laion)
        for option in command.params
    }
    for name, shown in (("--workers", "cores of this machine"), ("--shard-bytes", "256MiB"), ("--max-body", "20MiB")):
        assert f"[default: {shown}" in str(options[name].get_help_record(click.Context(build_laion)))


def test_a_count_beyond_every_machine_is_refused_with_its_range():
    with pytest.raises(click.BadParameter, match=f"{2**70} is not in the range 1<=x<={MOST_COUNT}"):
        COUNT.convert(str(2**70), None, None)
