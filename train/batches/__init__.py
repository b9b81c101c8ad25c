"""Inputs of a training step: batches from a loader or generated ones, masks, mixes of images.

data.py              loaders over a dataset, or over plain data that are indexed first
fake_data.py         black images, generated without reading data
masks.py             which patches a masked autoencoder sees, also of images packed into rows
mixing.py            Mixup and CutMix
"""

__all__ = ["data", "fake_data", "masks", "mixing"]
