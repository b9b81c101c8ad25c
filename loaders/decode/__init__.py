"""From an image's bytes to one row of a batch: choose the crop, decode only what it needs, resize, flip.

`crop.py` chooses the crop (pure), `decoders.py` decodes and resizes with the C extension `_jpeg.c` or with libraries,
which `lower_rows.py` spares the rows below the crop,
`views.py` is what a user asks for who wants several views of each image, `boxes.py` and `masks.py` carry annotations to
a row's pixels (pure). Augmentations of other libraries follow, by `pil_transform.py`, and with annotations
(`annotations.py`) by `torchvision_transform.py` and `albumentations_transform.py`; `seeding.py` runs them
in processes of their own, with the sample's random numbers.
docs/decisions/0004 says why there is an extension, 0018 why it decodes an image once for all views.
"""

__all__ = [
    "albumentations_transform",
    "annotations",
    "boxes",
    "crop",
    "decoders",
    "lower_rows",
    "masks",
    "pil_transform",
    "seeding",
    "torchvision_transform",
    "views",
]
