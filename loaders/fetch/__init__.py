"""Where a sample's bytes lie (`index.py`), and reading them from a disk, a bucket or a cache.

A bucket is read a block at a time, with many requests in flight and a budget of bytes; slow reads are hedged. The cache
keys bytes by the object that they were read from.
"""

__all__ = ["bucket", "budget", "cache", "disk", "fetcher", "fields", "index", "open"]
