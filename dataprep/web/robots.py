"""Reads a site's rules for robots: robots.txt (RFC 9309), and the opt-outs in an answer's headers. Pure.

A robots.txt is hostile input. This module extracts the group for this robot, in time and memory proportional to the
text; protego then parses this group only, because it would keep a copy of each other group for each of its agents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protego import Protego

from dataprep.web.outcomes import Failed, Status

if TYPE_CHECKING:
    from yarl import URL

MAX_ROBOTS_BYTES = 500 * 1024
"""Maximum number of bytes that are read of a robots.txt: the number that RFC 9309 requires."""
MAX_RULES = 10_000
"""Maximum number of rules in the group for this robot. A site with more rules is not fetched from."""
MAX_WILDCARDS = 2_000
"""Maximum number of * and $ in those rules: each costs 3 us for every URL."""
MAX_COMPARED = 1_000_000
"""Maximum product of wildcards and characters of a URL: about 10 ms. A URL that exceeds it is not fetched."""
MAX_CRAWL_DELAY_S = 30.0

# Accepted spellings of directives, the same as in protego.
_ROBOT, _ALLOW, _DISALLOW, _DELAY, _SITE, _OTHER = "User-agent", "Allow", "Disallow", "Crawl-delay", "site", "other"
_DIRECTIVES = {
    **dict.fromkeys(("user-agent", "useragent", "user agent"), _ROBOT),
    "allow": _ALLOW,
    **dict.fromkeys(("disallow", "dissallow", "dissalow", "disalow", "diasllow", "disallaw"), _DISALLOW),
    **dict.fromkeys(("crawl-delay", "crawl delay"), _DELAY),
    **dict.fromkeys(("sitemap", "sitemaps", "site-map", "host"), _SITE),
    **dict.fromkeys(("request-rate", "request rate", "visit-time", "visit time"), _OTHER),
}

OPT_OUTS = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})
# Directives of X-Robots-Tag with a colon and a value; before any other colon is a robot's name.
_WITH_VALUES = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
_TOO_MANY_REQUESTS = 429


@dataclass(slots=True)
class _Group:
    """Consecutive User-agent lines, and the rules under them."""

    robots: dict[str, None] = field(default_factory=dict)
    """Names that match this robot, in the file's order."""
    rules: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one site's robots.txt for one robot."""

    agent: str
    parsed: Protego | None
    """Parsed rules; None if everything is allowed, or if nothing is, for the reason in `refusal`."""
    refusal: str = ""
    wildcards: int = 0
    """Number of * and $ in the rules."""
    weight_bytes: int = 1_000
    """Estimated bytes in memory."""

    @property
    def crawl_delay_s(self) -> float:
        """Seconds between two requests; 0 if the site demands no delay."""
        delay_s = self.parsed.crawl_delay(self.agent) if self.parsed else None
        return min(max(delay_s or 0.0, 0.0), MAX_CRAWL_DELAY_S)

    def check(self, url: URL) -> None:
        """Raise Failed(ROBOTS) if the URL may not be fetched."""
        if self.refusal:
            raise Failed(Status.ROBOTS, self.refusal)
        if self.wildcards * len(str(url)) > MAX_COMPARED:
            raise Failed(Status.ROBOTS, f"robots.txt has {self.wildcards:,} wildcards, too many for so long a URL")
        if self.parsed and not self.parsed.can_fetch(str(url), self.agent):
            raise Failed(Status.ROBOTS, f"robots.txt of {url.host} forbids it")


def rules_of(agent: str, http_code: int, body: bytes = b"") -> Rules:
    """Return the rules from the answer to a request for robots.txt.

    If there is no such file, everything is allowed.

    Raises:
        Failed: The server failed, so that nothing is allowed for the time being. 429 counts as a failure, because the
            site may have rules that it does not send now.
    """
    if http_code == 200:
        return _parsed(agent, body[:MAX_ROBOTS_BYTES].decode("utf-8-sig", "replace"))
    if http_code >= 500 or http_code == _TOO_MANY_REQUESTS:
        raise Failed(Status.ROBOTS_UNAVAILABLE, f"robots.txt answered {http_code}", http_code)
    return Rules(agent, None)


def _parsed(agent: str, text: str) -> Rules:
    rules = _rules_for(agent.lower(), text)
    if len(rules) > MAX_RULES:
        return Rules(agent, None, f"robots.txt has {len(rules):,} rules; at most {MAX_RULES:,} are followed")
    wildcards = sum(value.count("*") + value.count("$") for _, value in rules)
    if wildcards > MAX_WILDCARDS:
        return Rules(agent, None, f"robots.txt has {wildcards:,} wildcards; at most {MAX_WILDCARDS:,} are followed")
    parsed = Protego.parse("\n".join(["User-agent: *", *(f"{directive}: {value}" for directive, value in rules)]))
    # Measured by tracemalloc: a rule takes at most 330 bytes and 1.3 times its text, and a wildcard 430 more.
    weight_bytes = 2_000 + 350 * len(rules) + 520 * wildcards + 2 * sum(len(value) for _, value in rules)
    return Rules(agent, parsed, wildcards=wildcards, weight_bytes=weight_bytes)


def _rules_for(agent: str, text: str) -> list[tuple[str, str]]:
    """Return the rules of the groups whose name matches `agent` best; none if no group matches.

    As in protego, the longest name that is a prefix of `agent` wins, else `*`; among equal names the first.
    """
    groups = _groups(agent, text)
    robots = [robot for group in groups for robot in group.robots]
    if not robots:
        return []
    chosen = max(robots, key=len)
    return [rule for group in groups if chosen in group.robots for rule in group.rules]


def _groups(agent: str, text: str) -> list[_Group]:
    """Return all groups that are for `agent`, by its name or by `*`."""
    group, in_rules, groups = _Group(), False, []
    for directive, value in _directives(text):
        if directive == _SITE:
            continue
        if directive != _ROBOT:
            in_rules = True
            if group.robots and value and directive != _OTHER:
                group.rules.append((directive, value))
            continue
        if in_rules:
            group, in_rules = _Group(), False
        name = value.lower().partition("/")[0].strip()  # without a version, which some write behind it
        for robot in {name, name.replace("*", "")}:
            if robot == "*" or (robot and agent.startswith(robot)):
                if not group.robots:
                    groups.append(group)
                group.robots[robot] = None
    return groups


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


def opt_out(robots_tags: Iterable[str], tdm_reservation: str | None, agent: str) -> str | None:
    """Return the directive with which an answer's headers forbid the use of its image, or None.

    Args:
        robots_tags: Values of X-Robots-Tag, one for each header line. After a robot's name and a colon, the rest of the
            line is for that robot only.
        tdm_reservation: Value of TDM-Reservation (W3C's TDM Reservation Protocol).
        agent: This robot's name.
    """
    if (tdm_reservation or "").strip() == "1":
        return "tdm-reservation"
    for line in robots_tags:
        robot = "*"
        for part in line.lower().split(","):
            name, colon, rest = part.partition(":")
            directive = part.strip()
            if colon and name.strip() not in _WITH_VALUES:
                robot, directive = name.strip(), rest.strip()
            if robot in ("*", agent.lower()) and directive in OPT_OUTS:
                return directive
    return None
