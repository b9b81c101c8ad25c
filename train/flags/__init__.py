"""Command lines of the entries; an entry's own flags are in the entry's file.

options.py           a dataclass becomes options: names, help, ranges
shared.py            flags that several entries share
jax.py               framework that trains, and what a run in JAX opens
packs.py             flags of entries that train on images packed into rows
entry.py             how an entry runs and ends
"""

__all__ = ["entry", "jax", "options", "packs", "shared"]
