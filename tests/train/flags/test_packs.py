import re

import pytest

from dataprep.errors import UsageError
from loaders import Packs
from train.flags.shared import PackOptions, check_packs
from train.pretrain_mae import PretrainMAE
from train.train_vit import TrainViT


class Devices:
    """Eight of them."""

    num_devices = 8


def test_flags_become_what_the_loader_is_asked_for():
    assert PackOptions().packs(16, crop=(0.2, 1.0)) is None
    assert PackOptions(pack_tokens=512, pack_images=4).packs(16, crop=(1.0, 1.0)) == Packs(tokens=512, images=4)
    given = PackOptions(pack_tokens=512, pack_images=4, pack_min_tokens=50, pack_max_tokens=400)
    assert given.packs(14, crop=(0.2, 1.0)) == Packs(
        tokens=512, images=4, patch=14, min_tokens=50, max_tokens=400, crop=(0.2, 1.0)
    )


def test_rows_that_devices_and_parts_cannot_share_are_refused():
    packs = Packs(tokens=512, images=4)
    check_packs(packs, 64, Devices, 2)
    message = "`pack_images` 4: a batch of 96 in rows of 4 cannot be shared by 8 devices x 2 parts; "
    with pytest.raises(UsageError, match=re.escape(message + "choose a batch that is a multiple of 64")):
        check_packs(packs, 96, Devices, 2)


@pytest.mark.parametrize(
    ("kind", "flags", "name"),
    [
        (PretrainMAE, {"diagnose": True}, "diagnose"),
        (PretrainMAE, {"use_byol_crop": True}, "use_byol_crop"),
        (PretrainMAE, {"mask_downsampling": 2}, "mask_downsampling"),
        (TrainViT, {"fake_data": True}, "fake_data"),
    ],
)
def test_flags_of_squares_are_refused(kind, flags, name):
    with pytest.raises(UsageError, match=f"^`{name}` is for square images; leave it out with `pack_tokens`$"):
        kind(data_path="x", pack_tokens=512, **flags)
