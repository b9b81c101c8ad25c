"""What is said when the connection to a cluster is lost; tests/cluster/test_ray.py connects to one."""

import pytest

from dataprep.errors import BuildError, StorageError
from tests.support.on_use import on_use

explained = on_use("pipelines.ray.cluster:explained")
_WithoutCurrentFolder = on_use("pipelines.ray.cluster:_WithoutCurrentFolder")
RayError = on_use("ray.exceptions:RayError")


def test_workers_do_not_look_for_modules_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = _WithoutCurrentFolder()
    folders.extend(["/opt/bin", str(tmp_path)])
    assert folders == ["/opt/bin"]


def test_a_lost_connection_is_explained_in_one_line():
    for error in (ConnectionError("no route\nto the host"), RayError("no route\nto the host")):
        with (
            pytest.raises(BuildError, match=r"^ray: the cluster cannot be reached any more \(.*no route.*\); run "),
            explained(),
        ):
            raise error


def test_errors_of_the_build_pass():
    with pytest.raises(StorageError, match="the disk is tired"), explained():
        raise StorageError("the disk is tired")
