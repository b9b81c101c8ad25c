"""Batches drawn from several datasets, in exact proportions: `loaders.mixture`, for `open_loader`.

`document.py` reads what a mixture is made of, such as `mix.json`; `proportions.py` and `order.py` say which sample of
which dataset is at which position (pure), and `plan.py` shares the positions out among ranks; `dataset.py` reads
several datasets as one, and `loader.py` opens it all.
"""

__all__ = ["dataset", "document", "loader", "order", "plan", "proportions"]
