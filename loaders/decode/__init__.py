"""From an image's bytes to one row of a batch: choose the crop, decode only the pixels that it needs, resize, flip.

`crop.py` chooses the crop (pure), `decoders.py` decodes and resizes with the C extension `_jpeg.c` or with libraries,
and `annotations.py` carries boxes, masks and keypoints to a row's pixels (pure). `transforms.py` then applies
augmentations of other libraries; `seeding.py` runs them in separate processes, with the sample's random numbers.
docs/decisions/0004 says why there is an extension, 0018 why it decodes an image once for all views.
"""
