"""From an image's bytes to one row of a batch: choose the crop, decode only what it needs, resize, flip.

`augment.py` chooses the crop (pure), `decoders.py` decodes and resizes with the C extension `_jpeg.c` or with
libraries, and `transforms.py` runs a user's own function. docs/decisions/0004 says why there is an extension.
"""

__all__ = ["augment", "decoders", "transforms"]
