"""Where a sample's bytes are (`index.py`), and how they are read: from disk or bucket (`fetcher.py`), or a cache.

`plain.py` makes the index of data that have none. A bucket is read a block at a time, with many requests in flight and
a budget of bytes; slow reads are hedged. The cache keys bytes by the object that they were read from.
"""

__all__ = ["cache", "fetcher", "index", "plain"]
