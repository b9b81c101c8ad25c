"""`dataprep tpu` in this process, and what it started on the workers of a stand-in for a TPU."""

from __future__ import annotations

from click.testing import CliRunner, Result

from dataprep.cloud.gcloud import Gcloud
from dataprep.cloud.tpu.command_lines import Place, Target
from dataprep.cloud.tpu.fleet import Fleet
from dataprep.commands.tpu import command
from dataprep.errors import DataprepError
from tests.support.fake_gcloud import FakeCloud

NAME, ZONE = "my-tpu", "us-central2-b"
QUICK = ("--poll-s", "0.3")


def tpu(action: str, *words: str, input: str | None = None) -> Result:
    """Call a command that may fail in its own way; expected errors are raised."""
    result = CliRunner().invoke(command, [action, NAME, "--zone", ZONE, *words], input=input)
    if isinstance(result.exception, DataprepError) or (
        result.exception and not isinstance(result.exception, SystemExit)
    ):
        raise result.exception
    return result


def two_workers() -> Fleet:
    """Return the workers 0 and 1, without asking gcloud for them."""
    target = Target(place=Place(name=NAME, zone=ZONE), api="tpu", instances=("0", "1"))
    return Fleet(Gcloud(lambda _: None), target)


def starts(cloud: FakeCloud, worker: int) -> list[str]:
    """Return a line for every time that the program of `counting` began."""
    path = cloud.home(worker) / "starts"
    return path.read_text().splitlines() if path.exists() else []


def counting(then: str = "") -> list[str]:
    """Return a program that writes down its process before it does the rest."""
    return ["sh", "-c", f'echo $$ >> "$HOME/starts"; {then}']
