import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions

from dataprep.errors import UsageError
from pipelines.beam.options import pipeline_options
from pipelines.beam.runners import RUNNERS


def test_options_of_the_command_line_reach_beam():
    options = pipeline_options("DataflowRunner", ["--project=p", "--region=us-central1", "--temp_location=gs://b/t"])
    cloud = options.view_as(GoogleCloudOptions)
    assert (cloud.project, cloud.region, cloud.temp_location) == ("p", "us-central1", "gs://b/t")


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_misspelt_option_is_refused(runner):
    with pytest.raises(UsageError, match="not options of Beam: --regoin=x"):
        pipeline_options(runner, ["--regoin=x"])
