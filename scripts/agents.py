"""Write docs/agents.md, all commands on one page, and llms.txt, the list of all documents, for programs that read.

    python -m scripts.agents            # writes both files; runs the session of the guide first
    python -m scripts.agents --check    # exits 1 if `--help` or a document has changed; writes nothing

The guide describes each command with the command's `--help`; the part before the session is written by hand. The
session is run as shown, here and in the tests, and lists the keys of the JSON objects that the commands print.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from dataprep.cli import group
from tests.support.tutorials import printed, surroundings

ROOT = Path(__file__).resolve().parents[1]
GUIDE, LIST = "docs/agents.md", "llms.txt"
SESSION, COMMANDS = "## A session\n", "## Commands\n"


class Step(NamedTuple):
    """A command of the session, and its purpose."""

    purpose: str
    command: str


BUILD = "dataprep build coco-dup5 --source originals --format webdataset --allow-partial --num-shards 4"
LAION = "dataprep build laion --source web/laion.parquet --output web-shards --format webdataset"
POLITE = "--contact mailto:you@example.org --allow-network 127.0.0.0/8 --json"
MICRO = "--model mae_vit_micro_patch8 --patch-size 4 --decoder-embed-dim 64 --decoder-depth 1 --input-size 32"
STEPS = (
    Step("Small originals, to try every command.", "dataprep demo-data coco originals --images 60 --json"),
    Step("What a build would write.", f"{BUILD} --output gs://my-data/coco --dry-run --json"),
    Step("The build. The same command continues an interrupted build.", f"{BUILD} --output gs://my-data/coco --json"),
    Step("Progress of a build; at the end, `state` is `whole`.", "dataprep watch gs://my-data/coco --once --json"),
    Step(
        "Compare every byte with the manifest; if `verdict` is not `whole`, `findings` lists the differences.",
        "dataprep verify gs://my-data/coco --deep --json",
    ),
    Step("Counts, sizes and classes.", "dataprep inspect gs://my-data/coco --json"),
    Step(
        "Convert it: smaller images, different format.",
        "dataprep convert gs://my-data/coco --output small --format tfrecord --resize 128 --json",
    ),
    Step("Cards for the Hugging Face Hub and for search engines.", "dataprep card small --json"),
    Step(
        "Select part of it as a view, which loaders and commands open by its `url`.",
        "dataprep select small --name wide --where 'width > height' --json",
    ),
    Step(
        "Add a column: one value per sample, which loaders deliver as a field.",
        "dataprep map small --column sharpness=sharpness --json",
    ),
    Step(
        "Delete samples from storage; this example names one that does not exist.",
        "echo train2017/nobody > gone.txt && dataprep remove small --keys gone.txt --allow-missing --json",
    ),
    Step("Convert it to class folders.", "dataprep convert small --output folder --format imagefolder --json"),
    Step(
        "Make another tool's data readable without a copy; here, pictures in class folders.",
        "cp -r folder/train pictures && dataprep adopt pictures --index index --json",
    ),
    Step(
        "Serve small images for a table of URLs, to simulate the web.",
        "dataprep demo-data laion web --images 20 --port 8766 --serve > server.log 2>&1 & echo $! > server.pid;"
        " until grep -q serving server.log; do sleep 0.2; done",
    ),
    Step("Download the images politely, and pack them.", f"{LAION} {POLITE}"),
    Step("Try failed rows again.", f"dataprep retry-failed web-shards {POLITE}"),
    Step(
        "Ask the sites again whether the images may be used.", f"dataprep recheck web-shards --output recheck {POLITE}"
    ),
    Step("Stop the server.", "kill $(cat server.pid)"),
    Step(
        "Measure the loader's speed on this data.",
        "dataprep bench small --batch-size 16 --image-size 64 --rounds 1 --batches 4 --json",
    ),
    Step(
        "Find out what a run waits for; `--device xla` trains a real model instead of simulating a device.",
        "dataprep diagnose small --device simulated:20000 --batch-size 16 --seconds 1 --json",
    ),
    Step(
        "Train; with `--resume automatic`, the same command resumes the run after an interruption.",
        f"dataprep train pretrain-mae --data-path small --output-dir runs/mae --device cpu {MICRO} --batch-size 16"
        " --epochs 1 --warmup-epochs 0 --resume automatic",
    ),
    Step(
        "Check whether a TPU's hosts can feed it.",
        "dataprep plan-input --accelerator v4-32 --images-per-s 13653 --json",
    ),
    Step(
        "Where a bucket is, and what reading it from a zone costs.",
        "dataprep check-region gs://my-data/coco --zone us-central1-a --epochs 90 --json",
    ),
    Step(
        "What a copy to another bucket would cost (dry run).",
        "dataprep replicate gs://my-data/coco --to gs://my-copies/coco --dry-run --json",
    ),
    Step(
        "Settings of a bucket for a TPU (dry run).",
        "dataprep create-bucket gs://my-shards --near us-central2-b --project my-project --dry-run --json",
    ),
    Step(
        "Chips, hosts and zones of a TPU; next come `create`, `setup`, `run`, `status` and `delete`, each with"
        " `--dry-run`.",
        "dataprep tpu plan v4-32 --zone us-central2-b --json",
    ),
)
"""Every command once, ordered so that each finds what it needs. A test checks that none is missing."""


class Command(NamedTuple):
    """A command without subcommands."""

    words: str
    """E.g. `dataprep build folder`."""
    context: click.Context


def leaves(context: click.Context | None = None, words: str = "dataprep") -> Iterator[Command]:
    """Yield all commands, in `--help` order."""
    context = context or click.Context(group, info_name="dataprep")
    command = context.command
    if not isinstance(command, click.Group):
        yield Command(words, context)
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if below is not None and not below.hidden:
            yield from leaves(click.Context(below, info_name=name, parent=context), f"{words} {name}")


def describe(command: Command) -> str:
    """Return a command's part of the guide: what it does, its usage, options, examples and exit codes."""
    context, found = command.context, command.context.command
    purpose, *_ = (found.help or "").replace("\b\n", "").split("\n\n")
    usage = " ".join([command.words, *found.collect_usage_pieces(context)])
    options = [parameter.get_help_record(context) for parameter in found.get_params(context)]
    lines = [
        f"- `{name}`: {' '.join(text.split())}" for name, text in filter(None, options) if text and "--help" not in name
    ]
    parts = [
        f"### {command.words}",
        " ".join(purpose.split()),
        f"    {usage}",
        "\n".join(lines),
        *_ends(found.epilog or ""),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _ends(epilog: str) -> Iterator[str]:
    """Yield the examples and the exit codes that end a command's help."""
    for paragraph in epilog.replace("\b\n", "").split("\n\n"):
        lines = [line.strip() for line in paragraph.strip().splitlines()]
        if lines[:1] == ["Examples:"]:
            yield "Examples:"
            yield "\n".join(f"    {line}" for line in lines[1:])
        elif lines:
            yield " ".join(lines)


def keys(output: str) -> str:
    """Return a command's JSON output with only its keys, as the guide shows it; `…` if there is none."""
    objects = [line for line in output.splitlines() if line.startswith("{")]
    if not objects:
        return "…"
    shown = ", ".join(f'"{key}": …' for key in json.loads(objects[-1]))
    return "…\n{" + shown + "}\n…"


def session(run: Callable[[str], str]) -> str:
    """Return the guide's session.

    Args:
        run: Runs a command in the session's folder, and returns what it prints.
    """
    parts = [
        SESSION,
        "Every command once, on data that the first one writes. Values are omitted; all keys are shown.\n",
    ]
    for step in STEPS:
        parts.append(f"{step.purpose}\n```console\n$ {step.command}\n{keys(run(step.command))}\n```\n")
    return "\n".join(parts)


def reference() -> str:
    """Return the guide's list of commands."""
    return "\n".join([COMMANDS, *(describe(command) for command in leaves())])


def document_list() -> str:
    """Return llms.txt (llmstxt.org): what the project is, and every document with its first sentence."""
    readme = (ROOT / "README.md").read_text()
    lead = readme.split("\n\n")[1]
    sections = {"Documents": ["README", "DATA", "docs/agents", "docs/*", "docs/tutorials/*", "benchmarks/README"]}
    sections["Optional"] = ["CONTRIBUTING", "CHANGELOG", "SECURITY", "docs/decisions/*"]
    parts, listed = [f"# dataprep\n\n> {lead}\n"], set[Path]()
    for title, patterns in sections.items():
        lines = []
        for path in (path for pattern in patterns for path in sorted(ROOT.glob(f"{pattern}.md"))):
            if path not in listed:
                listed.add(path)
                lines.append(_entry(path))
        parts.append(f"## {title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _entry(path: Path) -> str:
    heading, *paragraphs = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL).split("\n\n")
    prose = (text for text in paragraphs if re.match(r"[A-Z`]|\[\D", text.lstrip()))
    first = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(next(prose, "").split()))
    sentence = re.split(r"(?<=[.:]) ", first)[0].rstrip(":.")
    return f"- [{heading.strip().removeprefix('# ')}]({path.relative_to(ROOT)}): {sentence}"


def _shown(command: str, environment: Mapping[str, str]) -> str:
    output = printed(GUIDE, ["bash", "-c", command], environment)
    if output is None:
        sys.exit(f"{command}: undecided, because other programs are busy; run it again on an idle machine")
    return output


def main() -> int:
    """Write or compare the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], prog="python -m scripts.agents")
    parser.add_argument("--check", action="store_true", help="compare with --help and the documents; write nothing")
    options = parser.parse_args()
    guide = ROOT / GUIDE
    if options.check:
        differs = [GUIDE] if not guide.read_text().endswith(reference()) else []
        differs += [LIST] if (ROOT / LIST).read_text() != document_list() else []
        for name in differs:
            print(f"{name} is out of date; regenerate it: python -m scripts.agents")
        return 1 if differs else 0
    commands = " ".join(step.command for step in STEPS)
    with tempfile.TemporaryDirectory() as folder, surroundings(commands, Path(folder)) as environment:
        shown = session(partial(_shown, environment=environment))
    head = guide.read_text().partition(SESSION)[0]
    guide.write_text(f"{head}{shown}\n{reference()}")
    (ROOT / LIST).write_text(document_list())
    return 0


if __name__ == "__main__":
    sys.exit(main())
