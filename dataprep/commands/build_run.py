"""The part of `dataprep build` that all datasets share: options, region check, engine, dry run, output."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import click

from dataprep.builder.cards import CARDS, own_cards, write_cards
from dataprep.builder.driver import BuildResult, prepare, refuse_output, run_build
from dataprep.builder.finished import numbering_faults
from dataprep.builder.job import Engine
from dataprep.builder.merge import rejects_too_many
from dataprep.builder.plan import Plan
from dataprep.builder.remains import card_plan
from dataprep.builder.request import BuildRequest
from dataprep.cloud.placement import guard
from dataprep.commands.options import json_option, stall_option, workers_option
from dataprep.commands.progress import BuildProgress
from dataprep.commands.region_options import (
    beside_option,
    named_place,
    place_of_workers,
    region_policy_option,
    runs_here,
    tpu_option,
)
from dataprep.dataset.manifest import manifest_document
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.errors import DataprepError, SourceError, StorageError, UsageError
from dataprep.messages import counted, shell_words
from dataprep.storage import open_storage
from pipelines.engines import LOCAL, engine_module
from pipelines.parts import Part, part_of
from pipelines.protocol import DetachedJob, EngineChoice, EngineWork

_OUTPUT_ADVICE = "choose a bucket in the region of the reader, or name the reader with --beside or --tpu"
_RUNNER_HELP = (
    "Engine: local, ray, spark, or the name of a Beam runner. Its own options follow after --; for ray "
    "--address=HOST:PORT, --cpus=N, --memory=GIB, --resource=NAME=N, --processes=N and --shared; for spark "
    "--master=URL and --conf=NAME=VALUE. Never expose Ray's ports: they have no authentication."
)
_OPTIONS = (
    click.option("--output", required=True, metavar="URL", help="Folder or gs:// prefix for the dataset."),
    click.option("--runner", default=LOCAL, show_default=True, help=_RUNNER_HELP),
    workers_option,
    click.option(
        "--part",
        metavar="K/N",
        help="Build part K of N beside other parts, on any machines: no scheduler is needed, and parts that are gone "
        "are replaced. auto or auto/N in a task of Slurm, Google Batch or Kubernetes, and under dataprep tpu run.",
    ),
    stall_option(
        "Minutes without progress after which a worker is killed and its shard tried again, and minutes without a "
        "finished shard after which a job of a Beam runner is cancelled."
    ),
    click.option(
        "--detach",
        is_flag=True,
        help="Submit the job to the engine's cluster, print its name, and end. The same command later finishes the "
        "dataset, or says how far the job is.",
    ),
    beside_option,
    tpu_option,
    region_policy_option,
    click.option(
        "--overwrite",
        is_flag=True,
        help="Delete the dataset at --output, then build. Readers find none there until the build has finished, and "
        "those that still read the old one fail; to keep it, choose another --output.",
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Print the plan, and leave nothing behind; where the build would refuse --output, say why and end with "
        "its exit code.",
    ),
    json_option,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Options of a build that do not depend on its dataset, and change no byte of it."""

    runner: str
    workers: int
    part: Part | None
    """Part of the dataset that this run builds, beside others; None: all of it."""
    stall_minutes: float
    detach: bool
    """Whether to submit the job and leave it running."""
    beside: str | None
    tpu: str | None
    region_policy: str
    dry_run: bool
    as_json: bool

    @property
    def is_local(self) -> bool:
        """Whether the workers are processes of this machine; other engines may ask a cluster for their number."""
        return self.runner == LOCAL


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """The output of a build that depends on the kind of dataset."""

    progress: Callable[..., BuildProgress]
    """Function that makes the progress from `quiet` and `stall_s`."""
    plan_lines: Callable[[Plan], Iterable[str]]
    """Function that describes a plan in lines, for --dry-run."""
    split_line: Callable[[SplitManifest], str]
    """Function that describes a finished split."""


def shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every dataset; the command gets all but --output and --overwrite as `run`, a `Run`."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, **values: Any) -> None:
        named = values["part"]
        if named is not None and values["overwrite"]:
            raise UsageError(
                "--part with --overwrite: a part that starts late would remove what others have built; remove the old "
                "dataset first, or choose another --output"
            )
        values["part"] = None if named is None else part_of(named, os.environ)
        command(*arguments, run=Run(**{field.name: values.pop(field.name) for field in fields(Run)}), **values)

    decorated: Callable[..., None] = wrapped
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def build(
    request: BuildRequest,
    run: Run,
    engine_options: tuple[str, ...],
    shown: Shown,
    *,
    check: Callable[[BuildProgress], object] = lambda _progress: None,
) -> None:
    """Build a dataset and print the result, or print its plan.

    Args:
        request: What to build.
        run: Options of the run.
        engine_options: Options of the engine, given after `--`.
        shown: The output that depends on the kind of dataset.
        check: Checks the originals, before anything else is read.
    """
    reader, builder = named_place(run.beside, run.tpu), place_of_workers(engine_options)
    if not run.dry_run:
        _guard(request, run, reader=reader, builder=builder)
    with _missing_listed(run), shown.progress(quiet=run.as_json, stall_s=60 * run.stall_minutes) as progress:
        check(progress)
        if run.dry_run:
            _print_plan(request, run, engine_options, shown, progress, {"reader": reader, "builder": builder})
            return
        started_s = time.monotonic()
        try:
            with _open_engine(request, run, engine_options, progress) as engine:
                result = run_build(
                    request, engine, progress, lambda result: _write_cards(request.output_url, result, progress)
                )
        except DetachedJob as job:
            progress.stop()
            click.echo(json.dumps({"url": request.output_url, "job": job.name}) if run.as_json else str(job))
            return
        for split, fault in numbering_faults(result.manifest):
            progress.warn(f"{split}: {fault}")
        elapsed_s = time.monotonic() - started_s
    notes = progress.notes if run.as_json else None
    _print_result(result, request, elapsed_s, shown.split_line, notes=notes)


@contextmanager
def _missing_listed(run: Run) -> Iterator[None]:
    """Print all images that a table names and that do not exist, if they are why the build ends and --json is given."""
    try:
        yield
    except SourceError as error:
        missing = [{"image": image, "row": row} for image, row in error.missing]
        if run.as_json and missing:
            click.echo(json.dumps({"error": str(error), "missing": missing}))
        raise


def _write_cards(url: str, result: BuildResult, progress: BuildProgress) -> None:
    """Write the cards of a dataset that is whole; without them it is no less whole."""
    storage = open_storage(url)
    try:
        written = write_cards(storage, result.manifest)
        if len(written) == len(CARDS):
            return
        # The cards of a dataset that was whole already may be edited; those of a repaired one tell of its old files.
        if result.assembled or card_plan(storage) not in (None, result.manifest.plan_hash):
            stale = set(CARDS) - own_cards(storage, result.manifest).keys()
            if stale:
                progress.warn(
                    f"{' and '.join(sorted(stale))} of an earlier state stays, as you may have edited it: write both "
                    f"cards anew with dataprep card {shell_words(url)} --overwrite"
                )
    except DataprepError as error:
        progress.warn(f"the cards are not written: {error}; write them with dataprep card {shell_words(url)}")


def refuse_unknown_runner(run: Run, engine_options: tuple[str, ...]) -> None:
    """Refuse a runner, or its options, if no build can run with them; no cluster is contacted.

    Raises:
        UsageError: There are options without an engine that has some, or --part with one; the runner or an option is
            unknown, the runner loses data, or its library is not installed.
    """
    if run.part is not None and run.runner != LOCAL:
        raise UsageError(f"--part with --runner {run.runner}, which has workers of its own; give one of the two")
    engine_module(run.runner).check(_choice(run, engine_options))


def shards_at_once(run: Run, engine_options: tuple[str, ...], urls: tuple[str, ...]) -> int:
    """Return the number of shards that a build has in flight on its engine, or in all of its parts.

    Args:
        run: Options of the run; other parts are taken to have as many workers.
        engine_options: Options of the engine, given after `--`.
        urls: URLs of originals and output.
    """
    return engine_module(run.runner).shards_at_once(_choice(run, engine_options), urls)


def _choice(run: Run, engine_options: tuple[str, ...]) -> EngineChoice:
    return EngineChoice(
        runner=run.runner, options=engine_options, workers=run.workers, part=run.part, detach=run.detach
    )


def _guard(request: BuildRequest, run: Run, *, reader: str | None, builder: str | None) -> None:
    """Check the regions of output and source; see `dataprep.cloud.placement.guard`.

    Args:
        request: What is built.
        run: Options of the run.
        reader: Zone or region in which the output will be read; None: this machine's.
        builder: Zone or region of a Beam runner's workers; None: this machine's, or unknown.
    """
    guard(request.output_url, run.region_policy, where=reader, advice=_OUTPUT_ADVICE)
    if runs_here(run.runner) or builder is not None:
        guard(request.source_url, run.region_policy, where=builder)


@contextmanager
def _open_engine(
    request: BuildRequest, run: Run, engine_options: tuple[str, ...], progress: BuildProgress
) -> Iterator[Engine]:
    work = EngineWork(
        dataset=request.options.dataset,
        source_url=request.source_url,
        output_url=request.output_url,
        stall_s=progress.stall_s,
        log=progress.log,
        warn=progress.warn,
    )
    with engine_module(run.runner).open_engine(_choice(run, engine_options), work) as engine:
        if engine_options:
            from dataprep.commands.private_workers import telling

            engine = telling(engine, engine_options, progress.warn)
        yield engine


def _refusal(request: BuildRequest, plan: Plan) -> tuple[DataprepError | None, str]:
    """Return the error with which the build would refuse its output, if it would, and why that is not known."""
    try:
        refuse_output(request, plan)
    except StorageError as error:
        return None, f"what is at the output is not known: {error}"
    except DataprepError as error:
        return type(error)(f"the build would be refused: {error}"), ""
    return None, ""


def _print_plan(
    request: BuildRequest,
    run: Run,
    engine_options: tuple[str, ...],
    shown: Shown,
    progress: BuildProgress,
    places: Mapping[str, str | None],
) -> None:
    """Print a plan, and what the build would take and cost, in lines or as JSON.

    Args:
        places: Zones or regions of the `reader` of the output and of the `builder`; see `planned_buckets`.

    Raises:
        UsageError, VerificationError: The build would refuse its output.
    """
    from dataprep.commands.build_time import ONE_CORE, crew_here, planned_time
    from dataprep.commands.private_workers import private_worker_lines
    from dataprep.commands.region_options import planned_buckets

    planned = prepare(request, progress, keep=False)
    plan = planned.plan
    progress.stop()
    crew = crew_here(run.workers, run.part.count if run.part else 1) if run.is_local else ONE_CORE
    found_time = planned_time(planned, crew)
    buckets = planned_buckets(plan, request, **places, runner=run.runner, workers=run.workers)
    refusal, unknown = _refusal(request, plan)
    unknowns = [unknown] if unknown else []
    if run.as_json:
        found: dict[str, object] = {"buckets": [bucket.document() for bucket in buckets]}
        found["time"] = None if found_time is None else found_time.document()
        found |= {"notes": [*progress.notes, *unknowns], "refused": None if refusal is None else str(refusal)}
        click.echo(json.dumps(plan.document() | found))
    else:
        click.echo(f"{plan.options.name} as {plan.options.format} to {request.output_url}, plan {plan.plan_hash[:12]}")
        for line in shown.plan_lines(plan):
            click.echo(line)
        if found_time is not None:
            click.echo(found_time.line)
        for line in (*private_worker_lines(plan, engine_options), *unknowns):
            click.echo(f"  {line}")
        for bucket in buckets:
            click.echo(bucket.line)
        click.echo("Nothing was built, and nothing is left behind (--dry-run).")
    if refusal is not None:
        raise refusal


def _rejected_before(manifest: Manifest, request: BuildRequest) -> str:
    """Return a clause about rejected images that this request would not allow; empty if it allows all."""
    ratio = request.max_reject_ratio
    odd = [split for split in manifest.splits if rejects_too_many(split, ratio)]
    if not odd:
        return ""
    counts = ", ".join(f"{counted(sum(split.rejected.values()), 'rejected image')} in {split.name}" for split in odd)
    return f", though it has {counts}, more than --max-reject-ratio {ratio:g} allows: it was built with a higher ratio"


def _print_result(
    result: BuildResult,
    request: BuildRequest,
    elapsed_s: float,
    split_line: Callable[[SplitManifest], str],
    *,
    notes: list[str] | None,
) -> None:
    """Print a result in lines or, with notes about the originals, as JSON."""
    manifest, output = result.manifest, request.output_url
    if notes is not None:
        summary = manifest_document(manifest) | {"url": output, "elapsed_s": round(elapsed_s, 3)}
        summary |= {"shards_built": result.shards_built, "notes": notes}
        json.dump(summary, sys.stdout)
        click.echo()
        return
    for split in manifest.splits:
        click.echo(split_line(split))
    if not (result.shards_built or result.assembled):
        click.echo(
            f"{output} was whole already; nothing was done{_rejected_before(manifest, request)}. The contents were not "
            f"compared; check them with: dataprep verify {shell_words(output)}"
        )
        return
    samples = counted(sum(split.samples for split in manifest.splits), "sample")
    is_bare = request.options.own is not None and not manifest.classes
    labels = " without labels" if is_bare else ""
    verify = shell_words("dataprep", "verify", output)
    click.echo(f"{output} is whole: {samples}{labels} in {elapsed_s:.1f} s; check it with: {verify}")
