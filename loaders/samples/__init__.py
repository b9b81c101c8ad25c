"""Single samples in any order, for pipelines that other libraries drive: PyTorch's DataLoader, Grain.

`source.py` reads the samples that it is asked for, many requests in flight. Its indices are positions of the order, so
that a sample is cropped as the loader crops it; `steps.py` says which positions make up a rank's batches, and has their
state.
"""

__all__ = ["source", "steps"]
