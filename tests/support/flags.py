"""Every option and argument of every command with hostile values, from click's own lists of them.

    python -m tests.support.flags CALLS.json REPORT.json

runs calls, each in a process forked from one that has imported everything, and writes how each ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import click

from dataprep import cli
from dataprep.arguments import Bytes

HOSTILE = ("nan", "-1", "0", str(2**70), "", "1e400", "\N{SNOWMAN}")
"""For any parameter, whatever its type; besides there is a file, a folder, and a path below a file."""
ENTRIES = ("export", "finetune_mae", "pretrain_mae", "train_resnet", "train_resnet_jax", "train_vit")
EXIT_CODES = {0, 1, 2, 3}
HANGS_S = 240
"""A call that has not ended by then hangs; on a busy machine the slowest takes half a minute."""
PRELOADED = (
    "numpy",
    "pyarrow.parquet",
    "PIL.Image",
    "rich.progress",
    "dataprep.builder.driver",
    "loaders.loader",
    "loaders.bench.run",
)
"""Imported once for all calls."""
QUICK = {"--seconds": "0.1", "--images": "20", "--rounds": "1", "--batches": "1", "--epochs": "1", "--poll-s": "0.05"}
"""Values of options that would make a call take long."""
SMALL = {
    "dataprep-pretrain-mae": {"--model": "mae_vit_micro_patch8", "--input-size": "32"},
    "dataprep-finetune-mae": {"--model": "vit_micro_patch8", "--input-size": "32"},
    "dataprep-train-resnet": {"--model": "tiny_cnn", "--image-size": "32"},
    "dataprep-train-resnet-jax": {"--config.model": "_ResNet1", "--config.image-size": "32"},
    "dataprep-train-vit": {
        "--embed-dim": "32",
        "--num-heads": "2",
        "--num-blocks": "1",
        "--image-size": "32",
        "--patch-size": "8",
    },
}
"""Values of options of training entries whose models would take long, or all of the memory."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the program's name, and its arguments."""

    program: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.program, *map(repr, self.arguments)))


def all_calls(folder: Path, entries: Sequence[str] = ENTRIES) -> Iterator[Call]:
    """One call for every parameter and hostile value, all other parameters being as they should.

    Args:
        folder: Holds `file`, `folder` and `data`, which is an adopted dataset.
        entries: Training entries to call besides `dataprep`; they import their frameworks.
    """
    paths = (str(folder / "file"), str(folder / "folder"), str(folder / "file" / "below"))
    for program, words, command in _commands(entries):
        for parameter in command.params:
            for value in (*HOSTILE, *paths):
                if not (isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count)):
                    yield Call(program, (*words, *_arguments(command, parameter, value, folder)))


def numbers() -> Iterator[tuple[str, click.Parameter]]:
    """The parameters of `dataprep` that are numbers, each with its command."""
    kinds = (click.types.IntParamType, click.types.FloatParamType, Bytes)
    for words, command in _below(cli.group, ()):
        yield from ((" ".join(words), each) for each in command.params if isinstance(each.type, kinds))


def _commands(entries: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...], click.Command]]:
    yield from (("dataprep", *found) for found in _below(cli.group, ()))
    for name in entries:
        yield name, (), import_module(f"train.{name}").command


def _below(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from _below(found, (*words, name))


def _arguments(command: click.Command, hostile: click.Parameter, value: str, folder: Path) -> Iterator[str]:
    options, positional = [], []
    for parameter in command.params:
        small = SMALL.get(command.name or "", {}).get(parameter.opts[0])
        given = value if parameter is hostile else small or _sound(parameter, folder)
        if isinstance(parameter, click.Argument):
            positional += [given] if given is not None else []
        elif given is not None:
            several = parameter.nargs if parameter.nargs > 0 else 1
            options += [parameter.opts[0], *[given] * several]
        elif parameter.opts[0] in ("--dry-run", "--once"):
            options.append(parameter.opts[0])
    yield from (*options, "--", *positional)


def _sound(parameter: click.Parameter, folder: Path) -> str | None:
    """A value that a required parameter takes, and one that keeps another short; None: it is left out."""
    name = parameter.name or ""
    if not parameter.required and name not in ("data_path", "source", "directory"):
        return QUICK.get(parameter.opts[0])
    if isinstance(parameter.type, click.Choice):
        return str(parameter.type.choices[-1])
    known = {"url": folder / "data", "urls": folder / "data", "data_path": folder / "data", "source": folder / "folder"}
    texts = {"accelerator": "v4-8", "device": "cpu", "contact": "mailto:me@example.org", "name": "my-tpu"}
    texts |= {"zone": "us-central2-b", "targets": "gs://no-such-bucket-here/x", "argv": "true"}
    return str(known.get(name) or texts.get(name) or folder / "work" / name)


# The process that runs calls.


def main() -> None:
    calls, report = (Path(argument) for argument in sys.argv[1:])
    for name in PRELOADED:
        import_module(name)
    made = json.loads(calls.read_text())
    deque(_commands(sorted({program for program, _ in made} - {"dataprep"})), maxlen=0)
    with report.open("w") as file:
        for program, arguments in made:
            file.write(json.dumps(_run(program, arguments)) + "\n")
            file.flush()


def _run(program: str, arguments: Sequence[str]) -> tuple[int | str, str, str]:
    """Exit code, or what else became of it; stdout and stderr."""
    files = [Path("stdout"), Path("stderr")]
    child = os.fork()
    if child == 0:
        os.setsid()
        for number, file in enumerate(files, 1):
            os.dup2(os.open(file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _call(program, arguments)
    deadline_s = time.monotonic() + HANGS_S
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if ended[0] == 0:
        os.waitpid(child, 0)
    how = "hangs" if ended[0] == 0 else os.waitstatus_to_exitcode(ended[1])
    out, err = (file.read_text(errors="replace")[-4000:] for file in files)
    return how, out, err


def _call(program: str, arguments: Sequence[str]) -> None:
    sys.argv = [program, *arguments]
    run = cli.main if program == "dataprep" else import_module(f"train.{program}").main
    try:
        run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  what a traceback is due for is what is looked for
        traceback.print_exc()
        code = 99
    else:
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
