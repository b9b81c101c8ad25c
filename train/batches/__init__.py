"""What a training step gets: batches from a loader or generated ones, masks, mixes of images, augmentations.

data.py              loaders over a dataset, or over plain data that are indexed first
tfds.py              where tensorflow-datasets put a dataset
fake_data.py         black images, generated without reading data
masks.py             which patches a masked autoencoder sees
pack_masks.py        the same for images packed into rows
mixing.py            Mixup and CutMix
finetune_augment.py  RandAugment, jitter of colours, erased boxes
"""

__all__ = ["data", "fake_data", "finetune_augment", "masks", "mixing", "pack_masks", "tfds"]
