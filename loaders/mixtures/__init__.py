"""Batches drawn from several datasets, in exact proportions: `loaders.mixture`, for `open_loader`.

`loader.py` opens it all and shares the positions out among ranks; `dataset.py` reads what a mixture is made of, such as
`mix.json`, and several datasets as one; `order.py` says which sample of which dataset is at which position (pure).
"""

__all__ = ["dataset", "loader", "order"]
