"""What only a bucket does: requests that fail, permissions that are missing, processes that fork or die."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google.auth
import google.auth.credentials
import google.auth.exceptions
import pytest

from dataprep.errors import AccessError, ConflictError, StorageError, UsageError
from dataprep.storage import gcs_client, gcs_ranges
from dataprep.storage.checksums import crc32c_of_bytes
from dataprep.storage.gcs import GCSStorage
from tests.support.gcs_emulator import GCSEmulator
from tests.support.gcs_proxy import FAULTS, HALF_CHUNK, RESET_AFTER, RESET_BODY

FAULT_RATE = 0.1
LARGE_BYTES = (17 << 20) + 3
GO_ON = "run the same command again: it goes on where it stopped"


@pytest.fixture
def storage(bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> GCSStorage:
    monkeypatch.setattr(gcs_client, "RETRY_FIRST_WAIT_S", 0.002)
    monkeypatch.setattr(gcs_client, "RETRY_LONGEST_WAIT_S", 0.02)
    return GCSStorage(bucket_url)


def publish(storage: GCSStorage, name: str, data: bytes, crc32c: str = "") -> None:
    spool = storage.spool_path(name)
    spool.write_bytes(data)
    storage.publish(spool, name, crc32c or crc32c_of_bytes(data))


def run_python(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60)


# Faults


def test_with_faults_every_call_succeeds_and_no_byte_is_wrong(gcs: GCSEmulator, storage: GCSStorage) -> None:
    before = gcs.stats()["faults"]
    gcs.set_faults(FAULT_RATE, seed=1)
    rng = random.Random(1)
    contents = {f"folder-{number % 7}/{number:03d}": rng.randbytes(rng.randrange(50_000)) for number in range(120)}

    def use(name: str) -> None:
        data = contents[name]
        storage.create(name, data)
        assert storage.read(name) == data
        info = storage.stat(name)
        assert info is not None
        assert (info.num_bytes, info.crc32c) == (len(data), crc32c_of_bytes(data))
        for _ in range(3):
            start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
            assert storage.read_range(name, start, end - start) == data[start:end]

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(use, contents))
    assert [info.name for info in storage.list()] == sorted(contents)
    storage.delete_tree("folder-3")
    assert [info.name for info in storage.list()] == sorted(name for name in contents if "folder-3" not in name)
    injected = {kind: count - before.get(kind, 0) for kind, count in gcs.stats()["faults"].items()}
    assert sum(injected.values()) > 50
    assert all(injected[kind] > 0 for kind in FAULTS)


def test_with_faults_large_objects_are_published_whole(gcs: GCSEmulator, storage: GCSStorage) -> None:
    gcs.set_faults(FAULT_RATE, seed=2)
    for number in range(5):
        data = random.Random(number).randbytes(LARGE_BYTES)
        publish(storage, f"{number}.tar", data)
        with storage.open(f"{number}.tar") as stream:
            assert stream.read() == data


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("num_bytes", [1000, LARGE_BYTES])
def test_an_upload_outlives_many_faults_of_each_kind(
    gcs: GCSEmulator, storage: GCSStorage, kind: str, num_bytes: int
) -> None:
    gcs.set_faults(0.4, seed=7, kinds=[kind])
    data = os.urandom(num_bytes)
    for number in range(3):
        publish(storage, str(number), data)
    gcs.set_faults(0)
    assert [storage.read(str(number)) == data for number in range(3)] == [True] * 3


def test_an_upload_whose_response_was_lost_is_no_conflict(gcs: GCSEmulator, storage: GCSStorage) -> None:
    gcs.set_faults(0.7, seed=3, kinds=[RESET_AFTER])
    for number in range(20):
        storage.create(str(number), b"%d" % number)
    gcs.set_faults(0)
    assert [storage.read(str(number)) for number in range(20)] == [b"%d" % number for number in range(20)]


def test_faults_hide_no_conflict(gcs: GCSEmulator, storage: GCSStorage) -> None:
    storage.create("x", b"theirs")
    gcs.set_faults(0.5, seed=4)
    for _ in range(10):
        with pytest.raises(ConflictError, match="another object stands there, 6 bytes with CRC32C"):
            storage.create("x", b"ours")
    gcs.set_faults(0)
    assert storage.read("x") == b"theirs"


def test_a_response_cut_in_the_middle_is_never_passed_on(gcs: GCSEmulator, storage: GCSStorage) -> None:
    data = os.urandom(300_000)
    storage.create("x", data)
    gcs.set_faults(0.5, seed=5, kinds=[RESET_BODY])
    for _ in range(20):
        assert storage.read_range("x", 100_000, 110_000) == data[100_000:210_000]
        assert storage.read("x") == data


@pytest.mark.parametrize("kind", ["429", "503", "reset_before", RESET_BODY])
def test_after_the_deadline_the_failure_is_told(
    gcs: GCSEmulator, storage: GCSStorage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    storage.create("x", b"1")
    monkeypatch.setattr(gcs_client, "RETRY_DEADLINE_S", 0.1)
    gcs.set_faults(1, kinds=[kind])
    for call in all_calls(storage):
        with pytest.raises(StorageError, match=re.escape(GO_ON)) as caught:
            call()
        assert str(caught.value).startswith(storage.url)
        assert "\n" not in str(caught.value)
        assert not isinstance(caught.value, AccessError)


def test_a_session_that_never_takes_a_whole_chunk_is_given_up(
    gcs: GCSEmulator, storage: GCSStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_client, "RETRY_DEADLINE_S", 0.5)
    gcs.set_faults(1, kinds=[HALF_CHUNK])
    with pytest.raises(StorageError, match=r"Bytes stream is in unexpected state.*run the same command again"):
        publish(storage, "x", bytes(LARGE_BYTES))
    gcs.set_faults(0)
    assert storage.stat("x") is None


@pytest.mark.parametrize("num_bytes", [1000, LARGE_BYTES])
def test_bytes_that_differ_from_their_checksum_are_refused(storage: GCSStorage, num_bytes: int) -> None:
    with pytest.raises(StorageError, match="doesn't match calculated CRC32C"):
        publish(storage, "x", os.urandom(num_bytes), crc32c="AAAAAA==")
    assert storage.stat("x") is None


def all_calls(storage: GCSStorage) -> list[Callable[[], Any]]:
    """Every call that makes a request, on the object x that exists."""
    return [
        lambda: storage.stat("x"),
        lambda: list(storage.list()),
        lambda: storage.read("x"),
        lambda: storage.read_range("x", 0, 1),
        lambda: storage.open("x"),
        lambda: storage.create("y", b"1"),
        lambda: publish(storage, "y", b"1"),
        lambda: publish(storage, "y", bytes(LARGE_BYTES)),
        lambda: storage.delete("x"),
        lambda: storage.delete_tree("folder"),
    ]


# Permissions


@pytest.mark.parametrize(
    ("call", "permission"),
    [
        (lambda storage: storage.stat("x"), "storage.objects.get"),
        (lambda storage: storage.read("x"), "storage.objects.get"),
        (lambda storage: storage.read_range("x", 0, 1), "storage.objects.get"),
        (lambda storage: list(storage.list()), "storage.objects.list"),
        (lambda storage: storage.create("x", b""), "storage.objects.create"),
        (lambda storage: storage.delete("x"), "storage.objects.delete"),
    ],
)
def test_a_missing_permission_is_named(
    gcs: GCSEmulator, storage: GCSStorage, call: Callable[[GCSStorage], Any], permission: str
) -> None:
    gcs.set_faults(1, kinds=["403"])
    wanted = rf"{storage.url}/?x?: permission {permission} is missing; grant it to the account in use, for example with"
    with pytest.raises(AccessError, match=wanted):
        call(storage)


def test_invalid_credentials_say_how_to_get_others(gcs: GCSEmulator, storage: GCSStorage) -> None:
    gcs.set_faults(1, kinds=["401"])
    for call in all_calls(storage):
        with pytest.raises(AccessError, match='no valid credentials; run "gcloud auth application-default login"'):
            call()


def test_a_missing_bucket_is_named(gcs: GCSEmulator) -> None:
    storage = GCSStorage("gs://no-such-bucket/data")
    for call in all_calls(storage)[:-2]:
        with pytest.raises(AccessError, match="the bucket gs://no-such-bucket does not exist; create it, or check"):
            call()


def test_without_credentials_the_next_step_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    storage = GCSStorage("gs://some-bucket/data")
    for call in all_calls(storage):
        with pytest.raises(AccessError, match=r'gs://some-bucket/data.* no valid credentials; run "gcloud auth'):
            call()


class RefusedCredentials(google.auth.credentials.Credentials):
    """Of an account whose key was withdrawn."""

    def refresh(self, request: Any) -> None:
        raise google.auth.exceptions.RefreshError("invalid_grant: account not found")


def test_range_reads_use_the_credentials_of_google_auth_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(google.auth, "default", lambda scopes: (RefusedCredentials(), "project"))
    gcs_client._credentials.cache_clear()
    try:
        storage = GCSStorage("gs://bucket-of-withdrawn-account/data")
        with pytest.raises(AccessError, match=r"no valid credentials; .*invalid_grant: account not found"):
            storage.read_range("x", 0, 1)
    finally:
        gcs_client._credentials.cache_clear()


# URLs and names


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("gs://", "names no bucket"),
        ("gs:///data", "names no bucket"),
        ("gs://UPPER/data", "names no bucket"),
        ("gs://bucket//data", "object name '/data' must be relative"),
        ("gs://bucket/a/../b", r"object name 'a/../b' must be relative"),
    ],
)
def test_malformed_urls_are_refused(url: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        GCSStorage(url)


def test_a_whole_bucket_is_a_storage(gcs: GCSEmulator) -> None:
    gcs.create_bucket("whole-bucket")
    storage = GCSStorage("gs://whole-bucket/")
    storage.create("x", b"1")
    assert storage.url_of("x") == "gs://whole-bucket/x"
    assert [info.name for info in storage.list()] == ["x"]
    storage.create("a/y", b"2")
    storage.delete_tree("a")
    assert [info.name for info in storage.list()] == ["x"]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("é" * 513, "must have 1,024 bytes at most, has 1,0"),
        ("\udce9", "must be text, and has bytes that are no UTF-8"),
    ],
)
def test_names_that_a_bucket_cannot_have_are_refused(storage: GCSStorage, name: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        storage.create(name, b"")


def test_empty_objects_that_stand_for_folders_are_not_listed_but_deleted(storage: GCSStorage) -> None:
    bucket = gcs_client.client().bucket(storage.bucket)
    bucket.blob(f"{storage.prefix}/train/").upload_from_string(b"")
    storage.create("train/x", b"1")
    assert [info.name for info in storage.list("train")] == ["train/x"]
    storage.delete_tree("train")
    assert list(bucket.list_blobs(prefix=storage.prefix)) == []


def test_content_types_help_those_who_look_at_the_bucket(storage: GCSStorage) -> None:
    bucket = gcs_client.client().bucket(storage.bucket)
    for name, kind in {"a.json": "application/json", "a.jpg": "image/jpeg", "a": "application/octet-stream"}.items():
        storage.create(name, b"")
        assert bucket.get_blob(f"{storage.prefix}/{name}").content_type == kind


# Many at a time, and other processes


def test_64_ranges_are_under_way_at_once(bucket_url: str) -> None:
    with GCSEmulator() as own, pytest.MonkeyPatch.context() as patch:
        own.create_bucket("dataprep-tests")
        patch.setenv("STORAGE_EMULATOR_HOST", own.url)
        storage = GCSStorage(bucket_url)
        data = os.urandom(64 * 110_000)
        storage.create("x", data)
        own.set_latency(1000)
        with ThreadPoolExecutor(storage.reads_in_flight) as threads:
            parts = threads.map(lambda at: storage.read_range("x", at, 110_000), range(0, len(data), 110_000))
            assert b"".join(parts) == data
        assert own.stats()["most_in_flight"] == storage.reads_in_flight == 64


def test_a_slow_link_that_many_reads_share_is_no_lost_server(bucket_url: str) -> None:
    """All of them together take three times as long as an unanswered read may."""
    patient = gcs_client.Impatience(lost_s=0.8)
    with GCSEmulator() as own, pytest.MonkeyPatch.context() as patch:
        own.create_bucket("dataprep-tests")
        patch.setenv("STORAGE_EMULATOR_HOST", own.url)
        data = os.urandom(64 * 50_000)
        GCSStorage(bucket_url).create("x", data)
        own.set_bandwidth(len(data) / 2.4)
        storage = GCSStorage(bucket_url, patient)
        with ThreadPoolExecutor(64) as threads:
            parts = threads.map(lambda at: storage.read_range("x", at, 50_000), range(0, len(data), 50_000))
            assert b"".join(parts) == data


def test_library_calls_share_as_many_connections(gcs: GCSEmulator, storage: GCSStorage) -> None:
    gcs.set_latency(20)
    with ThreadPoolExecutor(64) as threads:
        assert all(threads.map(lambda number: storage.create(f"{number:03d}", b"1"), range(256)))
    gcs.set_latency(0)
    assert len(list(storage.list())) == 256


FORK = """
import os, signal
from dataprep.errors import StorageError
from dataprep.storage import open_storage

def fails(read, kind, text):
    try:
        read()
    except kind as error:
        return text in str(error)

storage = open_storage(os.environ["URL"])
storage.create("x", b"0123456789")
assert storage.read_range("x", 2, 3) == b"234"
if os.fork() == 0:
    signal.alarm(20)
    assert storage.read_range("x", 2, 3) == b"234"
    assert storage.read("x") == b"0123456789"
    assert fails(lambda: storage.read_range("x", 8, 5), StorageError, "ends at 10")
    assert fails(lambda: storage.read_range("x", 99, 5), StorageError, "ends at 10")
    assert fails(lambda: storage.read_range("y", 0, 1), FileNotFoundError, "/y")
    os._exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
"""


def test_a_forked_child_reads_on(bucket_url: str) -> None:
    done = run_python(FORK, URL=bucket_url)
    assert (done.returncode, done.stderr) == (0, "")


SPOOL = """
import os, signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from dataprep.storage import open_storage

def spool():
    path = open_storage("gs://bucket/data").spool_path("train/x.tar")
    path.write_bytes(b"half")
    return path

if __name__ == "__main__":
    print(spool())
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        print(pool.submit(spool).result())
    if os.environ.get("DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_spool_files_go_when_their_process_ends(tmp_path: Path) -> None:
    done = run_python(SPOOL, TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    spools = [Path(line) for line in done.stdout.split()]
    assert len({spool.parent for spool in spools}) == 2
    assert all(spool.is_relative_to(tmp_path) for spool in spools)
    assert list(tmp_path.iterdir()) == []


def test_spool_files_of_killed_processes_are_removed_by_the_next_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_python(SPOOL, TMPDIR=str(tmp_path), DIE="1")
    assert done.returncode == -signal.SIGKILL
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/x").write_bytes(b"1")
    (tmp_path / "dataprep-spool-link").symlink_to("precious")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    storage = GCSStorage("gs://bucket/data")
    assert storage.remove_stale_spools() == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataprep-spool-link", "precious"]
    assert (tmp_path / "precious/x").read_bytes() == b"1"


def test_clients_are_made_once_a_process(gcs: GCSEmulator, storage: GCSStorage) -> None:
    assert gcs_client.client() is gcs_client.client()
    assert gcs_ranges._store(storage.bucket, gcs.url) is gcs_ranges._store(storage.bucket, gcs.url)
