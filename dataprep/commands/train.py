"""`dataprep train`: one name for the training programs, which are console scripts of this distribution.

dataprep imports nothing of `train`: a program is found by the name of its script when it is started.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import metadata
from typing import Any, NamedTuple

import click

from dataprep.arguments import READ, Place, Request, command_of, option, request
from dataprep.errors import DISTRIBUTION, UsageError
from dataprep.watching import MAX_TRACE_S, ask_profile

EPILOG = """\b
Examples:
  dataprep train --help
  dataprep train pretrain-mae --help
  dataprep train pretrain-mae --data-path shards/coco-dup5 --output-dir runs/mae --effective-batch-size 256
  dataprep train vit --plan --plan-devices 256
  dataprep train profile gs://bucket/runs/mae --seconds 5

All arguments after ENTRY are passed to its console script unchanged: `dataprep train vit` is `dataprep-train-vit`.
"""


class Entry(NamedTuple):
    """A training program."""

    script: str
    """Name of the console script in setup.cfg."""
    help: str
    """The program's line in the help of `dataprep train`."""


ENTRIES = {
    "pretrain-mae": Entry("dataprep-pretrain-mae", "Pretrain a masked autoencoder."),
    "finetune-mae": Entry("dataprep-finetune-mae", "Fine-tune a pretrained encoder, or train a linear probe on it."),
    "vit": Entry("dataprep-train-vit", "Train a vision transformer of any size, with FSDP."),
    "resnet": Entry("dataprep-train-resnet", "Train a ResNet or another torchvision classifier."),
    "resnet-jax": Entry("dataprep-train-resnet-jax", "Train a ResNet in JAX."),
    "export": Entry("dataprep-export", "Write the weights of a checkpoint for timm and other tools."),
}
"""Training programs by their names in `dataprep train`."""


class _Program(click.Command):
    """A training program, which reads its arguments itself."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = list(args)  # --help too: parsing any of them would need the program
        return []

    def invoke(self, ctx: click.Context) -> Any:
        script = ENTRIES[str(self.name)].script
        start = _find(script)
        sys.argv = [script, *ctx.args]
        return start.load()()


@request
class ProfileRun(Request):
    """Trace a running training job for a few seconds, from any host that can write to its log folder.

    RUN is the folder with the job's log.txt, on disk or in a bucket. Each host of the job that sees this folder writes
    its own trace into plugins/profile there, which TensorBoard's profile plugin and xprof read; no host restarts. A job
    looks for requests every second on a disk, every 12 s in a bucket.
    """

    run: Place = option("Log folder of the training job.", metavar="RUN", kw_only=False, group=READ)
    seconds: float = option(
        "Length of the trace, in seconds; it ends with an update.", default=5.0, low=0.1, high=MAX_TRACE_S, metavar="S"
    )


def _profile(asked: ProfileRun, *, as_json: bool) -> None:
    traces = ask_profile(str(asked.run), asked.seconds, tell=partial(click.echo, err=True))
    click.echo(json.dumps({"traces": traces}) if as_json else "\n".join(traces))


profile_command = command_of(ProfileRun, _profile, "profile", epilog="")


class _Programs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*ENTRIES, "profile"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "profile":
            return profile_command
        name = cmd_name.removeprefix("train-")  # `train-vit`, as in the name of the script
        return _Program(name, short_help=ENTRIES[name].help) if name in ENTRIES else None


@click.group("train", cls=_Programs, epilog=EPILOG, subcommand_metavar="ENTRY [ARGUMENTS]...")
def command() -> None:
    """Train on a dataset: start one of the training programs."""


def _find(script: str) -> metadata.EntryPoint:
    """Return a console script of the installed distribution."""
    try:
        found = metadata.distribution(DISTRIBUTION).entry_points
        return found.select(group="console_scripts", name=script)[script]
    except (metadata.PackageNotFoundError, KeyError):
        raise UsageError(
            f"{script}: not among the console scripts of an installed {DISTRIBUTION}; install it again with pip"
        ) from None
