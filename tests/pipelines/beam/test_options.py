import pytest

from dataprep.errors import UsageError
from pipelines.beam.runners import RUNNERS
from tests.support.on_use import on_use

pipeline_options = on_use("pipelines.beam.options:pipeline_options")


def test_options_of_the_command_line_reach_beam():
    from apache_beam.options.pipeline_options import GoogleCloudOptions

    options = pipeline_options("DataflowRunner", ["--project=p", "--region=us-central1", "--temp_location=gs://b/t"])
    cloud = options.view_as(GoogleCloudOptions)
    assert (cloud.project, cloud.region, cloud.temp_location) == ("p", "us-central1", "gs://b/t")


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_misspelt_option_is_refused(runner):
    with pytest.raises(UsageError, match="not options of Beam: --regoin=x"):
        pipeline_options(runner, ["--regoin=x"])
