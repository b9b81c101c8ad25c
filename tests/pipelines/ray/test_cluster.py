"""What is said when the connection to a cluster is lost; tests/cluster/test_ray.py connects to one."""

import pytest
import ray.exceptions

from dataprep.errors import BuildError, StorageError
from pipelines.ray.cluster import explained


def test_a_lost_connection_is_explained_in_one_line():
    for error in (ConnectionError("no route\nto the host"), ray.exceptions.RayError("no route\nto the host")):
        with (
            pytest.raises(BuildError, match=r"^ray: the cluster cannot be reached any more \(.*no route.*\); run "),
            explained(),
        ):
            raise error


def test_errors_of_the_build_pass():
    with pytest.raises(StorageError, match="the disk is tired"), explained():
        raise StorageError("the disk is tired")
