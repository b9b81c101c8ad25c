"""Batches drawn from several datasets, in exact proportions: `loaders.mixture`, for `open_loader`.

`loader.py` opens mixtures and divides the positions among ranks; `dataset.py` reads descriptions such as `mix.json`,
and several datasets as one; `order.py` maps positions to datasets and samples (pure).
"""
