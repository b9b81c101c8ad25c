"""Checkpoints: published whole, named by their digest, found again, and resumed from; weights of other tools.

files.py             one file: its name, its digest, PyTorch's or NumPy's bytes
checkpoint.py        a folder or bucket of checkpoints
state.py             entries of a state, for every framework
restoring.py         weights and moments of a state for a model of PyTorch
jax_weights.py       weights of JAX's transformers by PyTorch's names, and back
orbax_folder.py      a folder or bucket of checkpoints that Orbax writes
parts.py pieces.py part_folder.py     states that are sharded among hosts
huggingface.py       weights of Hugging Face's masked autoencoders by our names, and back
encoder_weights.py   vision transformers from our files and those of other tools
constructors.py      calls of other libraries' networks for exported weights
loading_lines.py     lines of Python that load an exported file into these networks
pretrained.py        classifiers made of such weights
"""

__all__ = [
    "checkpoint",
    "constructors",
    "encoder_weights",
    "files",
    "huggingface",
    "jax_weights",
    "loading_lines",
    "orbax_folder",
    "part_folder",
    "parts",
    "pieces",
    "pretrained",
    "restoring",
    "state",
]
