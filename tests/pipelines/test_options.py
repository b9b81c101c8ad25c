import pytest
from apache_beam.options.pipeline_options import DirectOptions, GoogleCloudOptions

from dataprep.errors import UsageError
from pipelines.options import REFUSED, RUNNERS, pipeline_options


def test_the_local_runner_gets_its_workers():
    options = pipeline_options("FnApiRunner", 3, []).view_as(DirectOptions)
    assert options.direct_running_mode == "multi_processing"
    assert options.direct_num_workers == 3


def test_arguments_reach_beam():
    options = pipeline_options("DataflowRunner", 1, ["--project=p", "--region=us-central1", "--temp_location=gs://b/t"])
    cloud = options.view_as(GoogleCloudOptions)
    assert (cloud.project, cloud.region, cloud.temp_location) == ("p", "us-central1", "gs://b/t")


@pytest.mark.parametrize("runner", REFUSED)
def test_runners_that_lose_data_are_refused_with_the_reason(runner):
    with pytest.raises(UsageError, match=f"--runner {runner} is refused: it "):
        pipeline_options(runner, 1, [])


def test_unknown_names_are_refused():
    with pytest.raises(UsageError, match="Quick: unknown; expected local or one of FnApiRunner, Dataflow"):
        pipeline_options("Quick", 1, [])
    for runner in RUNNERS:
        with pytest.raises(UsageError, match="not options of Beam: --regoin=x"):
            pipeline_options(runner, 1, ["--regoin=x"])
