"""The name of a detached job; tests/cluster/test_ray.py runs one."""

from dataprep.builder.job import BuildJob
from tests.support.on_use import on_use

job_name = on_use("pipelines.ray.detached:job_name")


def test_a_detached_job_is_named_by_its_output_and_its_build():
    names = {job_name(BuildJob(url, "", root, "archives")) for url in ("a", "b") for root in ("c", "d")}
    assert len(names) == 4
    assert job_name(BuildJob("a", "", "c", "archives")) in names
