"""Options of the training programs: their ranges, their spellings, and the groups of their help."""

import dataclasses
import math
import types
import typing
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dataprep.errors import UsageError
from train import export, finetune_mae, pretrain_mae, train_resnet, train_resnet_jax, train_vit
from train.flags.options import EntryCommand, run_entry
from train.optim.schedule import Steps

REQUESTS = {
    pretrain_mae.PretrainMAE: {"data_path": "x"},
    finetune_mae.FinetuneMAE: {"data_path": "x"},
    train_vit.TrainViT: {},
    train_resnet.TrainResNet: {},
    train_resnet_jax.Config: {"workdir": "x"},
}
"""Requests with what they need."""
PROGRAMS = (pretrain_mae, finetune_mae, train_vit, train_resnet, train_resnet_jax, export)
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


@pytest.mark.parametrize(
    ("kind", "name", "number", "count"), [(kind, *each) for kind in REQUESTS for each in numeric(kind)]
)
def test_a_number_out_of_its_range_is_refused_by_its_field(kind, name, number, count):
    (spec,) = (each.metadata["option"] for each in dataclasses.fields(kind) if each.name == name)
    assert spec.low is not None, "every number has a range"
    below = [value for value in HOSTILE if value < spec.low or (spec.open_low and value == spec.low)]
    above = [value for value in HOSTILE if spec.high is not None and value > spec.high]
    for value in {*below, *above, math.nan, math.inf} - {spec.unset}:
        if type(value) in (number, float):
            with pytest.raises(UsageError, match=f"^`{name}` must be "):
                kind(**REQUESTS[kind], **{name: (value,) * count if count > 1 else value})


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("value", ["nan", "inf", "-1e400", str(2**70), str(-(2**70))])
def test_no_option_takes_nan_infinity_or_huge_numbers(kind, value):
    (command,) = (each.command for each in PROGRAMS if each.command.kind is kind)
    options, taken = {each.name: each for each in command.params}, []
    for name, number, count in numeric(kind):
        if value != str(2**70) if number is float else value.lstrip("-").isdigit():
            found = CliRunner().invoke(
                command,
                ["--workdir=x"] * (kind is train_resnet_jax.Config)
                + ["--data-path=x"] * ("data_path" in options)
                + [options[name].opts[0], *[value] * count],
            )
            said = f"{found.output}{found.exception}"
            if not (isinstance(found.exception, SystemExit | UsageError) and options[name].opts[0] in said):
                taken.append((name, said))
    assert taken == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_is_spelled_with_dashes_and_taken_with_underscores(program):
    context = click.Context(program.command, **program.command.context_settings)
    parser = program.command.make_parser(context)
    for each in program.command.get_params(context):
        for spelling in (*each.opts, *each.secondary_opts) if isinstance(each, click.Option) else ():
            assert "_" not in spelling
            words = f"--{spelling[2:].replace('-', '_')}", "1", "1"
            assert each.is_eager or each.name in parser.parse_args(list(words))[0]


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_is_in_groups_and_rare_options_are_behind_help_all(program):
    runner = CliRunner()
    short, full = (runner.invoke(program.command, [word]).output for word in ("-h", "--help-all"))
    if program is export:
        assert "--help-all" not in short
        return
    assert "Training:" in short
    assert "--help-all shows" in short
    rare = {
        option.opts[0]
        for option in program.command.params
        for field in dataclasses.fields(program.command.kind)
        if field.name == option.name and field.metadata["option"].rare
    }
    assert rare
    assert [word for word in rare if f"  {word}" in short or word not in full] == []


def test_a_misspelt_option_is_answered_with_the_nearest_one():
    found = CliRunner().invoke(pretrain_mae.command, ["--data_pth", "x"])
    assert found.exit_code == 2
    assert "--data-path" in found.output


def test_an_error_of_the_command_line_names_the_option():
    with pytest.raises(UsageError, match="--start-epoch 3 of 3 epochs"):
        pretrain_mae.command.main(["--data_path=x", "--epochs=3", "--start_epoch=3"], standalone_mode=False)


def test_a_learning_rate_divided_beyond_floats_range_is_0():
    assert Steps(lr=0.5, divisor=1e300, every_epochs=0.001).at(1.0) == 0


def ending(capsys, monkeypatch, what) -> tuple[int, str]:
    """Exit code and stderr of an entry that returns or raises something."""

    @click.command("entry", cls=EntryCommand)
    def command() -> int:
        if isinstance(what, int):
            return what
        raise what

    monkeypatch.setattr("sys.argv", ["entry"])
    with pytest.raises(SystemExit) as caught:
        run_entry(command)
    return caught.value.code, capsys.readouterr().err


OUT_OF_MEMORY = "entry: out of memory with this model and batch; choose a smaller model or batch\n"


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        (0, 0, ""),
        (143, 143, ""),
        (UsageError("no such thing"), 2, "entry: no such thing\n"),
        (KeyboardInterrupt(), 130, "\n"),
        (MemoryError(), 1, OUT_OF_MEMORY),
        (RuntimeError("CUDA out of memory. Tried"), 1, OUT_OF_MEMORY),
        (RuntimeError("RESOURCE_EXHAUSTED: 3 GiB"), 1, OUT_OF_MEMORY),
    ],
)
def test_an_entry_ends_with_an_exit_code_and_at_most_one_line(capsys, monkeypatch, what, code, said):
    assert ending(capsys, monkeypatch, what) == (code, said)


def test_an_unexpected_error_keeps_its_traceback(monkeypatch):
    @click.command("entry", cls=EntryCommand)
    def command() -> int:
        raise RuntimeError("a defect")

    monkeypatch.setattr("sys.argv", ["entry"])
    with pytest.raises(RuntimeError, match="a defect"):
        run_entry(command)


@pytest.mark.parametrize("program", [each for each in PROGRAMS if each is not export])
def test_options_without_a_meaning_are_refused_with_the_reason(program):
    for name in program.REFUSED:
        option = program.command.kind.option_of(name)
        with pytest.raises(UsageError, match=f"^{option}: .{{20,}}"):
            program.command.main(
                ["--workdir=x"] * (program is train_resnet_jax) + [f"{option}=1"], standalone_mode=False
            )
