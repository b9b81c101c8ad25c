"""Polite access to hosts: obeys robots.txt and headers, limits requests in flight and per second, pauses on demand, and
spares a host that is down; and a cache of what a process has learnt about hosts.

A robots.txt (RFC 9309) is hostile input. The group for this robot is extracted in time and memory proportional to the
text; protego then parses this group only, because it would keep a copy of each other group for each of its agents.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakValueDictionary

from protego import Protego

from dataprep.web.requests import Failed, Limits, Status

if TYPE_CHECKING:
    from aiohttp.abc import ResolveResult
    from yarl import URL


DOWN_S = 60.0
"""Time for which a host that does not answer gets no requests: enough for the rest of its rows in an ordinary shard."""
HOSTS_KEPT = 20_000
"""Number of hosts whose gates are kept: more than a shard has, in 15 MB. Beyond this number only gates with waiting
rows stay."""
_LATE = "no turn at its host in time"
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
V = TypeVar("V")
FAILURE_KEPT_S = 60.0
"""Time for which a failure is cached: long enough for a shard's rows of one dead host, while later shards try again."""


class Gate:
    """The gate of one host, through which every request to it passes."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.host_connections)
        self._interval_s = 1 / limits.host_per_s
        self._next_s = 0.0
        self._unanswered = 0
        self._down_until_s = 0.0

    async def enter(self, until_s: float) -> None:
        """Take one of the host's connections, until `leave`, and wait until a request may begin.

        Args:
            until_s: Deadline, as a time of the event loop.

        Raises:
            Failed: HOST_BUSY or HOST_DOWN.
        """
        if self._slots.locked():
            try:
                async with asyncio.timeout_at(until_s):
                    await self._slots.acquire()
            except TimeoutError:
                raise Failed(Status.HOST_BUSY, _LATE) from None
        else:
            await self._slots.acquire()  # at once
        try:
            await self._spacing(until_s)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Release the connection."""
        self._slots.release()

    def pause(self, pause_s: float) -> None:
        """Begin no request for some seconds."""
        self._next_s = max(self._next_s, asyncio.get_running_loop().time() + pause_s)

    def slow_down(self, interval_s: float) -> None:
        """Set the shortest interval between two requests."""
        self._interval_s = max(self._interval_s, interval_s)

    def note(self, *, answered: bool) -> None:
        """Record whether a request was answered."""
        self._unanswered = 0 if answered else self._unanswered + 1
        if self._unanswered >= self._limits.host_failures:
            self._down_until_s = asyncio.get_running_loop().time() + DOWN_S

    async def _spacing(self, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now_s = loop.time()
            if self._unanswered >= self._limits.host_failures and now_s < self._down_until_s:
                raise Failed(Status.HOST_DOWN, f"its host left {self._unanswered} requests without an answer")
            if max(self._next_s, now_s) >= until_s:
                raise Failed(Status.HOST_BUSY, _LATE)
            if self._next_s <= now_s:
                break
            await asyncio.sleep(self._next_s - now_s)
        self._next_s = now_s + self._interval_s


class Gates:
    """The gates of all hosts, by name; each of the many names of a CDN is a host of its own."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._gates: WeakValueDictionary[str, Gate] = WeakValueDictionary()
        self._kept: deque[Gate] = deque(maxlen=HOSTS_KEPT)

    def of(self, host: str) -> Gate:
        host = host.rstrip(".")
        gate = self._gates.get(host)
        if gate is None:
            gate = self._gates[host] = Gate(self._limits)
            self._kept.append(gate)
        return gate


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """Return the seconds in a Retry-After header, given as a number or as a date; None if it has neither."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return max((when.replace(tzinfo=when.tzinfo or UTC) - now).total_seconds(), 0.0)


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

    If there is no such file, everything is allowed. Raises Failed if the server failed, so that nothing is allowed for
    the time being. 429 counts as a failure, because the site may have rules that it does not send now.
    """
    if http_code == 200:
        return _parsed(agent, body[:MAX_ROBOTS_BYTES].decode("utf-8-sig", "replace"))
    if http_code >= 500 or http_code == _TOO_MANY_REQUESTS:
        raise Failed(Status.ROBOTS_UNAVAILABLE, f"robots.txt answered {http_code}", http_code)
    return Rules(agent, None)


def opt_out(robots_tags: Iterable[str], tdm_reservation: str | None, agent: str) -> str | None:
    """Return the directive with which an answer's headers forbid the use of its image, or None.

    Args:
        robots_tags: Values of X-Robots-Tag, one for each header line. After a robot's name and a colon, the rest of the
            line is for that robot only.
        tdm_reservation: Value of TDM-Reservation (W3C's TDM Reservation Protocol).
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


class Cache(Generic[V]):
    """A cache of values or failures by key, bounded in weight and time; each value is made once, even for concurrent
    callers.

    Only one event loop at a time may use it.
    """

    def __init__(self, max_weight: int, kept_s: float, weight: Callable[[V], int] = lambda value: 1) -> None:
        self._max_weight, self._kept_s, self._weight_of = max_weight, kept_s, weight
        self._weight = 0
        self._entries: dict[str, _Entry[V]] = {}
        self._making: dict[str, asyncio.Task[V | Failed]] = {}

    async def get(self, key: str, make: Callable[[], Awaitable[V]]) -> V:
        """Return the value of `key`; if it is absent or too old, make it with `make`. Raises Failed if `make` raised
        it, now or within the last FAILURE_KEPT_S."""
        entry = self._entries.get(key)
        if entry and entry.until_s > time.monotonic():
            value = entry.value
        else:
            if key not in self._making:
                self._making[key] = asyncio.create_task(self._make(key, make))
            # A caller that waits may be cancelled; the others still want the value.
            value = await asyncio.shield(self._making[key])
        if isinstance(value, Failed):
            raise value.again()
        return value

    async def stop(self) -> None:
        """Cancel all calls of `make` that are running."""
        making = list(self._making.values())
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)
        self._making.clear()

    async def _make(self, key: str, make: Callable[[], Awaitable[V]]) -> V | Failed:
        try:
            try:
                value: V | Failed = await make()
            except Failed as failure:
                value = failure.again()
            self._put(key, value)
            return value
        finally:
            self._making.pop(key, None)

    def _put(self, key: str, value: V | Failed) -> None:
        failed = isinstance(value, Failed)
        weight = 1 if isinstance(value, Failed) else self._weight_of(value)
        kept_s = FAILURE_KEPT_S if failed else self._kept_s
        self._drop(key)
        self._entries[key] = _Entry(value, time.monotonic() + kept_s, weight)
        self._weight += weight
        while self._weight > self._max_weight:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: str) -> None:
        if entry := self._entries.pop(key, None):
            self._weight -= entry.weight


def _robots_cache() -> Cache[Rules]:
    # Room for about 30,000 sites of an ordinary size. RFC 9309, 2.4: rules are kept for a day at most.
    return Cache(128 << 20, 86_400.0, lambda rules: rules.weight_bytes)


def _name_cache() -> Cache[list[ResolveResult]]:
    return Cache(200_000, 300.0)


@dataclass(frozen=True, slots=True)
class Known:
    """Cached addresses of host names, and rules of their robots.txt.

    Calls of `fetch_many` in a process share one; they must run one after the other, with the same limits.
    """

    names: Cache[list[ResolveResult]] = field(default_factory=_name_cache)
    robots: Cache[Rules] = field(default_factory=_robots_cache)

    async def stop(self) -> None:
        """Cancel look-ups in flight; cached values stay."""
        await asyncio.gather(self.names.stop(), self.robots.stop())


@dataclass(slots=True)
class _Group:
    """Consecutive User-agent lines, and the rules under them."""

    robots: dict[str, None] = field(default_factory=dict)
    """Names that match this robot, in the file's order."""
    rules: list[tuple[str, str]] = field(default_factory=list)


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
        name = value.lower().partition("/")[0].strip()  # without a version, which some write after it
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


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V | Failed
    until_s: float
    weight: int
