"""Finds a sample's bytes (`index.py`), and reads them: from disk or bucket (`fetcher.py`), or a cache (`cache.py`).

`columns.py` finds the values of columns in the same way, `plain.py` makes the index of data that have none. A bucket is
read a block at a time, with many requests in flight and a budget of bytes; slow reads are hedged. The cache's keys name
the object that bytes were read from.
"""

__all__ = ["cache", "columns", "fetcher", "index", "plain"]
