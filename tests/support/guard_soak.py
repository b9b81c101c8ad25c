"""The guard at its full count: every client in every place, counted and refused; budgets that end; its overhead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

from tests.support import guard_training
from tests.support.gcs_emulator import GCSEmulator
from tests.support.guarded import CLIENTS, HERE, LINES, NAME, PLACES, USD_PER_GIB, fill_bucket, read_command

ROUNDS = 5
LATENCY_MS = 20.0
"""Wait of the emulator before each answer, about that of a bucket in the same region."""
THROUGH_EMULATOR = ("pyarrow",)
"""Clients with certificates of their own: they pass through the guard only where an emulator is expected."""
Start = Callable[[], GCSEmulator]


@cache
def _placed(start: Start) -> GCSEmulator:
    emulator = start()
    for name in PLACES:
        fill_bucket(emulator, name)
    return emulator


def guard_cases(start: Start) -> Iterator[tuple[str, Callable[[Path], object]]]:
    """Yield named cases.

    Args:
        start: Starts the emulator, to which the environment then points.
    """
    for client in CLIENTS:
        for bucket in PLACES:
            if client != "past-the-guard":
                yield f"{client} reads {bucket}", partial(_counted, start, client, bucket)
                yield f"{client} is refused {bucket}", partial(_refused, start, client, bucket)
        if client != "past-the-guard":
            yield f"{client} at the end of a budget", partial(_ended, start, client)
    yield "a client that knows no proxy", partial(_escaped, start)
    yield "open_clip trains", partial(_trained, start)
    yield "open_clip at the end of a budget", partial(_training_ended, start)
    yield "overhead", partial(_overhead, start)


def _guarded(words: list[str], *options: str, **environment: str) -> tuple[int, dict, str]:
    """Exit code, report, and what the command has said."""
    command = [sys.executable, "-m", "dataprep", "guard", "--zone", HERE, "--json", *options, "--", *words]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert run.stdout, run.stderr
    return run.returncode, json.loads(run.stdout), run.stderr


def _words(client: str, bucket: str) -> list[str]:
    return read_command(f"{client}+emulator" if client in THROUGH_EMULATOR else client, f"gs://{bucket}/{NAME}")


def _counted(start: Start, client: str, bucket: str, _folder: Path) -> str:
    emulator = _placed(start)
    before = emulator.stats()["bytes_served"]
    code, report, said = _guarded(_words(client, bucket))
    served = emulator.stats()["bytes_served"] - before
    (found,) = [each for each in report["buckets"] if each["bucket"] == bucket]
    assert code == 0, said
    assert served >= len(LINES), said
    assert abs(found["bytes_read"] - served) <= 0.02 * served, (found["bytes_read"], served)
    assert found["usd_per_gib"] == USD_PER_GIB.get(bucket)
    assert report["escaped"] == []
    return f"{found['bytes_read']} bytes, the emulator counts {served}; {found['location']}, {found['usd_per_gib']}"


def _refused(start: Start, client: str, bucket: str, _folder: Path) -> str:
    """Only us-central1 may be read: its region and the dual-region with it pass, four places do not."""
    emulator = _placed(start)
    before = emulator.stats()["bytes_served"]
    code, report, said = _guarded(_words(client, bucket), "--allow", "us-central1")
    served = emulator.stats()["bytes_served"] - before
    if bucket in ("guard-region", "guard-dual"):
        assert code == 0, said
        return f"allowed, {served} bytes"
    assert served == 0
    assert code != 0
    (message,) = report["refusals"]
    assert f"gs://{bucket} in " in message
    heard = "refused by dataprep guard" in said
    return f"exit code {code}; the client {'says' if heard else 'does not say'} why"


def _ended(start: Start, client: str, _folder: Path) -> str:
    _placed(start)
    code, report, said = _guarded(_words(client, "guard-far"), "--max-usd", "0.00001", "--grace-s", "5")
    assert code == 124, said
    assert report["budget_ended"]
    assert sum(each["bytes_read"] for each in report["buckets"]) < len(LINES)
    return f"{len(report['refusals'])} refusals"


def _escaped(start: Start, _folder: Path) -> str:
    upstream = _placed(start).url.removeprefix("http://")
    words = read_command("past-the-guard", f"gs://guard-near/{NAME}")
    _, report, _ = _guarded(words, GUARD_TEST_UPSTREAM=upstream)
    assert [each["address"] for each in report["escaped"]] == [upstream]
    return str(report["escaped"])


def _trained(start: Start, folder: Path) -> str:
    """A training script of others reads shards from a bucket, and is counted."""
    emulator = _placed(start)
    stored = guard_training.fill(emulator)
    before = emulator.stats()["bytes_served"]
    code, report, said = guard_training.train(folder, "--max-usd", "1")
    served = emulator.stats()["bytes_served"] - before
    (found,) = report["buckets"]
    assert code == 0, said
    assert "Train Epoch: 0 [16/16 (100%)]" in said
    assert served >= stored
    assert abs(found["bytes_read"] - served) <= 0.02 * served, (found["bytes_read"], served)
    assert report["escaped"] == []
    return f"{found['bytes_read']} bytes, the emulator counts {served}; {report['spent_usd']:.2g} USD"


def _training_ended(start: Start, folder: Path) -> str:
    """The script is ended with all its processes when the budget is spent."""
    guard_training.fill(_placed(start))
    code, report, said = guard_training.train(folder, "--max-usd", "0.000005", "--grace-s", "5")
    assert code == 124, said
    assert report["budget_ended"]
    assert guard_training.left_behind() == []
    return f"{len(report['refusals'])} refusals"


EPOCHS = """
import os, sys, time
from concurrent.futures import ThreadPoolExecutor
import obstore
from google.cloud.storage import Client
from obstore.store import GCSStore
from tests.support.guarded import ENVIRONMENT
os.environ.update(ENVIRONMENT)
bucket, _, name = sys.argv[2].removeprefix("gs://").partition("/")
if sys.argv[1] == "google-cloud-storage":
    blob = Client(project="p").bucket(bucket).blob(name)
    def read(_):
        return len(blob.download_as_bytes(checksum=None))
else:
    options = {"skip_signature": True}
    if "HTTPS_PROXY" not in os.environ:
        options |= {"base_url": os.environ["STORAGE_EMULATOR_HOST"], "client_options": {"allow_http": True}}
    store = GCSStore(bucket, **options)
    def read(_):
        return len(bytes(obstore.get(store, name).bytes()))
url, compute_s = sys.argv[2], float(sys.argv[3])
read(url)
started = time.perf_counter()
with ThreadPoolExecutor(4) as pool:
    waiting = [pool.submit(read, url) for _ in range(4)]
    for step in range(60):
        waiting.pop(0).result()
        waiting.append(pool.submit(read, url))
        time.sleep(compute_s)  # the accelerator works, and the next reads are under way
    print(time.perf_counter() - started, flush=True)
"""


def _overhead(start: Start, _folder: Path) -> str:
    """Measure a run that computes and one that only reads, without and with the guard, in turn."""
    emulator = _placed(start)
    emulator.set_latency(LATENCY_MS)
    lines = []
    try:
        for client in ("google-cloud-storage", "obstore"):
            for compute_s in (0.05, 0.0):
                words = [sys.executable, "-c", EPOCHS, client, f"gs://guard-near/{NAME}", str(compute_s)]
                alone, guarded = [], []
                for _ in range(ROUNDS):
                    alone.append(float(subprocess.run(words, capture_output=True, text=True, check=True).stdout))
                    guarded.append(float(_guarded(words)[2].split()[-1]))
                ratio = min(guarded) / min(alone) - 1
                lines.append(f"{client}, {compute_s * 1000:g} ms a step: {min(alone):.3f} s, guarded {ratio:+.1%}")
    finally:
        emulator.set_latency(0)
    return "; ".join(lines)
