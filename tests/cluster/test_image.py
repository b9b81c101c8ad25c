"""Workers in the environment of the Dockerfile's image build the same bytes; workers with another Pillow build none."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from dataprep.builder.driver import run_build
from dataprep.storage import open_storage
from tests.cluster.test_beam import DATAFLOW
from tests.conftest import BUCKET
from tests.support.build_here import Killed, Quiet, request
from tests.support.builds import build, build_arguments, dataprep, digests, is_finished
from tests.support.dataflow_stub import dataflow_stub
from tests.support.dockerfile import build_environment, read_image
from tests.support.job_service import JobService, job_service
from tests.support.other_environment import OTHER_PILLOW, other_environment
from tests.support.picture_web import laion_arguments, picture_web

SHARDS = ("--split", "train", "--num-shards", 4)
ROWS = 32


@pytest.fixture(scope="module")
def source(originals, gcs) -> str:
    """ImageNet's originals as objects."""
    url = f"gs://{BUCKET}/image/originals"
    for path in originals["imagenet"].iterdir():
        open_storage(url).create(path.name, path.read_bytes())
    return url


@pytest.fixture(scope="module")
def pool(gcs, tmp_path_factory) -> Iterator[JobService]:
    """A job service whose workers run in the image's environment."""
    image = read_image()
    python = build_environment(image, tmp_path_factory.mktemp("image"))
    where = subprocess.run(
        [python, "-c", "import dataprep; print(dataprep.__file__)"], cwd="/", capture_output=True, text=True, check=True
    )
    assert "site-packages" in where.stdout
    with pytest.MonkeyPatch.context() as patch:
        for name, value in image.environment.items():
            patch.setenv(name, value)
        with job_service(str(python)) as service:
            yield service


def portable(service: JobService) -> list[object]:
    return ["--runner", "PortableRunner", "--", *service.options]


def test_workers_of_the_image_write_the_bytes_of_a_local_build(pool, source, bucket_url):
    build("imagenet", source, f"{bucket_url}/local", "tfrecord", *SHARDS)
    run = dataprep(*build_arguments("imagenet", source, f"{bucket_url}/out", "tfrecord", *SHARDS, *portable(pool)))
    assert run.returncode == 0, run.stderr[-3000:]
    assert digests(f"{bucket_url}/out") == digests(f"{bucket_url}/local")


def test_workers_of_the_image_fetch_a_table_of_urls(pool, bucket_url, tmp_path):
    with picture_web() as web:
        table = web.write_table(tmp_path / "laion.parquet", ROWS)
        open_storage(f"{bucket_url}/table").create(table.name, table.read_bytes())
        for name, more in {"local": [], "out": portable(pool)}.items():
            words = laion_arguments(f"{bucket_url}/table", f"{bucket_url}/{name}", "webdataset", *more)
            run = dataprep(*words)
            assert run.returncode == 0, run.stderr[-3000:]
    assert digests(f"{bucket_url}/out") == digests(f"{bucket_url}/local")


@pytest.fixture(scope="module")
def other_python(tmp_path_factory) -> Path:
    """The Python of an environment like this one, but with another Pillow."""
    return other_environment(tmp_path_factory.mktemp("other"))


REFUSED = f"this worker has pillow {re.escape(OTHER_PILLOW)}, but the plan was made with pillow {version('pillow')}"


def test_a_pool_with_another_pillow_is_refused_on_a_job_service(other_python, gcs, source, bucket_url):
    with job_service(str(other_python)) as service:
        words = build_arguments("imagenet", source, bucket_url, "tfrecord", *SHARDS, *portable(service))
        run = dataprep(*words)
    assert run.returncode == 2, run.stderr
    assert re.search(REFUSED, run.stderr)
    assert "Traceback" not in run.stderr
    assert not is_finished(bucket_url)


def test_workers_of_dataflow_with_another_pillow_are_refused(other_python, gcs, source, bucket_url):
    with dataflow_stub(str(other_python)) as stub:
        options = ["--runner", "DataflowRunner", "--", *DATAFLOW, f"--dataflow_endpoint={stub.url}"]
        run = dataprep(*build_arguments("imagenet", source, bucket_url, "tfrecord", *SHARDS, *options))
    assert run.returncode == 2, run.stderr
    assert re.search(REFUSED, run.stderr)
    assert "Traceback" not in run.stderr
    assert not is_finished(bucket_url)


def test_a_part_with_another_pillow_is_refused_with_both_versions(other_python, originals, tmp_path):
    """A part plans for itself, so its plan is another one."""

    def killed(job, indexes):
        raise Killed
        yield

    with pytest.raises(Killed):
        run_build(request(originals, tmp_path / "out"), killed, Quiet())
    words = [
        "build",
        "imagenet",
        "--source",
        originals["imagenet"],
        "--output",
        tmp_path / "out",
        "--format",
        "webdataset",
    ]
    words += ["--split", "val", "--num-shards", 3, "--allow-partial", "--max-reject-ratio", 1, "--part", "2/2"]
    run = subprocess.run(
        [other_python, "-m", "dataprep", *map(str, words)], capture_output=True, text=True, check=False, env=os.environ
    )
    assert run.returncode == 2, run.stderr
    assert f"pillow is {version('pillow')} there, {OTHER_PILLOW} here" in run.stderr
