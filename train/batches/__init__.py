"""Inputs of a training step: batches from a loader or generated ones, masks, mixes of images.

data.py              loaders over a dataset, over plain data that are indexed first, or of generated black images
masks.py             which patches a masked autoencoder sees, also of images packed into rows
mixing.py            Mixup and CutMix
"""
