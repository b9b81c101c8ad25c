"""What a site, an answer and a file say about the use of an image for training, and which of that decides.

Each function here reads one published form, and returns `Statement`s; `decide` weighs them by a policy. All of them are
pure, and every input is hostile: sizes and counts are bounded, and no XML with a document type is parsed.

    robots.txt       RFC 9309, September 2022; groups for this robot or *, and by option those for other agents
    Content-Signal   contentsignals.org, September 2025: `Content-Signal: ai-train=no` in a group of robots.txt
    Content-Usage    IETF drafts aipref-attach-05 (2026-08-19) and aipref-vocab-08 (2026-09-13): robots.txt and header
    RSL              Really Simple Licensing 1.0, December 2025: `License: URL` in robots.txt
    ai.txt           Spawning, 2023: /ai.txt, with the rules of a robots.txt
    TDMRep           W3C Community Group, final report of 2024-05-10: /.well-known/tdmrep.json and header
    X-Robots-Tag     header, with the values noai and noimageai of DeviantArt, 2022, beside those of search engines
    PLUS             PLUS LDF 2.0.1 and IPTC Photo Metadata 2023.1: plus:DataMining in XMP
    XMP rights       dc:rights and xmpRights:UsageTerms of XMP, where they say that training or mining is not allowed
    C2PA             assertions c2pa.training-mining (C2PA 1.4) and cawg.training-mining (CAWG 1.1, 2025)
"""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from xml.etree import ElementTree

from multidict import MultiMapping
from protego import Protego

from dataprep.errors import FormatError
from dataprep.messages import one_line
from dataprep.web.requests import SIGNALS, Consent, Evidence, Failed, Status

if TYPE_CHECKING:
    from yarl import URL

MAX_ROBOTS_BYTES = 500 * 1024
"""Maximum number of bytes that are read of a robots.txt, the number that RFC 9309 requires, and of the other files."""
MAX_RULES = 10_000
"""Maximum number of rules in the group for this robot. A site with more rules is not fetched from."""
MAX_WILDCARDS = 2_000
"""Maximum number of * and $ in those rules: each costs 3 us for every URL."""
MAX_COMPARED = 1_000_000
"""Maximum product of wildcards and characters of a URL: about 10 ms. A URL that exceeds it is not fetched."""
MAX_CRAWL_DELAY_S = 30.0
MAX_LICENCES = 4
"""Maximum number of RSL files that are read of a site."""
MAX_PACKET_BYTES = 1 << 20
"""Maximum size of XMP that is parsed."""
MAX_SCOPES = 1_000
"""Maximum number of rules of one signal that are compared with a URL: about 10 ms."""
MAX_PARTS = 10_000
"""Maximum number of segments or chunks of a file that are passed over: about 5 ms; a PNG of 20 MiB has 2,500."""
_MAX_WITHIN = 100
"""Maximum number of elements within one of XMP whose texts are read: nested ones would take quadratic time."""
V = TypeVar("V")
_TEXT_CHARACTERS = 200
"""Length of a statement's text in the evidence."""
ROBOTS, X_ROBOTS_TAG, CONTENT_SIGNAL, CONTENT_USAGE, RSL, AI_TXT, TDMREP, PLUS, RIGHTS, C2PA = SIGNALS
Says = Literal["no", "conditions", "yes"]
_STRICTEST: Sequence[Says] = ("no", "conditions", "yes")
AI_AGENTS = (
    "AI2Bot",
    "Amazonbot",
    "anthropic-ai",
    "Applebot-Extended",
    "Bytespider",
    "CCBot",
    "ClaudeBot",
    "cohere-training-data-crawler",
    "Diffbot",
    "FacebookBot",
    "Google-Extended",
    "GPTBot",
    "ImagesiftBot",
    "img2dataset",
    "meta-externalagent",
    "omgili",
    "PanguBot",
    "Timpibot",
    "Webzio-Extended",
)
"""Agents that fetch for training; a group of robots.txt for one of them is a rule for training."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One thing that is said about training with an image."""

    signal: str
    """One of SIGNALS."""
    says: Says
    """Whether training is allowed; `conditions` if only under conditions, or if what is said cannot be read."""
    text: str
    """What is said, as it was published."""
    url: str
    """Where it is said."""


def decide(statements: Iterable[Statement], policy: Consent) -> Evidence | None:
    """Return the statement because of which an image is refused, or None. The strictest one decides, and among equally
    strict ones the first; the evidence says which others allow it.

    Args:
        policy: ROBOTS weighs robots.txt and X-Robots-Tag alone; PUBLISHED takes each no; STRICT also takes conditions.
    """
    weighed = [each for each in statements if policy is not Consent.ROBOTS or each.signal in (ROBOTS, X_ROBOTS_TAG)]
    refusing = [each for each in weighed if each.says == "no" or (policy, each.says) == (Consent.STRICT, "conditions")]
    if not refusing:
        return None
    said = min(refusing, key=lambda each: _STRICTEST.index(each.says))
    despite = tuple(sorted({each.signal for each in weighed if each.says == "yes"}))
    return Evidence(said.signal, " ".join(said.text.split())[:_TEXT_CHARACTERS], said.url, today(), despite)


def obey(statements: Sequence[Statement], policy: Consent, http_code: int | None = None) -> None:
    """Raise Failed(OPT_OUT) if an image is refused."""
    if evidence := decide(statements, policy):
        raise Failed(Status.OPT_OUT, evidence.reason, http_code, evidence)


def today() -> date:
    return datetime.now(UTC).date()


# Accepted spellings of directives, the same as in protego, and the directives of other specifications.
_ROBOT, _ALLOW, _DISALLOW, _DELAY, _SITE, _OTHER = "User-agent", "Allow", "Disallow", "Crawl-delay", "site", "other"
_LICENCE = "License"
_DIRECTIVES = {
    **dict.fromkeys(("user-agent", "useragent", "user agent"), _ROBOT),
    "allow": _ALLOW,
    **dict.fromkeys(("disallow", "dissallow", "dissalow", "disalow", "diasllow", "disallaw"), _DISALLOW),
    **dict.fromkeys(("crawl-delay", "crawl delay"), _DELAY),
    **dict.fromkeys(("sitemap", "sitemaps", "site-map", "host"), _SITE),
    **dict.fromkeys(("request-rate", "request rate", "visit-time", "visit time"), _OTHER),
    **dict.fromkeys(("content-signal", "content-signals"), CONTENT_SIGNAL),
    "content-usage": CONTENT_USAGE,
    "license": _LICENCE,
}
_OF_PROTEGO = frozenset({_ALLOW, _DISALLOW, _DELAY})


@dataclass(frozen=True, slots=True)
class Scope:
    """The URLs of a site for which something is said, as a path of robots.txt, with its * and $."""

    path: str
    parsed: Protego | None
    """Rules that forbid the path; None if it covers everything."""

    @classmethod
    def of(cls, path: str) -> Scope:
        everything = path in ("/", "*", "/*")
        return cls(path, None if everything else Protego.parse(f"User-agent: *\nDisallow: {path}"))

    def covers(self, url: URL) -> bool:
        return self.parsed is None or not self.parsed.can_fetch(str(url), "*")

    @property
    def wildcards(self) -> int:
        return self.path.count("*") + self.path.count("$")


def _covering(rules: Sequence[tuple[Scope, V]], url: URL) -> Iterator[tuple[Scope, V]]:
    """Yield the rules that cover a URL. Raises FormatError if that takes too long."""
    wildcards = sum(scope.wildcards for scope, _ in rules)
    if len(rules) > MAX_SCOPES or wildcards * len(str(url)) > MAX_COMPARED:
        raise FormatError(f"{len(rules):,} rules and {wildcards:,} wildcards, too many for so long a URL")
    yield from (rule for rule in rules if rule[0].covers(url))


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one site's robots.txt, or of its ai.txt, for one robot."""

    agent: str
    parsed: Protego | None
    """Parsed rules; None if everything is allowed, or if nothing is, for the reason in `refusal`."""
    refusal: str = ""
    wildcards: int = 0
    """Number of * and $ in the rules."""
    weight_bytes: int = 1_000
    """Estimated bytes in memory."""
    usages: tuple[tuple[Scope, str, str], ...] = ()
    """Scope, signal and value of each Content-Signal and Content-Usage."""
    licences: tuple[str, ...] = ()
    """Addresses of RSL files, as they are written."""
    others: Mapping[str, Rules] = field(default_factory=dict)
    """Rules for other agents that have a group of their own."""

    @property
    def crawl_delay_s(self) -> float:
        """Seconds between two requests; 0 if the site demands no delay."""
        delay_s = self.parsed.crawl_delay(self.agent) if self.parsed else None
        return min(max(delay_s or 0.0, 0.0), MAX_CRAWL_DELAY_S)

    def refused(self, url: URL) -> str:
        """Return why the URL may not be fetched; empty if it may."""
        if self.refusal:
            return self.refusal
        if self.wildcards * len(str(url)) > MAX_COMPARED:
            return f"robots.txt has {self.wildcards:,} wildcards, too many for so long a URL"
        if self.parsed and not self.parsed.can_fetch(str(url), self.agent):
            return f"robots.txt of {url.host} forbids it"
        return ""


def rules_of(agent: str, http_code: int, body: bytes = b"", others: Sequence[str] = ()) -> Rules:
    """Return the rules from the answer to a request for robots.txt.

    If there is no such file, everything is allowed. Raises Failed if the server failed, so that nothing is allowed for
    the time being. 429 counts as a failure, because the site may have rules that it does not send now.

    Args:
        others: Other agents; the groups that name one of them are in `Rules.others`.
    """
    if http_code == 200:
        text = _text(body[:MAX_ROBOTS_BYTES])
        lower = text.lower()
        named = {other: _parsed(other, text, named=True) for other in others if other.lower() in lower}
        rules = _parsed(agent, text)
        weight_bytes = rules.weight_bytes + sum(each.weight_bytes for each in named.values())
        return replace(rules, weight_bytes=weight_bytes, others=named)
    if http_code >= 500 or http_code == 429:
        raise Failed(Status.ROBOTS_UNAVAILABLE, f"robots.txt answered {http_code}", http_code)
    return Rules(agent, None)


def _parsed(agent: str, text: str, *, named: bool = False) -> Rules:
    rules = _rules_for(agent.lower(), text, named=named)
    own = [(directive, value) for directive, value in rules if directive in _OF_PROTEGO]
    if len(rules) > MAX_RULES:
        return Rules(agent, None, f"robots.txt has {len(rules):,} rules; at most {MAX_RULES:,} are followed")
    wildcards = sum(value.count("*") + value.count("$") for _, value in rules)
    if wildcards > MAX_WILDCARDS:
        return Rules(agent, None, f"robots.txt has {wildcards:,} wildcards; at most {MAX_WILDCARDS:,} are followed")
    parsed = Protego.parse("\n".join(["User-agent: *", *(f"{directive}: {value}" for directive, value in own)]))
    # Measured by tracemalloc: a rule takes at most 330 bytes and 1.3 times its text, and a wildcard 430 more.
    weight_bytes = 2_000 + 350 * len(rules) + 520 * wildcards + 2 * sum(len(value) for _, value in rules)
    usages = []
    for directive, value in rules:
        if directive in (CONTENT_SIGNAL, CONTENT_USAGE):
            path, _, rest = value.replace("\t", " ").partition(" ") if value.startswith("/") else ("/", "", value)
            usages.append((Scope.of(path), directive, rest.strip()))
    licences = tuple(value for directive, value in rules if directive == _LICENCE)
    return Rules(agent, parsed, "", wildcards, weight_bytes, tuple(usages), licences)


@dataclass(slots=True)
class _Group:
    """Consecutive User-agent lines, and the rules under them."""

    robots: dict[str, None] = field(default_factory=dict)
    """Names that match this robot, in the file's order."""
    rules: list[tuple[str, str]] = field(default_factory=list)


def _rules_for(agent: str, text: str, *, named: bool) -> list[tuple[str, str]]:
    """Return the rules of the groups whose name matches `agent` best, and the licences before all groups; none if no
    group matches.

    As in protego, the longest name that is a prefix of `agent` wins, else `*`; among equal names the first.

    Args:
        named: Pass over groups for `*`.
    """
    everywhere, groups = _groups(agent, text)
    robots = [robot for group in groups for robot in group.robots if not (named and robot == "*")]
    if not robots:
        return [] if named else everywhere
    chosen = max(robots, key=len)
    return everywhere + [rule for group in groups if chosen in group.robots for rule in group.rules]


def _groups(agent: str, text: str) -> tuple[list[tuple[str, str]], list[_Group]]:
    group, in_rules, groups = _Group(), False, []
    everywhere: list[tuple[str, str]] = []
    is_before = True
    for directive, value in _directives(text):
        if directive == _SITE:
            continue
        if directive != _ROBOT:
            if is_before and directive == _LICENCE:
                everywhere.append((directive, value))
            in_rules = True
            if group.robots and value and directive != _OTHER:
                group.rules.append((directive, value))
            continue
        is_before = False
        if in_rules:
            group, in_rules = _Group(), False
        name = value.lower().partition("/")[0].strip()  # without a version, which some write after it
        for robot in {name, name.replace("*", "")}:
            if robot == "*" or (robot and agent.startswith(robot)):
                if not group.robots:
                    groups.append(group)
                group.robots[robot] = None
    return everywhere, groups


def _directives(text: str) -> Iterator[tuple[str, str]]:
    """Yield the directive and value of each line; an unknown directive becomes `_OTHER`, and all other lines are
    skipped."""
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        name, colon, value = line.partition(":")
        directive = _DIRECTIVES.get(name.strip().lower()) if colon else None
        if directive:
            yield directive, value.strip()
        elif colon and not value[:1].strip():
            yield _OTHER, ""
        elif line:
            # Lines without a colon, or with one in the value: "Disallow /a", "Sitemap https://host/sitemap.xml".
            words = line.split(maxsplit=2)
            for count in (1, 2):
                directive = _DIRECTIVES.get(" ".join(words[:count]).lower())
                if directive:
                    yield directive, " ".join(line.split()[count:])
                    break
            else:
                if colon:
                    yield _OTHER, ""


# The most specific category about which something is said decides; each is a part of the ones after it.
_CATEGORIES: Mapping[str, Sequence[Sequence[str]]] = {
    CONTENT_SIGNAL: (("ai-train",),),
    CONTENT_USAGE: (("train-genai", "train-ai"), ("ai", "all", "bots", "tdm")),
}
_MEMBER = re.compile(r"([a-z*][a-z0-9_.*-]*)(?:=([^;]*?))?\s*(?:;.*)?", re.DOTALL)
_PREFERENCE: Mapping[str, Says] = {"n": "no", "no": "no", "y": "yes", "yes": "yes"}


def usage(signal: str, value: str, url: str) -> Iterator[Statement]:
    """Read the value of a Content-Signal or a Content-Usage: a dictionary of categories and preferences (RFC 9651).

    A value that is no dictionary says nothing that can be read. Of several preferences for a category the strictest
    counts, and not the last as there: the lines of a header may have been joined on the way.
    """
    said: dict[str, Says] = {}
    for text in value.split(","):
        member = _MEMBER.fullmatch(text.strip().lower()) if text.isascii() else None
        if member is None:
            if text.strip():
                yield Statement(signal, "conditions", value, url)
                return
            continue
        if preference := _PREFERENCE.get((member[2] or "").strip()):
            said[member[1]] = min(preference, said.get(member[1], "yes"), key=_STRICTEST.index)
    for categories in _CATEGORIES[signal]:
        if found := [said[category] for category in categories if category in said]:
            yield Statement(signal, min(found, key=_STRICTEST.index), value, url)
            return


def headers(values: MultiMapping[str], agent: str, url: str) -> Iterator[Statement]:
    """Read the headers of an answer, whose names are compared without their case."""
    for line in values.getall("X-Robots-Tag", ()):
        if directive := _directive_of(line, agent):
            yield Statement(X_ROBOTS_TAG, "no", directive, url)
    for value in values.getall("Content-Usage", ()):
        yield from usage(CONTENT_USAGE, value, url)
    for value in values.getall("TDM-Reservation", ()):
        if said := _RESERVATION.get(value.strip()):
            yield Statement(TDMREP, said, f"tdm-reservation: {value.strip()}", url)
    for value in values.getall("Link", ()):
        if "application/rsl+xml" in value and re.search(r"rel\s*=\s*\"?[^\";]*\blicense\b", value, re.IGNORECASE):
            yield Statement(RSL, "conditions", value, url)


OPT_OUTS = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})
# Directives of X-Robots-Tag with a colon and a value; before any other colon is a robot's name.
_WITH_VALUES = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
_RESERVATION: Mapping[str, Says] = {"1": "no", "0": "yes"}


def _directive_of(line: str, agent: str) -> str | None:
    """Return the directive of an X-Robots-Tag that forbids the use of an image; after a robot's name and a colon, the
    rest of the line is for that robot only."""
    robot = "*"
    for part in line.lower().split(","):
        name, colon, rest = part.partition(":")
        directive = part.strip()
        if colon and name.strip() not in _WITH_VALUES:
            robot, directive = name.strip(), rest.strip()
        if robot in ("*", agent.lower()) and directive in OPT_OUTS:
            return directive
    return None


Reservations = tuple[tuple[Scope, Says], ...]


def reservations_of(body: bytes) -> Reservations:
    """Read a tdmrep.json. Raises FormatError if it is not one; that says nothing that can be read."""
    try:
        rules = json.loads(body[: MAX_ROBOTS_BYTES + 1])
        if len(rules) > MAX_SCOPES:
            raise FormatError(f"{len(rules):,} rules; at most {MAX_SCOPES:,} are read")
        rows = [(str(rule["location"]), str(rule["tdm-reservation"])) for rule in rules]
        return tuple(
            (Scope.of(path if path[:1] in "/*" else f"/{path}"), _RESERVATION.get(said, "conditions"))
            for path, said in rows
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:  # a path may have characters that no URL has
        raise FormatError(f"not a tdmrep.json: {one_line(error)}") from None


Licences = tuple[tuple[Scope, Says], ...]
_RSL = "{https://rslstandard.org/rsl}"
_TRAINING = frozenset({"all", "ai-all", "ai-train"})
_FREE = frozenset({"free", "attribution"})


def licences_of(body: bytes) -> Licences:
    """Read an RSL file: for each content whether one of its licences permits training without payment. Raises
    FormatError if it is not one."""
    root = _xml(body)
    space = root.tag.removesuffix("rsl")
    if space not in (_RSL, "") or root.tag == space:
        raise FormatError(f"the root is {root.tag[:100]}, not rsl")
    contents = root.findall(f"{space}content")
    if len(contents) > MAX_SCOPES:
        raise FormatError(f"{len(contents):,} contents; at most {MAX_SCOPES:,} are read")
    found: list[tuple[Scope, Says]] = []
    for content in contents:
        licences = [_permits(licence, space) for licence in content.findall(f"{space}license")]
        # They are alternatives: any one of them may be chosen.
        says: Says = max(licences, key=_STRICTEST.index, default="conditions")
        path = re.sub(r"^[a-z]+://[^/]*", "", content.get("url", "/").strip(), flags=re.IGNORECASE)
        found.append((Scope.of(path or "/"), says))
    return tuple(found)


def _permits(licence: ElementTree.Element, space: str) -> Says:
    """Return what one licence says: without `permits` everything is permitted that is not prohibited."""

    def listed(name: str, kind: str) -> set[str]:
        texts = [each.text or "" for each in licence.findall(space + name) if each.get("type", "usage") == kind]
        return set(re.split(r"[\s,]+", " ".join(texts).lower())) - {""}

    permitted = listed("permits", "usage")
    if listed("prohibits", "usage") & _TRAINING or (permitted and not permitted & _TRAINING):
        return "no"
    payments = {payment.get("type", "free").lower() for payment in licence.findall(space + "payment")}
    if payments - _FREE:
        return "no"
    limited = any(listed(name, kind) for name in ("permits", "prohibits") for kind in ("user", "geo"))
    return "conditions" if limited else "yes"


def _text(data: bytes) -> str:
    """Decode UTF-8, or what begins with the byte order mark of UTF-16, which nobody should send and some do."""
    return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", "replace")


def _xml(data: bytes) -> ElementTree.Element:
    """Parse XML without a document type, in UTF-8 or with a byte order mark. Raises FormatError."""
    text = _text(data[: MAX_PACKET_BYTES + 1])
    if len(data) > MAX_PACKET_BYTES or "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise FormatError(f"{len(data):,} bytes of XML, or a document type; neither is read")
    try:
        return ElementTree.fromstring(re.sub(r"^\s*<\?xml[^>]*\?>", "", text))
    except (ElementTree.ParseError, ValueError) as error:
        raise FormatError(f"not XML: {one_line(error)}") from None


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that may say something, and cannot be read."""

    url: str
    why: str


@dataclass(frozen=True, slots=True)
class Site:
    """What a site says of all its URLs; None for a file that it does not have."""

    robots: Rules
    ai: Rules | Unread | None = None
    reservations: Reservations | Unread | None = None
    """The rules of tdmrep.json."""
    licences: Mapping[str, Licences | Unread | None] = field(default_factory=dict)
    """The contents of each RSL file, by its address."""

    @property
    def weight_bytes(self) -> int:
        """Estimated bytes in memory."""
        tables = [each for each in (self.reservations, *self.licences.values()) if isinstance(each, tuple)]
        scopes = [*(usage[0] for usage in self.robots.usages), *(row[0] for table in tables for row in table)]
        ai_bytes = self.ai.weight_bytes if isinstance(self.ai, Rules) else 0
        return self.robots.weight_bytes + ai_bytes + sum(1_000 + 520 * scope.wildcards for scope in scopes)

    def check(self, url: URL, policy: Consent) -> list[Statement]:
        """Return what is said of a URL. Raises Failed(ROBOTS or OPT_OUT) if it may not be fetched."""
        if refusal := self.robots.refused(url):
            at = f"{url.scheme}://{url.raw_authority}/robots.txt"
            raise Failed(Status.ROBOTS, refusal, evidence=Evidence(ROBOTS, refusal, at, today()))
        said = list(self._statements(url))
        obey(said, policy)
        return said

    def _statements(self, url: URL) -> Iterator[Statement]:
        origin = f"{url.scheme}://{url.raw_authority}"
        at = f"{origin}/robots.txt"
        for agent, rules in self.robots.others.items():
            if refusal := rules.refused(url):
                yield Statement(ROBOTS, "no", f"User-agent {agent}: {refusal}", at)
        yield from self._usages(url, at)
        if isinstance(self.ai, Unread):
            yield Statement(AI_TXT, "conditions", self.ai.why, self.ai.url)
        elif self.ai is not None and (refusal := self.ai.refused(url)):
            yield Statement(AI_TXT, "no", refusal.replace(ROBOTS, AI_TXT), f"{origin}/ai.txt")
        yield from _said_of(TDMREP, self.reservations, url, f"{origin}/.well-known/tdmrep.json", first=True)
        for address, rows in self.licences.items():
            yield from _said_of(RSL, rows, url, address, first=False)

    def _usages(self, url: URL, at: str) -> Iterator[Statement]:
        for signal in (CONTENT_SIGNAL, CONTENT_USAGE):
            rules = [(scope, value) for scope, each, value in self.robots.usages if each == signal]
            try:
                covering = list(_covering(rules, url))
            except FormatError as error:
                yield Statement(signal, "conditions", str(error), at)
                continue
            longest = max((len(scope.path.encode()) for scope, _ in covering), default=0)
            for scope, value in covering:
                if len(scope.path.encode()) == longest:
                    yield from usage(signal, value, at)


def _said_of(
    signal: str, rows: Sequence[tuple[Scope, Says]] | Unread | None, url: URL, at: str, *, first: bool
) -> Iterator[Statement]:
    """Yield what rules with scopes say of a URL: by the first that covers it, or by the longest."""
    try:
        covering = list(_covering(rows, url)) if isinstance(rows, tuple) else []
    except FormatError as error:
        rows = Unread(at, str(error))
    if isinstance(rows, Unread):
        yield Statement(signal, "conditions", rows.why, at)
    elif covering:
        scope, says = covering[0] if first else max(covering, key=lambda row: len(row[0].path))
        yield Statement(signal, says, f"{scope.path}: {says}", at)


# Metadata in the file.

_PLUS_SPACE = "{http://ns.useplus.org/ldf/xmp/1.0/}"
_TDM_SPACE = "{http://www.w3.org/ns/tdmrep/}"
_RIGHTS_TAGS = ("{http://purl.org/dc/elements/1.1/}rights", "{http://ns.adobe.com/xap/1.0/rights/}UsageTerms")
_PROPERTIES = frozenset({f"{_PLUS_SPACE}DataMining", f"{_TDM_SPACE}reservation", *_RIGHTS_TAGS})
_RESOURCE = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}resource"
_NO_TRAINING = re.compile(
    r"\b(?:no|not|never|prohibit\w*|forbid\w*|forbidden|without|reserv\w*|opt(?:s|ed)?[ -]out)\b[^.;]{0,120}?"
    r"\b(?:ai|a\.i\.|artificial intelligence|machine[ -]learning|ml|data[ -]mining|tdm)\b"
    r"|\b(?:ai|artificial intelligence|machine[ -]learning|data[ -]mining|tdm)\b[^.;]{0,120}?"
    r"\b(?:prohibited|forbidden|not (?:be )?(?:allowed|permitted|used)|is reserved|are reserved|reserved)\b|\bnoai\b",
    re.IGNORECASE,
)
_XMP_IN_JPEG = b"http://ns.adobe.com/xap/1.0/\0"
_WORTH_PARSING = re.compile(rb"DataMining|rights|UsageTerms|tdmrep|\0<\0|<\0[?a-z]\0")
_MIME = (
    (b"\xff\xd8", "image/jpeg"),
    (b"\x89PNG", "image/png"),
    (b"RIFF", "image/webp"),
    (b"GIF8", "image/gif"),
    (b"II", "image/tiff"),
    (b"MM", "image/tiff"),
)


@dataclass(frozen=True, slots=True)
class Metadata:
    """The parts of a file that may speak of rights."""

    packets: tuple[bytes, ...]
    """XMP."""
    is_signed: bool
    """Whether the file has a C2PA manifest."""


def metadata_of(data: bytes) -> Metadata | None:
    """Find the XMP and C2PA in a file; None if there is neither. Takes a few us, except that a format other than JPEG,
    PNG and WebP is searched as a whole."""
    chunks = _chunks(data)
    if chunks is None:
        begin = data.find(b"<x:xmpmeta")
        end = data.find(b"</x:xmpmeta>", begin)
        packets = [data[begin : end + 12]] if 0 <= begin < end else []
        is_signed = data.find(b"jumdc2pa") >= 0
    else:
        packets = [packet for kind, packet in chunks if kind == "xmp"]
        is_signed = any(kind == "c2pa" for kind, _ in chunks)
    packets = [packet for packet in packets if _WORTH_PARSING.search(packet)]
    return Metadata(tuple(packets), is_signed) if packets or is_signed else None


def _chunks(data: bytes) -> list[tuple[str, bytes]] | None:
    """Return the XMP and C2PA of a JPEG, PNG or WebP; None for another format."""
    if data.startswith(b"\xff\xd8"):
        return list(_of_jpeg(data))
    if data.startswith(b"\x89PNG"):
        return list(_of_png(data))
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return list(_of_webp(data))
    return None


def _of_jpeg(data: bytes) -> Iterator[tuple[str, bytes]]:
    at = 2
    for _ in range(MAX_PARTS):
        if at + 4 > len(data) or data[at] != 0xFF or data[at + 1] in (0xDA, 0xD9):
            return
        if data[at + 1] == 0xFF:  # a fill byte
            at += 1
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4])
        if data[at + 1] == 0xE1 and data.startswith(_XMP_IN_JPEG, at + 4):
            yield "xmp", data[at + 4 + len(_XMP_IN_JPEG) : end]
        elif data[at + 1] == 0xE1 and data.startswith(b"http://ns.adobe.com/xmp/extension/\0", at + 4):
            yield "xmp", data[at + 79 : end]
        elif data[at + 1] == 0xEB and data.startswith(b"JP", at + 4):
            yield "c2pa", b""
        at = end


def _of_png(data: bytes) -> Iterator[tuple[str, bytes]]:
    at, is_first = 8, True  # the specification of XMP allows one packet
    for _ in range(MAX_PARTS):
        if at + 12 > len(data):
            return
        length, kind = int.from_bytes(data[at : at + 4]), data[at + 4 : at + 8]
        if kind == b"iTXt" and is_first and data.startswith(b"XML:com.adobe.xmp\0", at + 8):
            is_first = False
            begin, end = at + 8 + 18, at + 8 + length
            packed = data[begin : begin + 1] == b"\1"
            text = data[begin + 2 : end].split(b"\0", 2)[-1]
            with suppress(zlib.error):
                yield "xmp", zlib.decompressobj().decompress(text, MAX_PACKET_BYTES + 1) if packed else text
        elif kind == b"caBX":
            yield "c2pa", b""
        at += 12 + length


def _of_webp(data: bytes) -> Iterator[tuple[str, bytes]]:
    at = 12
    for _ in range(MAX_PARTS):
        if at + 8 > len(data):
            return
        kind, length = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if kind == b"XMP ":
            yield "xmp", data[at + 8 : at + 8 + length]
        elif kind == b"C2PA":
            yield "c2pa", b""
        at += 8 + length + length % 2


def in_file(data: bytes, found: Metadata, url: str) -> list[Statement]:
    """Read what the metadata of a file say; `found` is from `metadata_of`."""
    said = [statement for packet in found.packets for statement in xmp(packet, url)]
    return said + list(_c2pa(data, url)) if found.is_signed else said


def xmp(packet: bytes, url: str) -> Iterator[Statement]:
    """Read XMP. What cannot be parsed is a condition where it names a property of rights."""
    packet = packet.strip(b"\0 \r\n\t")
    try:
        root = _xml(re.sub(rb"<\?xpacket[^>]*\?>", b"", packet).strip() if packet[:1] == b"<" else packet)
    except FormatError as error:
        if re.search(rb"D\0?a\0?t\0?a\0?M\0?i\0?n\0?i\0?n\0?g", packet):
            yield Statement(PLUS, "conditions", str(error), url)
        return
    for element in root.iter():
        for name, value in (*element.attrib.items(), (element.tag, "")):
            if name == element.tag in _PROPERTIES:
                texts = [each.text or "" for each in islice(element.iter(), _MAX_WITHIN)]
                value = " ".join(texts).strip() or element.get(_RESOURCE, "")
            if name == f"{_PLUS_SPACE}DataMining" and (said := _mining(value)):
                yield Statement(PLUS, said, value, url)
            elif name == f"{_TDM_SPACE}reservation" and (said := _RESERVATION.get(value.strip())):
                yield Statement(TDMREP, said, f"tdm:reservation {value}", url)
            elif name in _RIGHTS_TAGS and _NO_TRAINING.search(value[:10_000]):
                yield Statement(RIGHTS, "no", value, url)


def _mining(value: str) -> Says | None:
    """Return what a value of plus:DataMining says; all prohibitions include training, or may."""
    term = value.strip().rpartition("/")[2].upper()
    if term.startswith("DMI-PROHIBITED") or value.strip().lower().startswith("prohibited"):
        return "no"
    return {"DMI-ALLOWED": "yes", "DMI-UNSPECIFIED": None, "": None}.get(term, "conditions")


_ENTRIES = frozenset({"ai_training", "ai_generative_training", "data_mining"})
_LABELS = frozenset({"c2pa.training-mining", "cawg.training-mining"})
_VERIFY = dict.fromkeys(
    ("verify_after_reading", "verify_trust", "verify_timestamp_trust", "remote_manifest_fetch", "ocsp_fetch"), False
)
"""Settings of c2pa-rs under which reading a file asks nothing of the network."""
_USES: Mapping[str, Says] = {"notAllowed": "no", "constrained": "conditions", "allowed": "yes"}
_CONSTRAINTS = frozenset({"constraint_info", "constraints_info"})  # the specifications have one, examples the other


def _c2pa(data: bytes, url: str) -> Iterator[Statement]:
    """Read the assertions on training of a C2PA manifest. Signatures are not judged: anybody may say no."""
    try:
        import c2pa
    except ImportError:
        yield Statement(C2PA, "conditions", "a manifest that needs the package c2pa-python", url)
        return
    mime = next((mime for magic, mime in _MIME if data.startswith(magic)), "image/avif")
    try:
        context = c2pa.Context(c2pa.Settings.from_dict({"verify": _VERIFY}))
        with c2pa.Reader(mime, io.BytesIO(data), context=context) as reader:
            uses = list(_uses(json.loads(reader.json())))
    except (c2pa.C2paError, ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        yield Statement(C2PA, "conditions", f"a manifest that cannot be read: {one_line(error)}", url)
        return
    for name, use, is_explained in uses:
        if said := _USES.get(use):
            # CAWG 1.1: constrained without more information is the same as notAllowed.
            yield Statement(C2PA, "no" if said == "conditions" and not is_explained else said, f"{name}: {use}", url)


def _uses(store: Any) -> Iterator[tuple[str, str, bool]]:
    """Yield the entries on training of all manifests, as JSON of c2pa-rs has them, and whether each has constraints."""
    for manifest in store["manifests"].values():
        for assertion in manifest.get("assertions", ()):
            if assertion["label"].partition("__")[0] in _LABELS:
                for name, entry in assertion["data"]["entries"].items():
                    if name.partition(".")[2] in _ENTRIES:
                        yield name, str(entry["use"]), not _CONSTRAINTS.isdisjoint(entry)
