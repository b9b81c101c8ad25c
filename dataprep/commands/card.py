"""`dataprep card`: writes the cards of a dataset, `README.md`, `croissant.json` and for tars `_info.json`, and prints
the public summary of training content that the AI Act requires.

Cards state what the dataset shows. Facts that only a person knows come from a TOML file; facts that are in neither are
listed as not stated, and never made up.
"""

from __future__ import annotations

import csv
import heapq
import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib import resources
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import click

from dataprep.arguments import OTHER, READ, WRITE, Place, Request, command_of, function_of, option, request
from dataprep.builder.cards import (
    PUBLISHED,
    RESPONSIBLE,
    Json,
    cards_of,
    read_card,
    replace_cards,
    stated_licence,
    write_cards,
)
from dataprep.builder.finished import readable_manifest
from dataprep.dataset.adopted import is_adopted
from dataprep.dataset.index import open_index
from dataprep.dataset.manifest import built_as
from dataprep.dataset.records import Manifest
from dataprep.errors import UsageError
from dataprep.fetched.existing import FetchedDataset
from dataprep.fetched.plan import is_fetched, laion_options
from dataprep.formats.img2dataset import SUCCESS
from dataprep.messages import counted, did_you_mean, human_bytes, printable
from dataprep.sources import BUILT
from dataprep.sources.base import UNSTATED
from dataprep.storage import Storage, open_storage
from dataprep.storage.base import read_bounded
from dataprep.storage.parquet import read_columns

EPILOG = """\b
Examples:
  dataprep card shards
  dataprep card gs://bucket/shards --dry-run
  dataprep card shards --facts facts.toml --overwrite
  dataprep card shards --eu --facts facts.toml > summary.md

\b
Exit codes: 0 written or printed; 1 a fact is missing, with --complete; 2 no such dataset, or an unknown fact.
"""
MAX_FACTS_BYTES = 1 << 20
SUMMARY = "eu-summary"
"""Name of the public summary, without .md or .json."""
TEMPLATE = "Annex to C(2025) 5235, 24 July 2025"
SECTIONS = {
    "1.1": "Provider identification",
    "1.2": "Model identification",
    "1.3": "Modalities, overall training data size and other characteristics",
    "2.1": "Publicly available datasets",
    "2.2.1": "Datasets commercially licensed by rightsholders or their representatives",
    "2.2.2": "Private datasets obtained from other third parties",
    "2.3": "Data crawled and scraped from online sources",
    "2.4": "User data",
    "2.5": "Synthetic data",
    "2.6": "Other sources of data",
    "3.1": "Respect of reservation of rights from the text and data mining exception",
    "3.2": "Removal of illegal content",
    "3.3": "Other information",
}
CHAPTERS = {"1": "General information", "2": "List of data sources", "3": "Data processing aspects"}
IS_SME = "is_sme"
"""Fact that says whether the provider is a small or medium-sized enterprise, which lists fewer domains."""
TO_BE_ANSWERED = "To be answered by the provider"
_SHARE, _SHARE_OF_SMES, _DOMAINS_OF_SMES = 0.1, 0.05, 1_000
_SIZES = ((10**6, "Less than 1 million"), (10**9, "1 million to 1 billion"))
_POLICIES = {
    "robots": "robots.txt and X-Robots-Tag",
    "published": "robots.txt, X-Robots-Tag, and every opt-out from training in Content-Signal, Content-Usage (IETF "
    "AIPREF), RSL, ai.txt, TDMRep, PLUS and rights in XMP, and C2PA",
    "strict": "the same as published, even if training is permitted under conditions or only for this robot",
}
_MISSING = 1


class Question(NamedTuple):
    """A field of the template."""

    section: str
    fact: str
    """Name of the fact in the file of facts."""
    when: str
    """Name of the fact that must not be No for this field to apply."""
    optional: str
    question: str


@request
class Card(Request):
    """Write README.md, croissant.json and, for WebDataset shards, _info.json, from the manifest of the dataset at URL.

    README.md has the header that the Hugging Face Hub reads: licence, tasks, size, and the files of each split.
    croissant.json describes files, records and provenance in MLCommons' vocabulary (Croissant 1.1 and RAI 1.0). timm
    reads the counts in _info.json. Builds write all three files; this command writes them for older datasets, and the
    first two for adopted data. Existing files stay unchanged.
    """

    url: Place = option("Folder or gs:// prefix of the dataset.", metavar="URL", kw_only=False, group=READ)
    facts: Place | None = option(
        "TOML file of facts that only a person knows, e.g. data_biases or provider; docs/reading.md lists the names.",
        default=None,
        metavar="FILE",
        group=READ,
    )
    eu: bool = option(
        "Print the public summary of training content that Article 53(1)(d) of the EU AI Act requires, and write "
        "nothing.",
        default=False,
        group=WRITE,
    )
    complete: bool = option("Exit with code 1 if a fact is missing.", default=False, group=OTHER, only="cli")
    dry_run: bool = option("Print the cards, and write nothing.", default=False, group=OTHER)
    overwrite: bool = option("Replace existing cards, even edited ones.", default=False, group=WRITE)


class _Made(NamedTuple):
    texts: dict[str, str]
    """Cards by file name."""
    storage: Storage
    missing: list[str]
    """Facts that are not known."""
    written: Sequence[str] = ()
    kept: Sequence[str] = ()
    """Existing cards that stay."""


def _cards(asked: Card) -> dict[str, str]:
    """Return the text of each card by its file name; without `dry_run` and `eu` they are written."""
    return _made(asked).texts


def _made(asked: Card) -> _Made:
    storage = open_storage(str(asked.url))
    manifest, facts = readable_manifest(storage), read_facts(asked.facts)
    if asked.eu:
        document = summary_of(storage, manifest, facts)
        text = "\n".join(_lines(document)) + "\n"
        texts = {f"{SUMMARY}.md": text, f"{SUMMARY}.json": json.dumps(asdict(document), indent=1) + "\n"}
        return _Made(texts, storage, document.unanswered)
    cards = cards_of(manifest, facts)
    texts = {name: data.decode() for name, data in cards.items()}
    described = json.loads(texts["croissant.json"])
    missing = [fact for fact, name in (RESPONSIBLE | PUBLISHED).items() if fact not in facts and name not in described]
    if asked.dry_run:
        return _Made(texts, storage, missing)
    written = (replace_cards if asked.overwrite else write_cards)(storage, manifest, facts=facts)
    kept = [name for name, data in cards.items() if name not in written and read_card(storage, name) != data]
    return _Made(texts, storage, missing, list(written), kept)


# Facts


def read_facts(url: object) -> dict[str, Json]:
    """Read a file of facts; none without one. Raises UsageError if it is not TOML, or has an unknown name."""
    if url is None:
        return {}
    folder, _, name = str(url).rpartition("/")
    data = read_bounded(open_storage(folder or "."), name, MAX_FACTS_BYTES, advice="write less")
    if data is None:
        raise UsageError(f"`facts` {url}: not found")
    try:
        found = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"`facts` {url}: not TOML: {error}") from None
    known = {*RESPONSIBLE, *PUBLISHED, IS_SME, *(each.fact for each in questions())}
    return {name: _fact(str(url), name, value, known) for name, value in found.items()}


def _fact(url: str, name: str, value: object, known: set[str]) -> Json:
    if name not in known:
        hint = did_you_mean(name, known) or f"; it has {', '.join(sorted(known))}"
        raise UsageError(f"`facts` {url}: there is no fact {name}{hint}")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return [*value]
    if not isinstance(value, str | bool) or value == "":
        raise UsageError(
            f"`facts` {url}: {name} is {value!r}, expected a string, a date, true or false, or a list of strings"
        )
    return value


# The public summary


Source = Literal["dataset", "provider", "not applicable", "unanswered"]


@dataclass(frozen=True, slots=True)
class Answered:
    """A field of the template, and its answer."""

    fact: str
    question: str
    answer: Json | None
    source: Source


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the template."""

    number: str
    title: str
    answers: list[Answered]


@dataclass(frozen=True, slots=True)
class Summary:
    """A public summary, as docs/eu-summary.schema.json describes it."""

    template: str
    dataset: str
    revision: int
    sections: list[Section]
    unanswered: list[str]
    """Facts that the provider has to state."""


def questions() -> list[Question]:
    """Return the fields of the template, in its order."""
    lines = resources.files("dataprep").joinpath("data/eu_summary.csv").read_text().splitlines()
    return [Question(**row) for row in csv.DictReader(line for line in lines if not line.startswith("#"))]


def summary_of(storage: Storage, manifest: Manifest, facts: Mapping[str, Json]) -> Summary:
    """Return the public summary of a dataset; facts that the provider states come before what the dataset shows."""
    shown: dict[str, Json] = dict(_shown(storage, manifest, is_sme=facts.get(IS_SME) is True))
    given: dict[str, Json] = {
        name: ("Yes" if value else "No") if isinstance(value, bool) else value for name, value in facts.items()
    }
    answers = shown | given

    def answered(each: Question) -> Answered:
        if each.when and str(answers.get(each.when, "No")).startswith("No"):
            return Answered(each.fact, each.question, None, "not applicable")
        if each.fact in answers:
            source: Source = "provider" if each.fact in facts else "dataset"
            return Answered(each.fact, each.question, answers[each.fact], source)
        return Answered(each.fact, each.question, None, "not applicable" if each.optional else "unanswered")

    asked = questions()
    sections = [
        Section(number, title, [answered(each) for each in asked if each.section == number])
        for number, title in SECTIONS.items()
    ]
    unanswered = [each.fact for section in sections for each in section.answers if each.source == "unanswered"]
    return Summary(TEMPLATE, manifest.name, manifest.revision, sections, unanswered)


_OF_ONE_KIND = {
    "public_datasets_used": "2.1",
    "licensed_used": "2.2.1",
    "private_used": "2.2.2",
    "crawlers_used": "2.3",
    "model_user_data_used": "2.4",
    "service_user_data_used": "2.4",
    "synthetic_used": "2.5",
    "other_used": "2.6",
}
"""Questions whether data of a kind was used. A dataset of known origin answers them; others leave them open."""


def _shown(storage: Storage, manifest: Manifest, *, is_sme: bool) -> Iterator[tuple[str, Json]]:
    """Yield the answers that a dataset shows, by the names of the facts."""
    images = sum(split.samples for split in manifest.splits)
    size = next((name for bound, name in _SIZES if images < bound), "More than 1 billion")
    stored = human_bytes(sum(split.num_bytes for split in manifest.splits))
    yield "image_size", f"{size} images ({images:,} images, {stored})"
    dataset = BUILT.get(built_as(manifest))
    fetched = is_fetched(manifest) and not is_adopted(manifest)
    has_text = fetched or {"caption", "captions", "txt", "text"} & {name.lower() for name in manifest.features}
    modalities: list[Json] = ["Image", *(["Text"] if has_text else [])]
    yield "modalities", modalities
    if fetched:
        yield "text_size", f"one caption for each of {images:,} images"
    licence = stated_licence(manifest)
    is_published = dataset is not None and dataset.is_published and "own" not in manifest.options and bool(licence)
    if dataset is not None and dataset.generated:
        yield from _only("2.5")
        yield "synthetic_modalities", modalities
        yield "synthetic_models", "None: dataprep draws random pixels."
    elif is_published:
        yield from _only("2.1", "2.3") if fetched else _only("2.1")
        yield "public_modalities", modalities
        what = f"{manifest.name}: {dataset.description if dataset else ''}"
        yield "public_datasets", [f"{what} Origin: {printable(manifest.origin)}. Licence: {printable(licence)}"]
    elif fetched:  # whether the table is public is asked
        yield from (pair for pair in _only("2.3") if pair[0] != "public_datasets_used")
    if fetched:
        yield from _crawled(storage, manifest, modalities, is_sme=is_sme)


def _only(*sections: str) -> Iterator[tuple[str, Json]]:
    for fact, section in _OF_ONE_KIND.items():
        yield fact, "Yes" if section in sections else "No, not in this dataset"


def _crawled(
    storage: Storage, manifest: Manifest, modalities: list[Json], *, is_sme: bool
) -> Iterator[tuple[str, Json]]:
    """Yield the answers about the images of a table of URLs."""
    (split,) = manifest.splits
    rows = counted(sum(split.statuses.values()), "row")
    obeyed = "; ".join(_POLICIES.get(each, each) for each in manifest.options.get("consents", ())) or "not recorded"
    refused = {why: count for why, count in split.reasons.items() if why == "robots" or why.startswith("opt out")}
    yield "crawlers", ["dataprep (User-Agent dataprep/VERSION, with the provider's contact)"]
    yield "crawler_purposes", "To fetch the images that a table of URLs lists, as training data."
    yield (
        "crawler_behaviour",
        "Fetches only the listed URLs and does not follow links. Obeys robots.txt and opt-outs (section 3.1). Limits "
        "requests to each host and address, and waits if a site asks it to. Sends no cookies or passwords, and does "
        "not bypass captchas or paywalls.",
    )
    yield (
        "crawled_content",
        f"Images and captions from a table with {rows}; {split.samples:,} images are in the dataset.",
    )
    yield "crawled_modalities", modalities
    sizes, images = _domains(storage, manifest)
    count = max(1, round(len(sizes) * (_SHARE_OF_SMES if is_sme else _SHARE)))
    count = min(count, _DOMAINS_OF_SMES) if is_sme else count
    largest = heapq.nlargest(count, ((num_bytes, host) for host, num_bytes in sizes.items()))
    yield "crawled_domains", [f"{host}: {counted(images[host], 'image')}, {size:,} bytes" for size, host in largest]
    counts = "; ".join(f"{why}: {count:,}" for why, count in sorted(refused.items())) or "none"
    removed = split.reasons.get("removed", 0)
    yield (
        "opt_outs",
        f"Read before and during collection, and obeyed: {obeyed}. Left out of {rows}: {counts}. Removed later: "
        f"{removed:,}. The wording of each refusal is stored.",
    )
    limits = laion_options(manifest).rows.row_filter
    if limits.nsfw or limits.max_punsafe is not None:
        values = ["NSFW is " + " or ".join(limits.nsfw)] if limits.nsfw else []
        values += [f"punsafe is at most {limits.max_punsafe}"] if limits.max_punsafe is not None else []
        yield (
            "illegal_content",
            f"Fetched only rows whose {' and '.join(values)}, according to the table's classifiers.",
        )


def _domains(storage: Storage, manifest: Manifest) -> tuple[Counter[str], Counter[str]]:
    """Return the bytes and the number of stored images, each by host name."""
    dataset, (split,) = FetchedDataset(storage, manifest), manifest.splits
    index = open_index(storage, split, compare=True)
    sizes, counts = Counter[str](), Counter[str]()
    for number in range(len(split.shards)):
        rows = read_columns(storage, dataset.parquet_file(number), ("url", "status")).to_pydict()
        urls = [url for url, status in zip(rows["url"], rows["status"], strict=True) if status == SUCCESS]
        found = index.read_group(number, ["image_bytes"]).column("image_bytes").to_pylist()
        for url, num_bytes in zip(urls, found, strict=True):
            host = printable(_host_of(url or ""))
            sizes[host] += num_bytes
            counts[host] += 1
    return sizes, counts


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or UNSTATED
    except ValueError:
        return UNSTATED


def _lines(summary: Summary) -> Iterator[str]:
    """Yield the lines of a public summary in Markdown."""
    yield "# Public summary of training content"
    yield ""
    yield f"Follows the European Commission's template ({summary.template}) for Article 53(1)(d) of Regulation (EU)"
    yield f"2024/1689, and describes the dataset {_escaped(summary.dataset)}, revision {summary.revision}."
    chapter = ""
    for section in summary.sections:
        if section.number[0] != chapter:
            chapter = section.number[0]
            yield from ("", f"## {chapter}. {CHAPTERS[chapter]}")
        yield from ("", f"### {section.number}. {section.title}", "")
        for each in section.answers:
            yield f"- **{each.question}{'' if each.question.endswith('?') else ':'}**{_told(each)}"


def _told(each: Answered) -> str:
    if each.source == "unanswered":
        return f" *{TO_BE_ANSWERED} (`{each.fact}`).*"
    if each.answer is None:
        return " Not applicable, or not stated."
    if isinstance(each.answer, list):
        return "".join(f"\n  - {_escaped(one)}" for one in each.answer)
    return f" {_escaped(each.answer)}"


def _escaped(value: Json) -> str:
    return "".join(f"\\{letter}" if letter in "\\`*_<>[]|#" else letter for letter in printable(str(value)))


# What is printed


def _print(asked: Card, *, as_json: bool) -> int:
    made = _made(asked)
    texts, storage = made.texts, made.storage
    if asked.eu:
        click.echo(texts[f"{SUMMARY}.json" if as_json else f"{SUMMARY}.md"], nl=False)
    elif asked.dry_run:
        click.echo(json.dumps(texts) if as_json else "\n".join(f"{storage.url_of(n)}:\n{t}" for n, t in texts.items()))
    elif as_json:
        found = {"url": storage.url, "written": made.written, "kept": made.kept, "missing": made.missing}
        click.echo(json.dumps(found))
    else:
        for name in texts:
            what = "written" if name in made.written else "differs, and was kept; replace it with --overwrite"
            click.echo(f"{storage.url_of(name)} {what if name in (*made.written, *made.kept) else 'is up to date'}")
    if made.missing and (asked.eu or asked.complete or asked.facts is not None):
        click.echo(f"not stated; add with --facts: {', '.join(made.missing)}", err=True)
    return _MISSING if asked.complete and made.missing else 0


card = function_of(Card, _cards, "card")
command = command_of(Card, _print, "card", epilog=EPILOG)
