"""What any test may use: an emulated Cloud Storage, and fresh places for a dataset on disk and in a bucket.

A test that needs a framework is skipped where that is not installed, as after `make setup-core`.
"""

from __future__ import annotations

import gc
import importlib.util
import itertools
import os
import re
import shutil
import signal
import sys
import tempfile
import urllib.request
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.selection import ROOT, is_full
from tests.support.shared import made_once, shared_folder
from tests.support.summary import pytest_unconfigure

if TYPE_CHECKING:  # the process that hands tests out imports nothing of ours
    from tests.support.gcs_emulator import GCSEmulator

__all__ = ["pytest_unconfigure"]

BUCKET = "dataprep-tests"
# Virtual devices for XLA, no search for a TPU or a metadata server, no version checks, quiet TensorFlow; what JAX
# compiles is kept for all processes of a run, and for the next run.
ENVIRONMENT = {
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / "build/jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "PJRT_DEVICE": "CPU",
    "CPU_NUM_DEVICES": "4",
    "TPU_SKIP_MDS_QUERY": "1",
    "NO_ALBUMENTATIONS_UPDATE": "1",
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    "NO_GCE_CHECK": "true",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
FRAMEWORKS = {
    "apache_beam", "array_record", "datasets", "flax", "grain", "jax", "lightning", "accelerate", "optax", "orbax",
    "pyspark", "ray", "tensorflow", "tensorflow_datasets", "timm", "torch", "torch_xla", "torchdata", "torchvision",
    "transformers",
}  # fmt: skip
"""What only `make setup` installs, and no test module of `make test` imports when it is collected."""
MISSING = re.compile(rf"No module named '({'|'.join(sorted(FRAMEWORKS))})\b")
LONG = (
    "tests/train/test_train_resnet_jax.py",
    "tests/test_same_bytes.py",
    "tests/test_crash.py",
    "tests/train/test_pretrain_mae.py",
    "tests/test_crash_laion.py",
    "tests/test_attacks.py",
    "tests/train/test_finetune_mae.py",
    "tests/dataprep/commands/test_promises.py",
    "tests/dataprep/builder/test_pool.py",
    "tests/test_readme.py",
    "tests/train/test_train_resnet.py",
    "tests/train/test_seed_flags.py",
    "tests/test_overwriting.py",
)
"""Files of the longest tests: they come first, so that no worker is left alone with one at the end."""
MEMORY, LEAST_MEMORY_BYTES = "/dev/shm", 8 << 30
"""Where folders of tests are: a build waits for 40 writes to a disk, 20 ms each, which also cost a quarter of its
processor time. No test leaves more than a few megabytes."""
_numbers = itertools.count()
imported_when_collected: set[str] = set()
"""Frameworks that test modules imported at their top."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what tests/selection.py leaves to `make test-all`")


def pytest_configure() -> None:
    """Set before any test module is imported: some libraries read these once."""
    gc.set_threshold(50_000, 20, 50)  # to look at all objects of TensorFlow and torch takes a third of a second
    # Without a deadline: a busy machine would decide a test. So few examples find every planted mutant.
    settings.register_profile("dataprep", deadline=None, max_examples=25)
    settings.load_profile("dataprep")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that is not interactive starts `make test &` so, and tests of Ctrl-C would find it ignored in their
        # programs, which inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(ENVIRONMENT)
    # For `python -m tests.…` where a program that ran in this process has set PYTHONSAFEPATH.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    os.environ.setdefault("XDG_STATE_HOME", tempfile.mkdtemp(prefix="dataprep-tests-state-"))
    if Path(MEMORY).is_dir() and shutil.disk_usage(MEMORY).free > LEAST_MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)  # the root of tmp_path
    if urllib.request.getproxies_environment():  # servers of the tests are on this machine
        own = ",".join(
            filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "localhost", "127.0.0.1"])
        )
        os.environ.update(no_proxy=own, NO_PROXY=own)
    keep_bytecode()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what `make test` leaves out."""
    if config.option.quick and collection_path.is_relative_to(ROOT):
        return is_full(collection_path.relative_to(ROOT).as_posix()) or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long files first; a worker of pytest-xdist takes the next file when it is done with one."""
    if config.option.quick:
        config.hook.pytest_deselected(items=[item for item in items if is_full(item.nodeid)])
        items[:] = [item for item in items if not is_full(item.nodeid)]
    ranks = {file: rank for rank, file in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(LONG)))


def pytest_collection_finish() -> None:
    """No later collection of garbage looks at what modules hold: a million objects, which stay to the end."""
    imported_when_collected.update(FRAMEWORKS & sys.modules.keys())
    gc.collect()
    gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave TFRecords in a bucket to the soak where image folders and tars run there: they are stored as tars are."""
    values = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    if values.get("storage_url") == "bucket" and "tfrecord" in values.values():
        item.add_marker("long")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a test module that needs a framework at its top, where that is not installed."""
    report = yield
    if report.failed and (reason := not_installed(str(report.longrepr))):
        report.outcome, report.longrepr = "skipped", (report.nodeid, 0, f"Skipped: {reason}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that needs a framework, where that is not installed."""
    report = yield
    if report.failed and call.excinfo is not None and (reason := not_installed(report.longreprtext)):
        report.outcome, report.longrepr = "skipped", (report.nodeid, 0, f"Skipped: {reason}")
    return report


def not_installed(text: str) -> str:
    """Return why a test cannot run whose failure says that a framework is missing; empty if it is installed."""
    for name in MISSING.findall(text):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed; make setup installs it"
    return ""


def keep_bytecode() -> None:
    """Let processes that tests start keep compiled modules: to compile Beam or TensorFlow again takes seconds each."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if not os.access(pytest.__path__[0], os.W_OK):  # installed read-only
        folder = Path(tempfile.gettempdir(), f"dataprep-tests-bytecode-{os.getuid()}")
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(folder))


@pytest.fixture(autouse=True)
def _safe_path_of_programs() -> Iterator[None]:
    """A program that a test runs in this process sets this for its children; the next test must not inherit it."""
    yield
    os.environ.pop("PYTHONSAFEPATH", None)


@pytest.fixture(scope="session")
def gcs() -> Iterator[GCSEmulator]:
    """A Cloud Storage on loopback, one for each worker of pytest-xdist; all clients are pointed at it."""
    from tests.support.gcs_emulator import GCSEmulator

    with GCSEmulator() as emulator, pytest.MonkeyPatch.context() as patch:
        emulator.create_bucket(BUCKET)
        patch.setenv("STORAGE_EMULATOR_HOST", emulator.url)
        yield emulator


@pytest.fixture
def bucket_url(gcs: GCSEmulator, request: pytest.FixtureRequest) -> Iterator[str]:
    """A prefix of a bucket that nothing was written to; faults and delays end with the test."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    yield f"gs://{BUCKET}/{next(_numbers)}-{name[:60]}"
    gcs.set_faults(0)
    gcs.record(False)
    gcs.set_latency(0)


@pytest.fixture(params=["disk", "bucket"])
def storage_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh folder, then a fresh prefix of a bucket."""
    if request.param == "disk":
        return str(tmp_path / "storage")
    url: str = request.getfixturevalue("bucket_url")
    return url


@pytest.fixture(scope="session", autouse=True)
def picture_sizes() -> Iterator[tuple[tuple[float, int, int], ...]]:
    """Sizes of demo pictures as users get them; meanwhile they have a sixth of the pixels.

    What is made of them is decoded, sent and digested a hundred times.
    """
    from dataprep.demo import images

    with pytest.MonkeyPatch.context() as patch:
        sizes = images._SIZES
        patch.setattr(images, "_SIZES", tuple((weight, 2 * w // 5, 2 * h // 5) for weight, w, h in sizes))
        yield sizes


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small originals in the true layouts, odd files among them: `coco`, `coco-annotated`, `imagenet`; `pets` and
    `dogs` are a user's own."""
    from dataprep.demo.make import write_demo
    from tests.support.coco import write_coco
    from tests.support.own_data import write_pets
    from tests.support.tables import write_dogs

    shared = shared_folder(tmp_path_factory)
    made = {
        name: made_once(shared / f"originals-{name}", partial(write_demo, name, images=120, odd=True))
        for name in ("coco", "imagenet")
    }
    own = {"coco-annotated": write_coco, "pets": write_pets, "dogs": write_dogs}
    return {**made, **{name: made_once(shared / f"originals-{name}", write) for name, write in own.items()}}
