"""How an entry ends: its exit code, and one line for what is expected to go wrong."""

import click
import pytest

from dataprep.errors import UsageError
from train.flags.options import EntryCommand, run_entry


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


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        (0, 0, ""),
        (143, 143, ""),
        (UsageError("no such thing"), 2, "entry: no such thing\n"),
        (KeyboardInterrupt(), 130, "\n"),
        (MemoryError(), 1, "entry: out of memory with this model and batch; choose a smaller model or batch\n"),
        (
            RuntimeError("CUDA out of memory. Tried"),
            1,
            "entry: out of memory with this model and batch; choose a smaller model or batch\n",
        ),
        (
            RuntimeError("RESOURCE_EXHAUSTED: 3 GiB"),
            1,
            "entry: out of memory with this model and batch; choose a smaller model or batch\n",
        ),
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
