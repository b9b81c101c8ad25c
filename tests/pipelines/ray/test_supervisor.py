"""What is said of a worker's end; tests/cluster/test_ray.py runs the supervisor on a cluster."""

import pytest

from tests.support.on_use import on_use

cause_of = on_use("pipelines.ray.supervisor:cause_of")

DIED = """The actor died unexpectedly before finishing this task.
\tclass_name: Worker
\tactor_id: e21413158ef5a22840e35ddf01000000
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file.
"""
FAILED = """The actor died because of an error raised in its creation task, ray::Worker.__init__() (pid=1, ip=10.0.0.1)
ModuleNotFoundError: No module named 'pipelines'
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [(DIED, "its worker process has died"), (FAILED, "ModuleNotFoundError: No module named 'pipelines'")],
)
def test_the_telling_line_of_rays_errors_is_shown(text, cause):
    shown = cause_of(Exception(text))
    assert cause in shown
    assert "\n" not in shown
    assert len(shown) <= 160
