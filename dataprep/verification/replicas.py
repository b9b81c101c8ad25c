"""Compares the copies of a dataset with it: size and CRC32C of every object but its cards, from listings, without
reading the objects."""

from __future__ import annotations

from collections.abc import Callable

from dataprep.builder.finished import shape_faults
from dataprep.cloud.placement import is_bucket
from dataprep.cloud.replicate import CARDS, dataset_phases
from dataprep.dataset.replicas import REPLICAS, read_replicas
from dataprep.errors import DataprepError
from dataprep.storage import ObjectInfo, Storage, open_storage
from dataprep.storage.checksums import crc32c_hex
from dataprep.storage.copies import stored_crc32c
from dataprep.verification.findings import Findings


def check_replicas(storage: Storage, step: Callable[[str], None], findings: Findings) -> int:
    """Compare every other copy on the list with this dataset, whose bytes are verified elsewhere; return their
    number."""
    try:
        copies = [each.url for each in read_replicas(storage) if each.url != storage.url and is_bucket(each.url)]
        phases = dataset_phases(storage, shape_faults) if copies else ()
        wanted = [info for phase in phases for info in phase if info.name not in CARDS]  # which users may edit
    except DataprepError as error:
        findings.add("unread", REPLICAS, str(error))
        return 0
    for url in copies:
        step(f"comparing {url}")
        try:
            _check_copy(storage, wanted, open_storage(url), findings)
        except DataprepError as error:
            findings.add("unread", url, str(error))
    return len(copies)


def _check_copy(storage: Storage, wanted: list[ObjectInfo], copy: Storage, findings: Findings) -> None:
    existing = {info.name: info for info in copy.list()}
    for info in wanted:
        found, where = existing.get(info.name), copy.url_of(info.name)
        if found is None:
            findings.add("missing", where, f"no such object, expected one of {info.num_bytes:,} bytes")
        elif found.num_bytes != info.num_bytes:
            findings.add("size", where, f"{found.num_bytes:,} bytes, {storage.url} has {info.num_bytes:,}")
        elif stored_crc32c(copy, found) != (crc32c := stored_crc32c(storage, info)):
            findings.add("digest", where, f"crc32c {crc32c_hex(found.crc32c)}, {storage.url} has {crc32c_hex(crc32c)}")
