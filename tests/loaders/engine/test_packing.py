"""Places of images in packed rows: the same for a part of the rows, without overlaps, and where patches are changed."""

import numpy as np
import pytest

from loaders import LoaderConfig, Packs
from loaders.dataset import open_dataset
from loaders.engine.batch_plan import BatchPlan
from loaders.engine.packing import Place, place_images, transform_patches
from loaders.order import Order

PACKS = Packs(tokens=40, images=4, patch=2)


@pytest.mark.parametrize("augment", [True, False])
def test_places_do_not_overlap_and_are_the_same_for_parts_of_a_batch(dataset, augment):
    data = open_dataset(str(dataset("webdataset")), "train")
    index = data.open_index(5.0)
    config = LoaderConfig(batch_size=24, packs=PACKS, augment=augment)
    counts = tuple(shard["samples"] for shard in data.split.shards)
    order = Order(shard_samples=counts, seed=0, global_batch=24, samples_per_block=2)
    placed = []
    for part, parts in ((0, 1), (0, 2), (1, 2)):
        plan = BatchPlan(
            order=order, shuffle=True, rank=0, world_size=1, first_batch=3, part=part, parts=parts, row_images=4
        )
        picks, grids = next(iter(plan)), np.zeros((24, 2), np.int32)
        places = place_images(picks, index, config, PACKS, grids)
        placed.append({slot: place for (slot, _), place in zip(picks, places, strict=True)})
        for slot, place in placed[-1].items():
            assert place.patches == grids[slot].prod()
            assert place.columns == grids[slot, 1]
            assert (place.view.resized_height, place.view.resized_width) == tuple(2 * grids[slot])
    whole, *halves = placed
    assert halves[0] | halves[1] == whole
    assert not halves[0].keys() & halves[1].keys()
    taken = [token for place in whole.values() for token in range(place.start, place.start + place.patches)]
    assert len(taken) == len(set(taken))
    assert all(place.start // 40 == slot // 4 for slot, place in whole.items())
    assert place_images([], index, config, PACKS, grids) == []


def test_a_transform_changes_the_patches_of_its_image_alone():
    rows = np.arange(2 * 6 * 12, dtype=np.uint8).reshape(2, 6, 12)
    before = rows.copy()
    seen = []

    def invert(image_HWC):
        seen.append(image_HWC.shape)
        image_HWC[...] = 255 - image_HWC

    transform_patches(invert, rows, Place(None, 7, 4, 2))
    assert seen == [(4, 4, 3)]
    changed = (rows != before).any(axis=2)
    assert np.flatnonzero(changed).tolist() == [7, 8, 9, 10]
    assert np.array_equal(rows[changed], 255 - before[changed])
