"""`replicas.json`: where copies of a dataset stand. Not part of any digest, so that a copy changes nothing.

{"version": 1, "replicas": [{"url": "gs://…", "location": "EUROPE-WEST4", "location_type": "region",
                             "data_locations": []}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from dataprep.errors import FormatError
from dataprep.prices import Prices
from dataprep.region import Verdict, verdict
from dataprep.storage.base import Storage
from dataprep.storage.gcs_location import BucketLocation

REPLICAS = "replicas.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Replica:
    """A whole copy of a dataset."""

    url: str
    bucket: BucketLocation


def read_replicas(storage: Storage) -> list[Replica]:
    """The copies that a dataset knows of; none where there is no such file.

    Raises:
        FormatError: The file is not what it should be.
    """
    try:
        document = json.loads(storage.read(REPLICAS))
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise _unreadable(storage, error) from error
    try:
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']}, expected {VERSION}")
        return [_replica(entry) for entry in document["replicas"]]
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(storage, error) from error


def nearest(replicas: Iterable[Replica], where: str, prices: Prices) -> tuple[Replica, Verdict] | None:
    """The copy that is read for the least; None where no price is known."""
    judged = [(replica, verdict(replica.bucket, where, prices)) for replica in replicas]
    known = [(replica, found) for replica, found in judged if found.usd_per_gib is not None]
    return min(known, key=lambda each: each[1].usd_per_gib or 0.0, default=None)


def _replica(entry: dict[str, object]) -> Replica:
    places = entry.get("data_locations", [])
    if not isinstance(places, list):
        raise TypeError(f"data_locations {places!r}")
    return Replica(
        url=str(entry["url"]),
        bucket=BucketLocation(
            location=str(entry["location"]),
            location_type=str(entry["location_type"]),
            data_locations=tuple(str(place) for place in places),
        ),
    )


def _unreadable(storage: Storage, error: Exception) -> FormatError:
    return FormatError(f"{storage.url_of(REPLICAS)}: no list of replicas ({error}); remove it, or copy again")
