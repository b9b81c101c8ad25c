"""`--diagnose` of a run; what it measures, the tests of the entries show."""

import pytest

from dataprep.errors import UsageError
from loaders.config import LoaderConfig
from train.batches.data import open_data
from train.telemetry.diagnosis import diagnose_run


def test_diagnosing_one_of_several_hosts_is_refused(dataset):
    loader = open_data(dataset).training_loader(LoaderConfig(batch_size=8, image_size=32, world_size=2))
    with pytest.raises(UsageError, match="--diagnose on 2 hosts: expected one; start it on one host"):
        diagnose_run(loader, None, transfer_ahead=0, folder=None, options={})
