"""`dataprep recheck`: whether the images of a table of URLs may still be used, by what sites and headers say now.

    images of a shard ─▶ HEAD, robots.txt, files of the site ─▶ answers ─▶ takedown.txt ─▶ view

    OUTPUT/answers/<id>.json   what came for the images of one shard; replaced when unreached ones are asked for again
    OUTPUT/takedown.txt        keys of refused images, each after a comment with what was said, where and when

An id is a digest of the shard's rows and the policy, so a shard that changes is asked for again, and no plan is needed:
a run asks for the shards without answers, and for images that were not reached. A killed run loses the answers of the
shards that its workers were at.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal

import click

from dataprep.arguments import OTHER, READ, WRITE, Place, command_of, function_of, option, request
from dataprep.builder.pool import Pool
from dataprep.commands.build_laion import SiteRequest, limits_of
from dataprep.commands.progress import ImageProgress, LocalRun, Viewer, people
from dataprep.dataset.documents import Count, decode
from dataprep.dataset.views import Choice, check_name, find_view
from dataprep.errors import ConflictError, FormatError, UsageError
from dataprep.fetched.collect import failure_reason
from dataprep.fetched.existing import FetchedDataset, open_fetched
from dataprep.fetched.shards import WebFetch
from dataprep.formats.img2dataset import SUCCESS
from dataprep.host.heartbeat import beat
from dataprep.messages import counted, quoted
from dataprep.selection import select as select_samples
from dataprep.storage import Storage, open_storage
from dataprep.storage.base import read_ahead, read_bounded
from dataprep.storage.parquet import read_columns

if TYPE_CHECKING:
    from dataprep.web.requests import Limits, Request

EPILOG = """\b
Examples:
  dataprep recheck gs://bucket/laion --output recheck-2026-12 --contact https://example.org/our-crawler
  dataprep recheck laion --output recheck --contact mailto:me@example.org --dry-run
  dataprep remove laion --keys recheck/takedown.txt

\b
After an interruption, run the same command again: it continues, and asks again about images that were not reached. For
a new check, choose a different OUTPUT.

\b
Exit codes: 0 done, whether or not an image is refused; 1 a disk or bucket failed, or another process writes to OUTPUT;
2 no such dataset, or a different view of this name exists.
"""
TAKEDOWN = "takedown.txt"
ANSWERS = "answers"
_MAX_ANSWER_BYTES = 1 << 30
_ADVICE = "remove it, and run the same command again"
_STRICTEST = ("strict", "published", "robots")
_READS_AT_ONCE = 16
_WORKER_MODULES = ("dataprep.commands.recheck", "dataprep.fetched.fetching", "pyarrow.parquet")
_SHOWN = 8


@request
class Recheck(SiteRequest, LocalRun):
    """Ask sites whether the images of the dataset at URL, fetched from a table of URLs, may still be used.

    Sends a HEAD request for each image, and fetches each site's robots.txt and other opt-out files, as politely as a
    build. Refused images become a takedown list for `dataprep remove`, and a view leaves them out. Images are not
    fetched, so opt-outs inside images (XMP, C2PA) are not seen. An image that is not reached does not count as refused.
    """

    url: Place = option("Folder or gs:// prefix of the dataset.", metavar="URL", kw_only=False, group=READ)
    output: Place = option(
        "Folder or gs:// prefix for the results and takedown.txt; each check needs its own.", metavar="URL", group=WRITE
    )
    consent: Literal["strict", "published", "robots"] | None = option(
        "Opt-outs to obey, as in a build.", default=None, shown="as in the build", group=READ
    )
    name: str = option("Name of the view without the refused images.", default="consent", metavar="NAME", group=WRITE)
    dry_run: bool = option("Count the images to ask about, and send no requests.", default=False, group=OTHER)


@dataclass(frozen=True, slots=True)
class Rechecked:
    """Answers of a check so far. It shows itself in a terminal."""

    url: str
    view: str
    """Address of the view without refused images; empty in a dry run."""
    takedown: str
    """URL of the list of refused images; empty in a dry run."""
    asked: int
    """Images that this run asked for, or would ask for."""
    allowed: int
    refused: dict[str, int]
    """Refused images by signal."""
    unreached: dict[str, int]
    """Images that were not reached, by reason."""

    def __str__(self) -> str:
        refused, unreached = sum(self.refused.values()), sum(self.unreached.values())
        lines = [f"{self.url}: {self.allowed:,} images may be used, {refused:,} no longer, {unreached:,} not reached"]
        for title, of in (("refused by", self.refused), ("not reached,", self.unreached)):
            lines += [f"  {title} {name}: {count:,}" for name, count in list(of.items())[:_SHOWN]]
        if self.view:
            lines += [f"takedown list: {self.takedown}", f"view without them: {self.view}"]
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """What was said of one image."""

    key: str
    asked: str
    """Time, ISO 8601."""
    signal: str
    text: str
    url: str
    despite: tuple[str, ...]
    """Signals that would allow the use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """What came for the images of one shard."""

    shard: str
    """Parquet file of the shard."""
    consent: str
    allow_networks: tuple[str, ...]
    asked: str
    """Time of the last answer, ISO 8601."""
    allowed: Count
    refused: tuple[Refusal, ...]
    unreached: dict[str, str]
    """Reasons by key."""


@dataclass(frozen=True, slots=True)
class CheckJob:
    """Everything that a worker needs, except a shard's position."""

    url: str
    output: str
    limits: Limits


class _Checker:
    def __init__(self, job: CheckJob) -> None:
        self._dataset, self._output, self._limits = open_fetched(job.url), open_storage(job.output), job.limits
        self._web = WebFetch(job.limits, kept=True)

    def check(self, position: int) -> tuple[int, Answers]:
        from dataprep.web.requests import Status

        shard = self._dataset.parquet_file(position)
        name = _answers_file(self._dataset, position, self._limits)
        stored = read_bounded(self._output, name, _MAX_ANSWER_BYTES, advice=_ADVICE)
        before = None if stored is None else _decoded(self._output, name, stored)
        requests, keys = self._requests(shard, None if before is None else before.unreached)
        refused, unreached = list(before.refused if before else ()), dict[str, str]()
        allowed = before.allowed if before else 0
        for outcome in self._web.fetch(requests):
            beat()
            key = keys[outcome.key]
            if outcome.status is Status.SUCCESS:
                allowed += 1
            elif outcome.evidence is None:
                unreached[key] = failure_reason(outcome)
            else:
                told = {name: getattr(outcome.evidence, name) for name in ("signal", "text", "url", "despite")}
                refused.append(Refusal(key=key, asked=_now(), **told))
        answers = Answers(
            shard=shard,
            consent=str(self._limits.consent),
            allow_networks=self._web.allow_networks,
            asked=_now(),
            allowed=allowed,
            refused=tuple(sorted(refused, key=lambda each: each.key)),
            unreached=dict(sorted(unreached.items())),
        )
        if not self._output.replace(name, json.dumps(asdict(answers)).encode(), stored):
            raise ConflictError(f"{self._output.url_of(name)}: another process has written it; run one check at a time")
        return len(requests), answers

    def _requests(self, shard: str, unreached: dict[str, str] | None) -> tuple[list[Request], list[str]]:
        """Return the requests for the images of a shard, or for those that were not reached, and their keys."""
        from dataprep.web.requests import Request

        columns = read_columns(self._dataset.storage, shard, ("key", "url", "status")).to_pydict()
        rows = zip(columns["key"], columns["url"], columns["status"], strict=True)
        images = [(key, url) for key, url, status in rows if status == SUCCESS]
        for key, _ in images:
            if not (key and key.isdecimal()):
                raise FormatError(f"{shard}: key {quoted(key)}, expected numbers of shard and row; restore the file")
        images = [image for image in images if unreached is None or image[0] in unreached]
        requests = [Request(number, str(url or ""), head=True) for number, (_, url) in enumerate(images)]
        return requests, [key for key, _ in images]


_checker = lru_cache(maxsize=1)(_Checker)
"""Returns this process's checker of a job, which keeps its connections and what it knows of hosts."""


def check_shard(job: CheckJob, position: int) -> tuple[int, int, Answers]:
    """Ask for the images of a shard that have no answer, and store and return all answers, with the shard's position
    and the number of images asked for."""
    return position, *_checker(job).check(position)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _answers_file(dataset: FetchedDataset, position: int, limits: Limits) -> str:
    """Return the name of a shard's answers: other rows, and other policies, have others."""
    digests = {entry["file"]: entry["sha256"] for entry in dataset.manifest.files}
    told = [digests[dataset.parquet_file(position)], str(limits.consent), *sorted(limits.agents)]
    return f"{ANSWERS}/{hashlib.sha256(' '.join(told).encode()).hexdigest()}.json"


def _decoded(storage: Storage, name: str, data: bytes) -> Answers:
    return decode(data, Answers, where=f"{storage.url_of(name)}: not the results of a check", advice=_ADVICE)


def _known(dataset: FetchedDataset, output: Storage, limits: Limits) -> dict[int, Answers]:
    """Return the answers that earlier runs have stored, by the position of their shard."""
    stored = {info.name for info in output.list(f"{ANSWERS}/")}
    names = {at: _answers_file(dataset, at, limits) for at in range(dataset.num_shards)}
    found = {at: name for at, name in names.items() if name in stored}
    read = partial(output.read, max_bytes=_MAX_ANSWER_BYTES)
    pairs = zip(found.items(), read_ahead(read, found.values(), _READS_AT_ONCE), strict=True)
    return {at: _decoded(output, name, data) for (at, name), data in pairs}


class AskingProgress(ImageProgress):
    """Shows the progress of a check; no bytes come."""

    def _rate(self, elapsed_s: float) -> str:
        return f"{self._done / elapsed_s:,.0f} images/s"


def recheck_images(asked: Recheck, progress: ImageProgress) -> Rechecked:
    """Ask for what has no answer, and write the takedown list and the view.

    Raises:
        UsageError: There is no dataset of a table of URLs, or another view has the name.
        ConflictError: Another process checks into the same output.
    """
    dataset, output = open_fetched(str(asked.url)), open_storage(str(asked.output))
    consents = dataset.manifest.options.get("consents", ())  # of the build and its retries
    limits = limits_of(asked, next((each for each in _STRICTEST if each in consents), "published"))
    existing = find_view(dataset.storage, check_name(asked.name))
    if existing is not None and existing[0].choice != Choice(left_out=existing[0].choice.left_out):
        raise UsageError(f"{dataset.storage.url}: a different view {asked.name} exists; choose a different `name`")
    if limits.allow_networks:
        progress.warn(f"asking {', '.join(map(str, limits.allow_networks))}, too (`allow_network`)", keep=False)
    answers = _known(dataset, output, limits)
    samples = [shard["samples"] for shard in dataset.manifest.splits[0].shards]
    left = {at: len(answers[at].unreached) if at in answers else count for at, count in enumerate(samples)}
    left = {at: count for at, count in left.items() if count}
    if answers:
        since = min(each.asked for each in answers.values())
        progress.log(f"continuing the check of {since}; for a new check, choose a different `output`")
    asked_for = sum(left.values())
    if not asked.dry_run:
        job = CheckJob(str(asked.url), str(asked.output), limits.divided(max(1, min(asked.workers, len(left)))))
        asked_for = 0
        progress.begin("asking", sum(left.values()))
        with Pool(asked.workers, progress.warn, preload=_WORKER_MODULES, stall_s=progress.stall_s) as pool:
            for at, count, came in pool.run(partial(check_shard, job), left):
                answers[at], asked_for = came, asked_for + count
                progress.advance(count, 0)
    found = Rechecked(
        url=dataset.storage.url,
        view="",
        takedown="",
        asked=asked_for,
        allowed=sum(each.allowed for each in answers.values()),
        refused=dict(Counter(said.signal for each in answers.values() for said in each.refused).most_common()),
        unreached=dict(Counter(why for each in answers.values() for why in each.unreached.values()).most_common()),
    )
    if asked.dry_run:
        return found
    data = "".join(_takedown_lines(found, list(answers.values()))).encode()
    stored = read_bounded(output, TAKEDOWN, _MAX_ANSWER_BYTES, advice=_ADVICE)
    if data != stored and not output.replace(TAKEDOWN, data, stored):
        raise ConflictError(f"{output.url_of(TAKEDOWN)}: another process has written it; run one check at a time")
    progress.step("writing the view")
    takedown = output.url_of(TAKEDOWN)
    view = select_samples(dataset.storage.url, asked.name, Choice(left_out=(takedown,)), overwrite=True)
    return replace(found, view=view.url, takedown=takedown)


def _takedown_lines(found: Rechecked, answers: list[Answers]) -> Iterator[str]:
    yield f"# {json.dumps(found.url)}: {counted(sum(found.refused.values()), 'image')} that may no longer be used\n"
    for said in sorted((said for each in answers for said in each.refused), key=lambda said: said.key):
        told = {name: value for name, value in asdict(said).items() if name != "key"}
        yield f"# {json.dumps(told)}\n{said.key}\n"


def _rechecked(asked: Recheck, viewer: Viewer | None = None) -> Rechecked:
    with AskingProgress(viewer or asked.viewer()) as progress:
        return recheck_images(asked, progress)


def _print(asked: Recheck, *, as_json: bool) -> None:
    found = _rechecked(asked, people(asked, quiet=as_json))
    if as_json:
        click.echo(json.dumps(asdict(found)))
    elif asked.dry_run:
        click.echo(f"{found.url}: {counted(found.asked, 'image')} would be asked about")
    else:
        click.echo(str(found))


recheck = function_of(Recheck, _rechecked, "recheck")
command = command_of(Recheck, _print, "recheck", epilog=EPILOG)
