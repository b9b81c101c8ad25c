"""Rules that every test keeps."""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.conftest import FRAMEWORKS, LONG, imported_when_collected
from tests.selection import FULL, KEPT, is_full, touched
from tests.soak import LONG_MARK, SHOWS
from tests.support import waiting, warm
from tests.support.clocks import PROCESSOR_CLOCKS, TimedModule
from tests.support.markdown import DOCUMENTS, ROOT

MAY_BE_SKIPPED = {
    "cluster/test_slurm.py": "Slurm",
    "cluster/test_spark.py": "a second Python",
    "dataprep/commands/test_inspect_browser.py": "Chromium",
    "dataprep/commands/test_tpu_jobs.py": "root",
    "dataprep/storage/test_errors.py": "a tmpfs that its users can mount",
    "dataprep/cloud/tpu/test_command_lines.py": "the Google Cloud SDK",
    "dataprep/cloud/tpu/test_terraform.py": "terraform",
    "dataprep/cloud/tpu/test_worker.py": "root",
    "loaders/test_decode_alone.py": "a C compiler and the headers of libjpeg-turbo",
    "loaders/decode/test_decoders.py": "a C compiler and the headers of libjpeg-turbo",
    "loaders/report/test_browser.py": "Chromium",
    "benchmarks/test_unseen_situations.py": "root, control groups of version 1, and a disk",
    "test_laion_ssrf.py": "network namespaces",
}
"""What else a machine must have for some tests of a file; what `make setup` installs is never in question."""
PYTHON = sorted((ROOT / "tests").rglob("*.py"))


def test_every_soak_check_is_called_by_the_name_of_what_it_shows():
    numbered, unknown = [], []
    for path in [*PYTHON, ROOT / "Makefile", *(ROOT / name for name in DOCUMENTS)]:
        text = path.read_text()
        numbered += [(path.name, name) for name in re.findall(r"\bShow [0-9]|SHOW=[0-9n]\b|\bshow_[0-9]", text)]
        unknown += [(path.name, name) for name in re.findall(r"SHOW=([a-z-]+)", text) if name not in SHOWS]
    assert (numbered, unknown) == ([], [])


def test_only_tests_that_need_more_than_setup_installs_may_be_skipped():
    skipping = {"skip", "skipif", "importorskip", "xfail"}
    found = set()
    for path in PYTHON:
        names = (node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute))
        if skipping & set(names):
            found.add(str(path.relative_to(ROOT / "tests")))
    assert found == set(MAY_BE_SKIPPED)


SKIPPING = """
import pytest

@pytest.mark.skipif(True, reason="terraform is not installed")
@pytest.mark.parametrize("number", range(3))
def test_with_terraform(number): ...

def test_with_a_browser():
    pytest.skip("Chromium is not installed")

def test_of_nothing_else(): ...
"""


@pytest.mark.parametrize(
    ("chosen", "last", "workers"),
    [
        ("with", "Not run: 1 (Chromium is not installed); 3 (terraform is not installed).", 2),
        ("of_nothing", "No test was skipped.", 0),
    ],
)
def test_a_run_ends_with_one_line_about_what_did_not_run(tmp_path: Path, chosen: str, last: str, workers: int):
    (tmp_path / "test_some.py").write_text(SKIPPING)
    (tmp_path / "conftest.py").write_text("from tests.support.summary import pytest_unconfigure\n")
    words = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "-k", chosen, "-p", "no:cacheprovider", tmp_path]
    words += ["-c", "/dev/null", "--rootdir", tmp_path]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert run.stdout.splitlines()[-1] == last


def test_no_test_module_imports_a_framework_at_its_top(pytestconfig: pytest.Config):
    """Every worker collects every file: TensorFlow, torch, JAX and Beam take a minute of a processor in each.

    `tests/train` imports `train`, which is torch; the folders that are left out collect nothing else.
    """
    found = []
    for path in PYTHON:
        where = path.relative_to(ROOT / "tests")
        if path.name.startswith(("test_", "conftest")) and where.parts[0] not in ("train", "cluster", "gpu"):
            for node in ast.parse(path.read_text()).body:
                names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                found += [(str(where), name) for name in names if name.partition(".")[0] in FRAMEWORKS]
    assert found == []
    if pytestconfig.option.quick:
        assert imported_when_collected <= {"torch", "torchvision"}


def test_the_end_of_a_process_is_asked_of_is_running():
    """`psutil.wait_procs` and the folders of /proc count the zombies that process 1 of a container may keep."""
    counting = re.compile(r"pid_exists|wait_procs|/proc/\{\w+\}\"\)\.exists")
    here = Path(__file__)
    assert [path.name for path in PYTHON if path != here and counting.search(path.read_text())] == []


def test_a_zombie_does_not_run():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        assert waiting.end_soon([process.pid])
        assert process.returncode is None  # nobody has waited for it


def test_what_make_test_leaves_out_exists():
    for row, touched_by in FULL.items():
        file, _, name = row.partition("::")
        assert (ROOT / file).exists(), row
        assert name in (ROOT / file).read_text() if name else True, row
        assert all((ROOT / path).exists() for path in touched_by), row


@pytest.mark.parametrize(
    ("changed", "runs", "not_run"),
    [
        (["docs/loading.md"], ["tests/test_agents.py"], ["tests/train"]),
        (["train/optim/lars.py"], ["tests/train"], ["tests/pipelines"]),
        (["tests/train/loops/test_mae.py"], ["tests/train"], ["tests/pipelines"]),
        (["pipelines/local.py", "README.md"], ["tests/pipelines"], ["tests/train"]),
        (["setup.cfg"], ["tests/pipelines", "tests/train", "tests/benchmarks"], []),
    ],
)
def test_a_change_runs_what_it_touches(changed, runs, not_run):
    found = touched(changed)
    assert set(runs) <= set(found)
    assert not set(not_run) & set(found)


def test_the_longest_row_decides_what_make_test_leaves_out():
    assert is_full("tests/train/loops/test_mae.py")
    assert not is_full("tests/train/test_train_resnet.py")  # one of its tests runs
    assert is_full("tests/train/test_train_resnet.py::test_every_flag_has_a_test")
    assert not any(is_full(row) for row, touched_by in FULL.items() if touched_by == KEPT)
    assert not is_full("tests/test_crash.py::test_any")


def test_test_files_that_are_listed_to_run_first_exist():
    assert [file for file in LONG if not (ROOT / file).exists()] == []


def test_only_tests_with_commands_of_their_own_are_left_out_by_a_run(pytestconfig: pytest.Config):
    """`make cluster-test`, `make gpu-test` and `make soak SHOW=site` run these."""
    patterns = pytestconfig.getini("norecursedirs")
    folders = {folder for path in PYTHON for folder in path.relative_to(ROOT / "tests").parents}
    left_out = {str(each) for each in folders if any(fnmatch(each.name, pattern) for pattern in patterns)}
    assert left_out == {"cluster", "gpu", "site"}


LONG_TESTS = {
    "benchmarks/test_arena_peers.py": "peers of the environment of benchmarks",
    "benchmarks/test_build_benchmark.py": "tables of a benchmark",
    "benchmarks/test_engines_benchmark.py": "a table of a benchmark",
    "benchmarks/test_laion_benchmark.py": "a table of a benchmark",
    "benchmarks/test_loader_arena_benchmark.py": "a table of a benchmark",
    "benchmarks/test_own_data_benchmark.py": "a table of a benchmark",
    "benchmarks/test_resume_benchmark.py": "peers of the environment of benchmarks that import torch",
    "benchmarks/test_restart_benchmark.py": "a table of a benchmark",
    "benchmarks/test_situations.py": "rates of this machine, where shorter tests have exact ones, and a stored truth",
    "benchmarks/test_views_benchmark.py": "a table of a benchmark",
    "dataprep/adoption/test_img2dataset.py": "img2dataset itself, and TFDS as its reader: they change with their pins",
    "dataprep/adoption/test_records.py": "on disk what is read in a bucket, too",
    "dataprep/commands/test_bench.py": "a second signal",
    "dataprep/commands/test_build_custom.py": "all formats, which test_own_dataset.py has for another class",
    "dataprep/commands/test_build_laion.py": "rows from the web on Beam, which pipelines/ tests, and a second format",
    "dataprep/commands/test_region_options.py": "a format whose requests are those of another",
    "dataprep/demo/test_images.py": "sizes of many drawn images",
    "dataprep/demo/test_make.py": "originals of a second kind",
    "dataprep/fetched/test_encode.py": "img2dataset itself, which changes when its pin does",
    "dataprep/fetched/test_finish.py": "TFDS, which reads fetched shards in test_laion_interop.py",
    "dataprep/fetched/test_retry.py": "each format on disk and in a bucket: the other two pairs",
    "dataprep/storage/test_gcs_transfers.py": "a narrow link on a machine that never stands still",
    "dataprep/verification/test_run.py": "a format whose path to a bucket is that of others",
    "dataprep/web/test_politeness.py": "texts that weigh as others do",
    "loaders/test_traffic_of_a_pass.py": "a format whose requests are those of another",
    "loaders/decode/test_annotations.py": "libraries in worker processes, which unpickle what a shorter test unpickles",
    "loaders/decode/test_transforms.py": "TensorFlow as the writer of captions that other tests write themselves",
    "loaders/diagnosis/conftest.py": "rates of this machine, where a shorter test has given ones",
    "loaders/diagnosis/test_diagnose.py": "limits of a bucket, which test_stages.py has for their predictions",
    "loaders/diagnosis/test_fetch_rate.py": "rates of this machine, where shorter tests count reads and bytes",
    "loaders/diagnosis/test_observed_run.py": "rates of this machine, where shorter tests have steps at given times",
    "loaders/diagnosis/test_sample.py": "how slow at most, which only an idle machine shows",
    "loaders/diagnosis/test_stages.py": "a disk for which this machine waits, where shorter tests have virtual time",
    "loaders/engine/test_pipeline.py": "in worker processes what hangs in threads, too",
    "loaders/fetch/test_bucket.py": "a server that refuses, as one that is silent",
    "loaders/metrics/test_callback.py": "wandb itself, which changes when its pin does",
    "loaders/test_adopted.py": "formats whose index lies elsewhere as that of another does",
    "loaders/test_loader.py": "a lost bucket in one process, which fetch/test_bucket.py has",
    "loaders/test_packs.py": "a count of compilations that the training on packs has, too",
    "loaders/test_views.py": "adapters of frameworks that take seconds to come up",
    "pipelines/beam/test_engine.py": "codecs and kills as in test_overwriting.py and test_crash.py",
    "pipelines/test_local.py": "parts that are killed, as in make cluster-test",
    "test_crash.py": "TFRecord, written as WebDataset is, a second format for some faults, and two builds at once",
    "test_crash_laion.py": "what is killed at random, retries of img2dataset's output, and two builds at once",
    "test_interop.py": "ImageNet, whose formats are those of COCO",
    "test_same_bytes.py": "Beam, which pipelines/ tests, other datasets for kills and buckets, and more repeats",
    "train/checkpoints/test_huggingface.py": "transformers itself, which changes when its pin does",
    "train/loops/test_compiling.py": "a C++ compiler, which takes half a minute for each network",
    "train/loops/test_jax.py": "two processes with other copies of one array",
    "train/loops/test_xla_runtime.py": "a second device, and a missing one",
    "train/telemetry/test_events.py": "TensorFlow, which changes when its pin does",
    "train/telemetry/test_wandb_run.py": "wandb itself, which changes when its pin does",
    "train/test_finetune_mae.py": "kills, XLA and SPMD with the loop that other programs have there",
    "train/test_grown_data.py": "entries that share the code of others",
    "train/test_pretrain_mae.py": "kills and SPMD with the loop that a ResNet has there, and learning, which is a soak",
    "train/test_seed_commands.py": "other kinds of data, with the loop and the loader that a ResNet reads them with",
    "train/test_train_resnet.py": "kills with the loop of other programs, and a second device",
    "train/test_train_resnet_jax.py": "signals, two processes and a diagnosis, with the loop that others have there",
    "train/test_train_vit.py": "kills, dropout and packs under FSDP, fewer devices, with the loop of other programs",
}
"""Files with tests that `make soak SHOW=long-tests` runs and `make test` does not: what they show beyond others."""


def test_only_tests_with_a_reason_are_left_to_the_soak():
    found = {str(path.relative_to(ROOT / "tests")) for path in PYTHON if LONG_MARK in path.read_text()}
    assert found == set(LONG_TESTS)


def test_programs_are_forked_though_new_sockets_have_a_timeout():
    """Beam gives them one when it looks for credentials."""
    socket.setdefaulttimeout(5)
    try:
        process = warm.start("platform", environment=os.environ, folder=ROOT, imported=("numpy",))
    finally:
        socket.setdefaulttimeout(None)
    with process:
        assert process.communicate()[0].startswith("Linux")


def test_a_run_in_the_background_of_a_shell_can_still_test_ctrl_c(tmp_path: Path):
    """A shell that is not interactive lets programs behind `&` ignore SIGINT, and their children inherit it."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_configure\n")
    (tmp_path / "test_some.py").write_text(
        "import signal\ndef test_signal():\n    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    )
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", tmp_path]
    command = ["sh", "-c", '"$@" & wait $!', "sh", *words, tmp_path]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


def test_no_decorator_is_given_twice():
    found = []
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                given = list(map(ast.unparse, node.decorator_list))
                found += [f"{path.relative_to(ROOT)} {node.name}"] * (len(given) != len(set(given)))
    assert found == []


MAY_BE_TIMED = {
    "attacks/hosts.py _fetch": "an event loop that computes for 5 s hangs: processor time, of which a pause takes none",
    "support/fuzz_jpeg.py main": "an image of 60 s of a processor makes the decoder hang: 100 Mpixel take a few",
}
"""Functions whose assertion is a generous limit against hangs, each with its reason."""


def test_no_test_is_decided_by_a_clock():
    """No assertion is about a clock of the wall or of a processor, nor about a value that was computed from one."""
    found = set()
    for path in PYTHON:
        text = path.read_text()
        if any(clock in text for clock in ("time.", *PROCESSOR_CLOCKS)):
            timed = TimedModule(ast.parse(text)).assertions()
            found |= {f"{path.relative_to(ROOT / 'tests')} {function}" for _, function in timed}
    assert found == set(MAY_BE_TIMED)


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        ("def test():\n start = time.time()\n work()\n took = time.time() - start\n assert took < 2", [5]),
        ("def test():\n assert time.process_time_ns() < 3\n assert work() == 4", [2]),
        ("async def test():\n assert time.monotonic() < 3", [2]),
        ("def test():\n def took():\n  return time.monotonic()\n assert took() < 3", [4]),
        ("def test():\n waits = list(map(took, work))\n assert min(waits) > 3\ndef took():\n return time.time()", [3]),
        ("def run():\n print({'s': time.time()})\ndef test():\n assert json.loads(work())['s'] < 3", [4]),
        ("def test():\n before_s = own_cpu_s()\n assert own_cpu_s() - before_s < 3", [3]),
        ("def run():\n return 1, time.time()\ndef test():\n a, b = run()\n assert a\n assert b", [6]),
        ("def main():\n if time.time() > 3:\n  raise SystemExit", [2]),
        ("def test():\n longest = 0\n def tick():\n  longest = max(longest, time.time())\n assert longest < 3", [5]),
        ("def wait_until(is_true):\n assert time.monotonic() < 3\ndef test():\n assert wait_until(work)", []),
        ("def run():\n return 1, time.time()\ndef test():\n a, b = run()\n print(b)\n assert a", []),
    ],
)
def test_a_timed_assertion_is_detected(program, lines):
    assert [line for line, _ in TimedModule(ast.parse(program)).assertions()] == lines
