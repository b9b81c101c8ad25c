"""`dataprep tpu manifest`: a build and a training on GKE, as a JobSet that Kueue can admit."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dataprep.arguments import StrictCommand
from dataprep.cloud.accelerators import parse_accelerator
from dataprep.cloud.tpu.jobs import FRAMEWORKS
from dataprep.cloud.tpu.manifest import MODES, BuildParts, ManifestRequest, job_set
from dataprep.cloud.tpu.manifest import new_queue as queue_of
from dataprep.commands.options import COUNT, WHOLE, json_option
from dataprep.commands.tpu_options import examples, note
from dataprep.errors import UsageError
from dataprep.messages import shell_words

_FOLDED_CHARACTERS = 110


@click.command(
    "manifest",
    cls=StrictCommand,
    context_settings={"ignore_unknown_options": True},
    epilog=examples(
        "tpu manifest mae --type v6e-16 --image IMAGE --queue team-a -- dataprep-pretrain-mae --resume automatic",
        "tpu manifest mae --type tpu7x-2x2x4 --image IMAGE --mode flex-start --max-run 3d --queue team-a \\\n"
        "    --output mae.yaml \\\n"
        "    --build 'coco-dup5 --source gs://bucket/originals --output gs://bucket/coco-dup5 --format tfrecord' \\\n"
        "    --parts 16 -- dataprep-pretrain-mae --data_path gs://bucket/coco-dup5 --resume automatic",
    ),
)
@click.argument("name")
@click.option("--type", "accelerator", required=True, metavar="TYPE", help="TPU, such as v6e-16 or tpu7x-2x2x4.")
@click.option("--image", required=True, help="Container image with this package and the training's framework.")
@click.option("--build", "build", metavar="'DATASET …'", help="Words of a dataprep build that runs first, in parts.")
@click.option("--parts", type=COUNT, default=8, show_default=True, help="Parts of the build, each a pod.")
@click.option("--part-cpu", default="4", show_default=True, help="CPUs of a part.")
@click.option("--part-memory", default="3Gi", show_default=True, help="Memory of a part.")
@click.option("--part-disk", default="4Gi", show_default=True, help="Disk of a part.")
@click.option("--queue", metavar="NAME", help="Local queue of Kueue that admits the JobSet.  [default: no Kueue]")
@click.option(
    "--new-queue",
    is_flag=True,
    help="Write this queue, too, with quotas for exactly this JobSet; for administrators.",
)
@click.option("--namespace", help="Namespace of Kubernetes.")
@click.option("--service-account", metavar="NAME", help="Service account of Kubernetes, bound to one of Google Cloud.")
@click.option(
    "--mode", type=click.Choice(MODES), default="on-demand", show_default=True, help="How the TPU nodes are provided."
)
@click.option("--reservation", metavar="NAME", help="Reservation, with --mode reservation.")
@click.option("--max-run", metavar="DURATION", help="Time for which --queue asks for flex-start nodes.  [default: 7d]")
@click.option(
    "--max-restarts", type=WHOLE, default=10, show_default=True, help="Failures after which the JobSet starts again."
)
@click.option(
    "--framework",
    type=click.Choice(list(FRAMEWORKS)),
    default="torch",
    show_default=True,
    help="Framework whose environment variables are set.",
)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write.  [default: standard output]"
)
@json_option
@click.argument("argv", nargs=-1, required=True, metavar="-- COMMAND…")
def manifest_command(
    name: str,
    accelerator: str,
    build: str | None,
    framework: str,
    new_queue: bool,
    output: Path | None,
    as_json: bool,
    argv: tuple[str, ...],
    **options: Any,
) -> None:
    """Write a JobSet for GKE: with --build a build in parts, then the training on a TPU, with restarts when its nodes
    are taken away.

    Nothing is sent to a cluster: apply the file with kubectl. The cluster needs JobSet and, for --queue, Kueue.
    """
    found = parse_accelerator(accelerator)
    parts = {key: options.pop(key) for key in ("parts", "part_cpu", "part_memory", "part_disk")}
    request = ManifestRequest(
        name=name,
        accelerator=found,
        training=argv,
        environment=FRAMEWORKS[framework],
        build=None if build is None else _build_parts(build, **parts),
        **options,
    )
    documents = [*(queue_of(request) if new_queue else []), job_set(request)]
    for line in (found.note, _resume_note(argv)):
        if line:
            note(line)
    text = json.dumps({"name": name, "documents": documents}) if as_json else as_yaml(documents)
    if output is None:
        click.echo(text, nl=as_json)
        return
    try:
        output.write_text(as_yaml(documents), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {output}: cannot be written ({error.strerror}); choose another file") from error
    if as_json:
        click.echo(text)
    note(f"{output}: written; kubectl apply -f {shell_words(str(output))}")


def as_yaml(documents: Sequence[dict[str, object]]) -> str:
    """Return documents as YAML, in the order of their keys; values that occur twice are written twice."""
    import yaml

    plain = json.loads(json.dumps(documents))  # equal values are no longer one object, which YAML would refer to
    text: str = yaml.safe_dump_all(plain, sort_keys=False, width=_FOLDED_CHARACTERS, allow_unicode=True)
    return text


def _build_parts(words: str, *, parts: int, part_cpu: str, part_memory: str, part_disk: str) -> BuildParts:
    try:
        argv = shlex.split(words)
    except ValueError as error:
        raise UsageError(f"--build {words!r}: {error}; quote it as for a shell") from None
    if not argv or argv[0].startswith("-") or any(word.split("=")[0] == "--part" for word in argv):
        raise UsageError("--build: expected the words after `dataprep build`, a dataset first, without --part")
    return BuildParts(argv=["dataprep", "build", *argv], parts=parts, cpu=part_cpu, memory=part_memory, disk=part_disk)


def _resume_note(argv: tuple[str, ...]) -> str:
    """Return a note if a training would begin anew after a restart."""
    if argv[0] != "dataprep-pretrain-mae" or any(word.split("=")[0] == "--resume" for word in argv):
        return ""
    return "the training begins anew when its nodes are taken away; add --resume automatic"
