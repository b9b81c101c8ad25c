"""What a site says about robots: robots.txt (RFC 9309) and the opt-outs in an answer's head. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protego import Protego

from dataprep.web.outcomes import Failed, Status

if TYPE_CHECKING:
    from yarl import URL

MAX_ROBOTS_BYTES = 500 * 1024
"""What RFC 9309 asks a robot to read at least; the rest is not looked at."""
MAX_CRAWL_DELAY_S = 30.0

OPT_OUTS = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})
# The directives of X-Robots-Tag whose own values follow a colon, as a robot's name is followed by its directives.
_WITH_VALUES = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
_TOO_MANY_REQUESTS = 429


@dataclass(frozen=True, slots=True)
class Rules:
    """What one site's robots.txt means for one robot."""

    agent: str
    parsed: Protego | None
    """None: everything is allowed, or nothing where `refusal` says why."""
    refusal: str = ""
    weight_bytes: int = 1_000
    """About what it holds in memory."""

    @property
    def crawl_delay_s(self) -> float:
        """Seconds between two requests, 0 where nothing is said."""
        delay_s = self.parsed.crawl_delay(self.agent) if self.parsed else None
        return min(max(delay_s or 0.0, 0.0), MAX_CRAWL_DELAY_S)

    def check(self, url: URL) -> None:
        """Raises Failed(ROBOTS) where the URL may not be asked for."""
        if self.refusal:
            raise Failed(Status.ROBOTS, self.refusal)
        if self.parsed and not self.parsed.can_fetch(str(url), self.agent):
            raise Failed(Status.ROBOTS, f"robots.txt of {url.host} forbids it")


def rules_of(agent: str, http_code: int, body: bytes = b"") -> Rules:
    """The rules in the answer to a request for robots.txt: none where there is no such file, all where it failed.

    429 counts as a failure: the site does answer robots, only not now.
    """
    if http_code == 200:
        text = body[:MAX_ROBOTS_BYTES].decode("utf-8-sig", "replace")
        # Parsed rules take 7 to 30 times their text, by tracemalloc, 20 where it is short.
        return Rules(agent, Protego.parse(text), weight_bytes=1_000 + 30 * len(text))
    if http_code >= 500 or http_code == _TOO_MANY_REQUESTS:
        return Rules(agent, None, f"robots.txt answered {http_code}")
    return Rules(agent, None)


def opt_out(robots_tags: Iterable[str], tdm_reservation: str | None, agent: str) -> str | None:
    """The directive by which an answer's head keeps its image from being used, or None.

    Args:
        robots_tags: Values of X-Robots-Tag, one a header line. A robot's name and a colon before a directive make the
            rest of that line that robot's alone.
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
