"""Other places of a dataset are compared with this one from their lists: what differs is named, with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataprep.dataset.replicas import Replica, record_replicas
from dataprep.storage import open_storage
from dataprep.storage.gcs_location import BucketLocation
from dataprep.verification.findings import Findings
from dataprep.verification.replicas import check_replicas


@pytest.fixture
def places(finished, bucket_url):
    """Two places of one dataset, each with a list of both."""
    folder: Path = finished("imagenet-webdataset")
    storages = [open_storage(f"{bucket_url}/{name}") for name in ("first", "second")]
    for storage in storages:
        for path in folder.rglob("*"):
            if path.is_file() and "_build" not in path.parts:
                storage.create(path.relative_to(folder).as_posix(), path.read_bytes())
    for storage in storages:
        record_replicas(storage, [Replica(each.url, BucketLocation(location="US")) for each in storages])
    return storages


def compared(storage) -> tuple[int, list[tuple[str, str]]]:
    """Number of places that were compared, and the kind and place of each finding."""
    findings = Findings()
    count = check_replicas(storage, lambda _: None, findings)
    return count, sorted((finding.kind, finding.where) for finding in findings.listed)


def test_places_of_the_same_bytes_do_not_differ(places):
    assert compared(places[0]) == (1, [])
    assert compared(places[1]) == (1, [])


def test_a_dataset_without_a_list_has_no_other_places(finished):
    assert compared(open_storage(str(finished("imagenet-webdataset")))) == (0, [])


def test_what_is_missing_or_of_another_size_or_of_other_bytes_is_named(places):
    first, second = places
    gone, cut, other = [info.name for info in first.list("train/")][:3]
    data = {name: first.read(name) for name in (cut, other)}
    for name in (gone, cut, other):
        second.delete(name)
    second.create(cut, data[cut][:-1])
    second.create(other, bytes([data[other][0] ^ 1]) + data[other][1:])
    assert compared(first) == (
        1,
        sorted([("missing", second.url_of(gone)), ("size", second.url_of(cut)), ("digest", second.url_of(other))]),
    )


def test_cards_which_replicate_leaves_alone_may_differ_or_be_absent(places):
    first, second = places
    first.create("README.md", b"the one")
    second.create("README.md", b"another")
    first.create("croissant.json", b"{}")
    assert compared(first) == (1, [])


def test_a_place_that_cannot_be_asked_is_undecided(places):
    gone = "gs://no-such-bucket-anywhere/x"
    record_replicas(places[0], [Replica(gone, BucketLocation(location="US"))])
    count, found = compared(places[0])
    assert (count, found) == (2, [("unread", gone)])
