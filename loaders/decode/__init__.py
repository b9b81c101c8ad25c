"""From an image's bytes to one row of a batch: choose the crop, decode only what it needs, resize, flip.

`crop.py` chooses the crop (pure), `decoders.py` decodes and resizes with the C extension `_jpeg.c` or with libraries,
`boxes.py` and `masks.py` carry annotations to a row's pixels (pure), and `pil_transform.py` lets augmentations of other
libraries follow. docs/decisions/0004 says why there is an extension.
"""

__all__ = ["boxes", "crop", "decoders", "masks", "pil_transform"]
