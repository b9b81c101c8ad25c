"""Which meshes and batches go together."""

import pytest

from dataprep.errors import UsageError
from loaders import LoaderConfig
from loaders.engine.mesh import rows_per_part

MESH = {"data": 4, "fsdp": 2, "model": 3}


@pytest.mark.parametrize(
    ("axes", "rows"), [(("data",), 6), (("data", "fsdp"), 3), (("fsdp", "model"), 4), (("model",), 8)]
)
def test_a_part_of_the_mesh_gets_its_share_of_the_rows(axes, rows):
    assert rows_per_part(LoaderConfig(batch_size=24), MESH, axes, (0, 1)) == rows


@pytest.mark.parametrize(
    ("axes", "host_rank", "message"),
    [
        (("data",), (1, 4), r"the loader is rank 1 of 2, this process 1 of 4; open the loader with .* host_rank\(\)"),
        (("data",), (0, 2), "the loader is rank 1 of 2, this process 0 of 2"),
        (("batch",), (1, 2), "the mesh has no axis 'batch'; it has data, fsdp, model"),
        (("data", "model"), (1, 2), "a batch of 20 cannot be cut into 12 parts along data, model; choose a multiple"),
    ],
)
def test_mesh_that_does_not_fit_the_batch_is_refused(axes, host_rank, message):
    with pytest.raises(UsageError, match=message):
        rows_per_part(LoaderConfig(batch_size=20, rank=1, world_size=2), MESH, axes, host_rank)
