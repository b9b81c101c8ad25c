"""Reading from a local disk: nothing is read ahead, nothing is held."""

from __future__ import annotations

import itertools


def test_on_disk_nothing_is_read_ahead(dataset, fetching):
    opened = fetching(dataset("webdataset"))
    picks = list(itertools.islice(opened.order().picks(0), 10))
    tickets = [opened.fetcher.request(pick) for pick in picks]
    assert opened.fetcher.stats()["requests"] == 0
    for ticket in tickets:
        ticket.wait()
    assert opened.fetcher.stats()["requests"] == 10
    assert opened.fetcher.stats()["most_held_bytes"] == 0
