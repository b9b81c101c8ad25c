"""The part of a build that all datasets share: the request for a run, region check, engine, dry run, result.

Run (a request) ─▶ run_request ─▶ Built | Drafted | Submitted ─▶ print_outcome (command) or dataset_of (function)
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

import click

from dataprep.arguments import WHERE, WRITE, Place, Texts, option, request, spelled, texts
from dataprep.builder.cards import cards_of, own_cards, write_cards
from dataprep.builder.driver import BuildResult, plan_growth, prepare, refuse_output, run_build
from dataprep.builder.finished import numbering_faults
from dataprep.builder.output import card_plan
from dataprep.builder.plan import BuildRequest, Plan
from dataprep.builder.recipe import Engine, Traffic, recipe_of
from dataprep.cloud.cost import Amount, Cost, reading_cost, writing_cost
from dataprep.cloud.placement import Placement, guard, is_bucket, placement_of, this_zone
from dataprep.cloud.prices import published_prices
from dataprep.commands.progress import BuildProgress, LocalRun, Viewer, people
from dataprep.commands.region_options import Guarded, NamedTpu, named_place, place_of_workers, runs_here
from dataprep.dataset.manifest import manifest_document
from dataprep.dataset.opened import Dataset, Planned
from dataprep.dataset.records import SplitManifest
from dataprep.errors import BuildError, DataprepError, SourceError, StorageError, UsageError
from dataprep.messages import counted, shell_words, usd
from dataprep.storage import open_storage
from pipelines.engines import LOCAL, DetachedJob, EngineChoice, EngineWork, engine_module, part_of

_OUTPUT_ADVICE = "choose a bucket in the reader's region, or name the reader with `near` or `tpu`"
_RUNNER_HELP = (
    "Engine: local, ray, spark, or the name of a Beam runner. Its own options follow after --; docs/clusters.md lists "
    "them. Never expose Ray's ports: they have no authentication."
)


@request
class EngineRun(LocalRun):
    """Options of work that an engine does."""

    runner: str = option(_RUNNER_HELP, default=LOCAL, group=WHERE)
    part: str | None = option(
        "Build part K of N alongside the other parts, on any machines. No scheduler is needed; the other parts take "
        "over the work of dead parts. Use auto or auto/N in a Slurm, Google Batch or Kubernetes task, and under "
        "dataprep tpu run.",
        default=None,
        metavar="K/N",
        group=WHERE,
        rare=True,
    )
    engine_options: Texts = option(
        "The engine's options, as after -- on the command line.",
        default=(),
        rest=True,
        metavar="[-- ENGINE_OPTIONS]",
        group=WHERE,
    )
    overwrite: bool = False
    detach: bool = False
    """Fields that not every such request has as options."""

    def __post_init__(self) -> None:
        """Check the values, and that they go together."""
        super().__post_init__()
        if self.part is not None and self.overwrite:
            raise UsageError(
                "`part` with `overwrite`: a part that starts late would delete what the other parts have built; "
                "delete the old result first"
            )
        if self.part is not None and self.runner != LOCAL:
            raise UsageError(f"`part` with `runner` {self.runner}, which has its own workers; give one of the two")

    def engine_words(self) -> tuple[str, ...]:
        """Return the options of the engine."""
        return texts(self.engine_options)

    def choice(self) -> EngineChoice:
        """Return the requested engine.

        Raises:
            UsageError: There are options without an engine that has some; the runner or an option is unknown, the
                runner loses data, or its library is not installed.
        """
        choice = EngineChoice(
            runner=self.runner,
            options=self.engine_words(),
            workers=self.workers,
            part=None if self.part is None else part_of(self.part, os.environ),
            detach=self.detach,
        )
        engine_module(self.runner).check(choice)
        return choice


@request
class Run(Guarded, NamedTpu, EngineRun):
    """Options of a build that do not change the bytes of its dataset."""

    output: Place = option("Folder or gs:// prefix for the dataset.", metavar="URL", group=WRITE)
    overwrite: bool = option(
        "Delete the dataset at `output`, then build. Until the build is finished, there is no dataset, and readers "
        "fail; to keep the old dataset, choose a different `output`.",
        default=False,
        group=WRITE,
    )
    dry_run: bool = option(
        "Print the plan, and leave nothing behind. If the build would refuse `output`, say why and exit with its code.",
        default=False,
    )
    detach: bool = option(
        "Submit the job to the engine's cluster, print its name, and exit. The same command later finishes the "
        "dataset, or shows the job's progress.",
        default=False,
        group=WHERE,
        rare=True,
        only="cli",
    )
    near: str | None = option("Zone or region where `output` will be read.", default=None, metavar="ZONE", group=WHERE)

    @property
    def is_local(self) -> bool:
        """Whether the workers are processes of this machine; other engines may ask a cluster for their number."""
        return self.runner == LOCAL

    def job(self) -> Job:
        """Return the requested build. Raises UsageError if the options do not fit together."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A build as a command or function has prepared it, with what depends on the kind of dataset."""

    run: Run
    request: BuildRequest
    plan_lines: Callable[[Plan], Iterable[str]]
    """Function that describes a plan in lines, for a dry run."""
    split_line: Callable[[SplitManifest], str]
    """Function that describes a finished split."""
    open_progress: Callable[[Viewer], BuildProgress] = BuildProgress
    check: Callable[[BuildProgress], object] = lambda _progress: None
    """Function that checks the originals, before anything else is read."""
    warnings: tuple[str, ...] = ()
    """Warnings about the request itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """A complete dataset, and the work of this run on it."""

    result: BuildResult
    elapsed_s: float
    notes: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafted:
    """The plan of a dry run, with the build's requests and cost."""

    plan: Plan
    buckets: list[PlannedBucket]
    notes: list[str]
    unknown: str
    """Why it is not known whether the build would refuse its output; empty if it is known."""
    refusal: DataprepError | None
    """Error that the build would refuse its output with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted:
    """A job that continues without this process."""

    name: str
    text: str


Outcome = Built | Drafted | Submitted


def run_job(job: Job, choice: EngineChoice, viewer: Viewer) -> Outcome:
    """Build a dataset, or plan it in a dry run. Raises DataprepError if the build is refused or not finished; the same
    request continues it."""
    run, request = job.run, job.request
    note = viewer.note
    reader, builder = named_place(run.near, run.tpu, note), place_of_workers(choice.options, note)
    if not run.dry_run:
        guard(request.output_url, run.region_policy, where=reader, advice=_OUTPUT_ADVICE)
        if runs_here(run.runner) or builder is not None:
            guard(request.source_url, run.region_policy, where=builder)
    with job.open_progress(viewer) as progress:
        for line in job.warnings:
            progress.warn(line, keep=False)
        job.check(progress)
        if run.dry_run:
            return _draft(job, choice, progress, reader=reader, builder=builder)
        started_s = time.monotonic()
        try:
            modules = recipe_of(request.options.dataset).worker_modules
            with open_engine(choice, modules, request.source_url, request.output_url, progress) as engine:
                result = run_build(
                    request, engine, progress, lambda result: _write_cards(request.output_url, result, progress)
                )
        except DetachedJob as submitted:
            return Submitted(name=submitted.name, text=str(submitted))
        for split, fault in numbering_faults(result.manifest):
            progress.warn(f"{split}: {fault}")
        return Built(result=result, elapsed_s=time.monotonic() - started_s, notes=progress.notes)


def dataset_of(asked: Run) -> Dataset:
    """Build for a Python function, and return the dataset; after a dry run the planned one."""
    choice, job = asked.choice(), asked.job()
    outcome = run_job(job, choice, job.run.viewer())
    url = job.request.output_url
    if isinstance(outcome, Built):
        return Dataset(url=url, known=outcome.result.manifest)
    if isinstance(outcome, Submitted):
        raise BuildError(outcome.text)
    if outcome.refusal is not None:
        raise outcome.refusal
    plan = outcome.plan
    planned = Planned(
        name=plan.options.name,
        format=plan.options.format,
        splits={split.name: (sum(split.shard_samples), len(split.shard_samples)) for split in plan.splits},
        classes=plan.classes,
        features=plan.features,
        notes=tuple(outcome.notes),
    )
    return Dataset(url=url, known=planned)


def run_and_print(asked: Run, *, as_json: bool) -> None:
    """Build for a command, and print the result. Raises the error of a build that a dry run shows to be refused."""
    choice, job = asked.choice(), asked.job()
    try:
        outcome = run_job(job, choice, people(job.run, quiet=as_json))
    except SourceError as error:
        missing = [{"image": image, "row": row} for image, row in error.missing]
        if as_json and missing:
            click.echo(json.dumps({"error": str(error), "missing": missing}))
        raise
    if isinstance(outcome, Submitted):
        words = json.dumps({"url": job.request.output_url, "job": outcome.name}) if as_json else outcome.text
        click.echo(words)
    elif isinstance(outcome, Drafted):
        _print_draft(outcome, job, as_json=as_json)
    else:
        _print_built(outcome, job, as_json=as_json)


def _draft(
    job: Job, choice: EngineChoice, progress: BuildProgress, *, reader: str | None, builder: str | None
) -> Drafted | Built:
    run, request = job.run, job.request
    refusal: DataprepError | None = None
    unknown = ""
    if request.append:
        growth = plan_growth(request, progress, keep=False)
        if growth.planned is None:
            return Built(result=BuildResult(growth.manifest, 0, assembled=False), elapsed_s=0.0, notes=progress.notes)
        plan = growth.planned.plan
    else:
        plan = prepare(request, progress, keep=False).plan
        try:
            refuse_output(request, plan)
        except StorageError as error:
            unknown = f"it is not known what is at the output: {error}"
        except DataprepError as error:
            refusal = type(error)(f"the build would be refused: {error}")
    return Drafted(
        plan=plan,
        buckets=list(_planned_buckets(plan, request, run, reader=reader, builder=builder)),
        notes=[*progress.notes, unknown] if unknown else progress.notes,
        unknown=unknown,
        refusal=refusal,
    )


def open_engine(
    choice: EngineChoice, worker_modules: tuple[str, ...], source_url: str, output_url: str, progress: BuildProgress
) -> AbstractContextManager[Engine]:
    """Open the requested engine; see `EngineModule.open_engine`."""
    work = EngineWork(
        worker_modules=worker_modules,
        source_url=source_url,
        output_url=output_url,
        stall_s=progress.stall_s,
        log=progress.log,
        warn=progress.warn,
    )
    return engine_module(choice.runner).open_engine(choice, work)


def shards_at_once(run: Run, urls: tuple[str, ...]) -> int:
    """Return the number of shards that a build has in flight, on its engine or in all of its parts, which are taken to
    have as many workers each; `urls` are those of originals and output."""
    return engine_module(run.runner).shards_at_once(run.choice(), urls)


def _write_cards(url: str, result: BuildResult, progress: BuildProgress) -> None:
    """Write the cards of a complete dataset; a card that cannot be written is only a warning."""
    storage = open_storage(url)
    try:
        written = write_cards(storage, result.manifest)
        cards = cards_of(result.manifest)
        if len(written) == len(cards):
            return
        # A dataset that was complete already may have edited cards; a repaired dataset's cards describe its old files.
        if result.assembled or card_plan(storage) not in (None, result.manifest.plan_hash):
            stale = cards.keys() - own_cards(storage, result.manifest).keys()
            if stale:
                progress.warn(
                    f"{' and '.join(sorted(stale))} was kept from an earlier state, as you may have edited it; to "
                    f"rewrite the cards, run dataprep card {shell_words(url)} --overwrite"
                )
    except DataprepError as error:
        progress.warn(f"the cards were not written: {error}; write them with dataprep card {shell_words(url)}")


# The output of a command


def _print_draft(draft: Drafted, job: Job, *, as_json: bool) -> None:
    plan = draft.plan
    if as_json:
        found: dict[str, object] = {"buckets": [bucket.document() for bucket in draft.buckets], "notes": draft.notes}
        found["refused"] = None if draft.refusal is None else spelled(type(job.run), str(draft.refusal))
        click.echo(json.dumps(plan.document() | found))
    else:
        click.echo(
            f"{plan.options.name} as {plan.options.format} to {job.request.output_url}, plan {plan.plan_hash[:12]}"
        )
        for line in job.plan_lines(plan):
            click.echo(line)
        if draft.unknown:
            click.echo(f"  {draft.unknown}")
        for bucket in draft.buckets:
            click.echo(bucket.line)
        click.echo("Nothing was built or left behind (--dry-run).")
    if draft.refusal is not None:
        raise draft.refusal


def _print_built(built: Built, job: Job, *, as_json: bool) -> None:
    result, request = built.result, job.request
    manifest, output = result.manifest, request.output_url
    if as_json:
        summary = manifest_document(manifest) | {"url": output, "elapsed_s": round(built.elapsed_s, 3)}
        summary |= {"shards_built": result.shards_built, "notes": built.notes}
        json.dump(summary, sys.stdout)
        click.echo()
        return
    for split in manifest.splits:
        click.echo(job.split_line(split))
    if request.append and not result.assembled:
        click.echo(f"{output}: the source has no new samples; the dataset stays at revision {manifest.revision}")
        return
    if not (result.shards_built or result.assembled or result.others):
        click.echo(
            f"{output} was already complete; nothing was done. The contents were not compared; check them with: "
            f"dataprep verify {shell_words(output)}"
        )
        return
    samples = counted(sum(split.samples for split in manifest.splits), "sample")
    is_bare = request.options.own is not None and not manifest.classes
    labels = " without labels" if is_bare else ""
    verify = shell_words("dataprep", "verify", output)
    click.echo(f"{output} is complete: {samples}{labels} in {built.elapsed_s:.1f} s; check it with: {verify}")


@dataclass(frozen=True, slots=True)
class PlannedBucket:
    """A bucket that a build reads or writes."""

    role: str
    """Either `output` or `source`."""
    placement: Placement
    """The training reads the output, and the build the source."""
    traffic: Traffic
    cost: Cost | None
    """Cost of this build, in USD; None if a price is unknown."""

    @property
    def line(self) -> str:
        """The bucket in one line for the user."""
        verb, what = ("writing", "it") if self.role == "output" else ("reading", "it once")
        cost = f" and costs {usd(self.cost.total)}" if self.cost else ", at an unknown cost"
        requests, found = self.traffic.inserts + self.traffic.gets, self.placement.verdict
        place = f"{self.role} {self.placement.url}: {found.kind}; {found.reason}"
        return f"  {place}; {verb} {what} takes {requests:,} requests{cost}"

    def document(self) -> dict[str, object]:
        """Return the facts as JSON values."""
        found, work = self.placement.verdict, {"traffic": asdict(self.traffic), "cost": self.cost and asdict(self.cost)}
        price = {"verdict": found.kind, "usd_per_gib": found.usd_per_gib, "reason": found.reason}
        return {"role": self.role, "url": self.placement.url, "where": self.placement.where, **price, **work}


def _planned_buckets(
    plan: Plan, request: BuildRequest, run: Run, *, reader: str | None, builder: str | None
) -> Iterator[PlannedBucket]:
    """Yield the output and the source, if they are in buckets; None as the place of the output's reader or of a Beam
    runner's workers means this machine's."""
    recipe, prices, cost = recipe_of(plan.options.dataset), published_prices(), None
    if is_bucket(request.output_url):
        found = placement_of(request.output_url, reader or this_zone())
        traffic = recipe.output_traffic(plan, workers=run.workers)
        if found.bucket is not None:
            cost = writing_cost(traffic.inserts, traffic.gets, found.bucket, traffic.num_bytes, prices)
        yield PlannedBucket("output", found, traffic, cost)
    if not open_storage(request.source_url).is_local:
        found = placement_of(request.source_url, builder or (this_zone() if runs_here(run.runner) else None))
        traffic, paid = recipe.source_traffic(plan), None
        if found.bucket is not None:
            storage_class = (found.bucket.storage_class or "standard").lower()
            amount = Amount(storage_class=storage_class, num_bytes=traffic.num_bytes, objects=0, gets=traffic.gets)
            paid = reading_cost([amount], found.bucket, found.verdict, prices)
        yield PlannedBucket("source", found, traffic, paid)
