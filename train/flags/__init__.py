"""Command lines of the entries; an entry's own flags are in the entry's file.

options.py           a dataclass becomes options: names, help, ranges
shared.py            flags that several entries share
packs.py             flags of entries that train on images packed into rows
entry.py             how an entry runs and ends
"""

__all__ = ["entry", "options", "packs", "shared"]
