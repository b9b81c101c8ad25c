import pytest

from dataprep.demo.make import write_demo
from tests.support.demos import NAMES


@pytest.fixture(scope="session", params=NAMES)
def demo(request, tmp_path_factory):
    """The report and the folder of a demo with every oddity."""
    folder = tmp_path_factory.mktemp(f"demo-{request.param}")
    return write_demo(request.param, folder, images=60, odd=True), folder
