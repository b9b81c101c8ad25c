"""What an engine raises when its job goes on without the driver."""

from pipelines.protocol import DetachedJob


def test_a_detached_job_says_its_name_and_what_to_do():
    job = DetachedJob("dataprep-1", "dataprep-1 runs; run the same command again later")
    assert job.name == "dataprep-1"
    assert str(job) == "dataprep-1 runs; run the same command again later"
