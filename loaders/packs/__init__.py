"""Packs: images at native aspect ratio, cut into patches, in rows of one static length.

`settings.py` is what a user asks for, `plan.py` chooses the grids of a row's images (pure), and `layout.py` turns grids
into segments, positions and masks. docs/decisions/0016 says why a row has a fixed number of images.
"""

__all__ = ["layout", "plan", "settings"]
