"""Checkpoints: published complete, named by their digest, found again, and resumed from; weights of other tools.

checkpoint.py        folders or buckets of checkpoints, also those that Orbax writes
files.py             one file: its name, its digest, its entries, PyTorch's or NumPy's bytes
parts.py             checkpoints that are sharded among hosts
encoder_weights.py   vision transformers from our files and other tools' files, and classifiers made of them; weights
                     and moments of a state for a model of PyTorch
jax_weights.py       weights of JAX's transformers by PyTorch's names, and back
"""
