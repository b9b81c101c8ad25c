"""Finds a sample's bytes (`index.py`), and reads them: from disk or bucket (`fetcher.py`), or a cache (`cache.py`).

`columns.py` finds the values of columns in the same way, `plain.py` indexes data without an index. A bucket is read a
block at a time, with many requests in flight and a budget of bytes; slow reads are hedged. Keys of the cache name the
object whose bytes they hold.
"""
