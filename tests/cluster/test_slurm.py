"""A build as a job array of a real Slurm: a task is killed and requeued, another is cancelled for good."""

import shlex
import time
from pathlib import Path

import pytest

from tests.support.builds import build, build_arguments, command, digests
from tests.support.crashes import receipts_of
from tests.support.slurm_cluster import PACKAGES, SlurmCluster, slurm_cluster, slurm_is_installed

pytestmark = pytest.mark.skipif(
    not slurm_is_installed(), reason=f"Slurm is not installed, or not run by root (Debian: apt install {PACKAGES})"
)
SHARDS = ("--num-shards", 8, "--split", "train")
DOCUMENTED = ["sbatch", "--array=1-8", "--requeue", "--wrap"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), nodes=3) as cluster:
        yield cluster


def submit(cluster: SlurmCluster, folder: Path, words: list[object]) -> str:
    """Submit an array of three tasks, as the document does."""
    line = shlex.join(command(*words, "--workers", 1, "--part", "auto"))
    options = ["--parsable", f"--chdir={folder}", "--output=%a.log", "--open-mode=append"]
    return cluster.run("sbatch", "--array=1-3", "--requeue", *options, "--wrap", line).strip()


def await_receipts(output: Path, count: int) -> None:
    while len(receipts_of(output)) < count and not (output / "dataset.json").exists():
        time.sleep(0.02)


def test_the_documented_job_array_has_these_options():
    document = (Path(__file__).parents[2] / "docs/clusters.md").read_text()
    (line,) = [line for line in document.splitlines() if line.startswith("sbatch ")]
    words = shlex.split(line)
    assert words[:4] == DOCUMENTED
    assert shlex.split(words[4])[-2:] == ["--part", "auto"]


def test_an_array_with_a_task_that_is_requeued_and_one_that_is_cancelled_makes_the_same_dataset(
    cluster, originals, tmp_path
):
    arguments = ("imagenet", originals["imagenet"])
    build(*arguments, tmp_path / "plain", "webdataset", *SHARDS)
    output = tmp_path / "out"
    job = submit(cluster, tmp_path, build_arguments(*arguments, output, "webdataset", *SHARDS))
    await_receipts(output, 1)
    cluster.run("scontrol", "requeue", f"{job}_1")
    cluster.run("scancel", "--signal=KILL", "--full", f"{job}_2")
    cluster.await_end(job)
    logs = "\n".join(path.read_text() for path in sorted(tmp_path.glob("*.log")))
    assert digests(output) == digests(tmp_path / "plain"), logs
    assert "CANCELLED" in (tmp_path / "1.log").read_text(), "the task was not stopped"
    assert '"name": "imagenet"' in (tmp_path / "1.log").read_text(), "it did not run again to the end"
