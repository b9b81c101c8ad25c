"""Sites that change their minds about images which a dataset has, and what a check must find of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import dataprep
from loaders import open_loader
from tests.support.living import Ledger, keys_of
from tests.support.name_server import name_server
from tests.support.web_pages import DOMAIN, JPEG_TYPE, own_picture
from tests.support.web_server import WebServer, addresses_of, web_server

ROWS_A_HOST = 50
SETTINGS = {"batch_size": 16, "image_size": 16, "threads": 1}
WAYS = ("robots.txt", "Content-Signal", "TDMRep", "ai.txt", "X-Robots-Tag", "Content-Usage")
"""Signals by which sites change their minds; the last two are headers of single images."""


@dataclass
class Sites:
    """A web of images, a dataset of them, and what is due of a check."""

    web: WebServer
    polite: Mapping[str, object]
    """Arguments that reach the web."""
    url: str
    rows: int
    minding: dict[int, str] = field(default_factory=dict)
    """Signals by the row of each image whose site minds."""

    def host(self, row: int) -> str:
        return f"host-{row // ROWS_A_HOST * 16}.{DOMAIN}"  # of 16 hosts one is special

    def path(self, row: int) -> str:
        return f"/own/{row}"

    def change_minds(self, share: float, rng: random.Random) -> None:
        """Let a share of the images be refused, each in one of WAYS."""
        hosts: dict[str, list[int]] = {}
        for number, row in enumerate(rng.sample(range(self.rows), max(len(WAYS), int(share * self.rows)))):
            way = WAYS[number % len(WAYS)]
            self.minding[row] = way
            if way == "X-Robots-Tag":
                self._say(row, "X-Robots-Tag: noai")
            elif way == "Content-Usage":
                self._say(row, "Content-Usage: train-ai=n")
            else:
                hosts.setdefault(self.host(row), []).append(row)
        for host, rows in hosts.items():
            by_way = {way: [row for row in rows if self.minding[row] == way] for way in WAYS}
            paths = {way: [f"{self.path(row)}$" for row in found] for way, found in by_way.items()}
            robots = ["User-agent: *", *(f"Disallow: {path}" for path in paths["robots.txt"])]
            robots += [f"Content-Signal: {path} ai-train=no" for path in paths["Content-Signal"]]
            reserved = [{"location": path, "tdm-reservation": 1} for path in paths["TDMRep"]]
            self.web.robots[host] = "\n".join(robots)
            self.web.pages[host, "/.well-known/tdmrep.json"] = json.dumps(reserved).encode(), ()
            ai = "\n".join(["User-agent: *", *(f"Disallow: {path}" for path in paths["ai.txt"])])
            self.web.pages[host, "/ai.txt"] = ai.encode(), ()

    def _say(self, row: int, header: str) -> None:
        self.web.pages[self.host(row), self.path(row)] = own_picture(self.path(row)), (JPEG_TYPE, header)

    @property
    def requests(self) -> list[str]:
        """The methods and paths of images that were asked for so far."""
        lines = [head.start_line.split(" ") for head in self.web.heads]
        return [f"{method} {path}" for method, path, _ in lines if path.startswith("/own/")]


@contextmanager
def fetched_sites(
    folder: Path, rows: int, rows_per_shard: int, minding: random.Random | None = None
) -> Iterator[Sites]:
    """Build a dataset of images from many hosts, none of which minds yet.

    Args:
        minding: Let a few sites mind before, drawn by this.
    """
    with web_server() as web, name_server(addresses_of) as names:
        polite = {
            "contact": "mailto:tests@example.org",
            "allow_network": "127.0.0.0/8",
            "nameserver": names.address,
            "host_per_second": 1e4,
            "address_per_second": 1e5,
            "address_connections": 1000,
            "read_seconds": 100.0,
            "answer_seconds": 200.0,
            "row_seconds": 600.0,
            "workers": 2,
        }
        sites = Sites(web, polite, str(folder / "data"), rows)
        if minding is not None:
            sites.change_minds(0.05, minding)
        columns = {
            "URL": [web.url(sites.path(row), sites.host(row)) for row in range(rows)],
            "TEXT": [f"picture {row}" for row in range(rows)],
            "LICENSE": [None] * rows,
            "similarity": [0.3] * rows,
        }
        pq.write_table(pa.table(columns), folder / "t.parquet")
        dataprep.build_laion(
            source=str(folder / "t.parquet"),
            output=sites.url,
            format="webdataset",
            rows_per_shard=rows_per_shard,
            image_size=32,
            **polite,
        )
        web.heads.clear()
        yield sites


def train(url: str, ledger: Ledger, state: dict | None = None, batches: int | None = None) -> dict:
    """Deliver the rest of an epoch, or its first batches, and return the state after them."""
    with open_loader(url, **SETTINGS) as loader:
        if state is not None:
            loader.load_state_dict(state)
        for number, batch in enumerate(loader, 1):
            for key in filter(None, batch.keys):
                ledger.take(key)
            state = batch.state
            if number == batches:
                break
    assert state is not None
    return state


def check_minds(folder: Path, rows: int, rows_per_shard: int, share: float = 0.01) -> str:
    """Check a dataset of which a share is refused now: all of it is found, nothing else, and no image is fetched. A
    training that is under way goes on through the view, and then through the removal."""
    with fetched_sites(folder, rows, rows_per_shard) as sites:
        keys = sorted(keys_of(sites.url))
        ledger = Ledger(keys)
        state = train(sites.url, ledger, batches=2)
        sites.change_minds(share, random.Random(rows))
        due = {keys[row]: way for row, way in sites.minding.items()}
        found = dataprep.recheck(sites.url, output=str(folder / "check"), **sites.polite)
        by_site = sum(way not in WAYS[4:] for way in due.values())
        assert Counter(line.split()[0] for line in sites.requests) == {"HEAD": rows - by_site}
        assert (found.asked, found.unreached) == (rows, {})
        lines = Path(found.takedown).read_text().splitlines()
        told = dict(zip(lines[2::2], (json.loads(line[2:]) for line in lines[1::2]), strict=True))
        assert {key: said["signal"] for key, said in told.items()} == due
        assert found.allowed == rows - len(due)
        assert not any({"signal", "text", "url", "asked"} - said.keys() for said in told.values())
        assert ledger.change({*keys} - {*due}) == (len(due), 0)
        state = train(found.view, ledger, state, batches=2)
        removed = dataprep.remove(sites.url, keys=found.takedown)
        assert (sum(removed.samples.values()), removed.unknown) == (len(due), ())
        assert ledger.change(keys_of(sites.url)) == (0, 0)
        train(sites.url, ledger, state)
        assert dataprep.recheck(sites.url, output=str(folder / "again"), **sites.polite).refused == {}
        return f"{rows} images, {len(due)} refused: {found.refused}"
