"""Numbers on a training command line: those out of range are refused before anything is opened, by flag and range."""

import dataclasses
import math
import types
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UsageError
from train import finetune_mae, pretrain_mae, train_resnet, train_resnet_jax, train_vit
from train.finetune_mae import Flags as FinetuneFlags
from train.flags.options import Range
from train.optim.schedule import Steps
from train.pretrain_mae import Flags as MAEFlags
from train.train_resnet import Flags as ResNetFlags
from train.train_resnet_jax import Config, DatasetConfig
from train.train_vit import Flags as ViTFlags

COMMANDS = {
    MAEFlags: (pretrain_mae.command, ["--data_path", "x"], "--"),
    FinetuneFlags: (finetune_mae.command, ["--data_path", "x"], "--"),
    ViTFlags: (train_vit.command, [], "--"),
    ResNetFlags: (train_resnet.command, [], "--"),
    Config: (train_resnet_jax.command, ["--workdir", "x"], "--config."),
    DatasetConfig: (train_resnet_jax.command, ["--workdir", "x"], "--config.dataset."),
}
HOSTILE = (math.nan, math.inf, -math.inf, -(2**70), -5, -1, -1e-300, 0, 1, 1.5, 2**31, 2**64, 2**70, 10**400)


def numeric(kind: type[Any]) -> list[tuple[str, type[Any], int]]:
    """Name, type and how many of it, of every field that holds numbers."""
    hints, found = typing.get_type_hints(kind), []
    for each in dataclasses.fields(kind):
        hint = hints[each.name]
        parts = [part for part in typing.get_args(hint) if part is not types.NoneType]
        plain = parts[0] if isinstance(hint, types.UnionType) else hint
        if typing.get_origin(plain) is tuple:
            found.append((each.name, typing.get_args(plain)[0], len(typing.get_args(plain))))
        elif plain in (int, float):
            found.append((each.name, plain, 1))
    return found


FLAGS = [(kind, *each) for kind in COMMANDS for each in numeric(kind)]


@pytest.mark.parametrize(("kind", "name", "number", "count"), FLAGS)
def test_a_number_out_of_range_is_refused_naming_flag_and_range(kind, name, number, count):
    (own,) = (each for each in dataclasses.fields(kind) if each.name == name)
    within = own.metadata["within"]
    assert isinstance(within, Range), "every flag of a number has a range"
    command, required, prefix = COMMANDS[kind]
    refused = [value for value in HOSTILE if isinstance(value, number) and value not in within]
    assert refused
    for value in refused:
        line = [*required, f"{prefix}{name}", *[str(value)] * count]
        with pytest.raises(UsageError) as caught:
            command.main(line, standalone_mode=False)
        assert str(caught.value) == f"{prefix}{name} must be {within}, got {value}"


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize("value", ["nan", "inf", "-1e400", str(2**70), str(-(2**70))])
def test_no_flag_takes_nan_infinity_or_huge_numbers(kind, value):
    command, required, prefix = COMMANDS[kind]
    taken = []
    for name, number, count in numeric(kind):
        if value != str(2**70) if number is float else value.lstrip("-").isdigit():
            try:
                command.main([*required, f"{prefix}{name}", *[value] * count], standalone_mode=False)
            except UsageError as error:
                if f"{prefix}{name} must be " in str(error):
                    continue
            except Exception as error:  # noqa: BLE001  what a user would get as a traceback is told like the rest
                taken.append(f"{name}: {type(error).__name__}")
                continue
            taken.append(name)
    assert taken == []


@given(st.floats(-10, 10), st.floats(0, 10), st.booleans(), st.booleans(), st.one_of(st.floats(), st.integers(-20, 20)))
def test_a_range_contains_the_numbers_between_its_ends(low, width, above, below, value):
    within = Range(low, low + width, above=above, below=below)
    is_low_enough = value < low + width if below else value <= low + width
    assert (value in within) == (
        not math.isnan(value) and (low < value or (low == value and not above)) and is_low_enough
    )


@pytest.mark.parametrize(
    ("within", "text"),
    [
        (Range(1), "1 or more"),
        (Range(0, above=True), "above 0"),
        (Range(0, 1), "0 to 1"),
        (Range(0, 1, below=True), "at least 0 and below 1"),
        (Range(0, 1, above=True), "above 0 and at most 1"),
        (Range(1, 10_000, unset=-1), "1 to 10,000, or -1"),
    ],
)
def test_a_range_is_described_in_words(within, text):
    assert str(within) == text
    assert math.nan not in within
    assert math.inf not in within
    assert (-1 in within) == (within.unset == -1)


def test_a_learning_rate_divided_beyond_floats_range_is_0():
    assert Steps(lr=0.5, divisor=1e300, every_epochs=0.001).at(1.0) == 0
