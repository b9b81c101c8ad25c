"""Command lines of the entries; an entry's own flags are in the entry's file.

options.py           a dataclass becomes options: names, help, ranges; how an entry runs and ends
shared.py            flags that several entries share
jax.py               framework that trains, and devices and folders of a run in JAX
"""
