"""The image size of a model, by its name: of this project's models, timm's, and those of papers, such as ViT-B/16."""

from __future__ import annotations

import re

from dataprep.errors import UsageError

_SIZE_IN_NAME = re.compile(r"_(\d{3,4})(px)?$")
"""Image size at the end of timm's name of a model, or of its weights after a dot."""
_OTHER_NUMBER_IN_NAME = re.compile(
    r"(tf_)?(resnet(v2)?|regnet[a-z]|levit|mobilevit(v2)?|\w*(fb|ghost|lc|mnas|mobile|pnas|rex)net\w*?)_"
)
"""Beginnings of timm's names of models that end with a depth, a width or a share of a width in place of a size."""
_AT_224_PIXELS = re.compile(
    r"_?(mae_)?vit_[a-z0-9]+(_(patch)?\d{1,2})?|deit3?_[a-z]+(_distilled)?(_patch\d+)?|resnet-?\d+|resnext\d+_\d+x\d+d"
)
"""Names whose recipes have 224 pixels. What follows in other names (`_dinov2`, `_clip`) may mean another size."""
_VIT_OF_PAPERS = re.compile(r"(\w+/)?vit-")
"""How ViT-B/16, ViT-L/14@336px and google/vit-base-patch16-224 begin, which have `_` between their parts here."""


def image_size_of(name: str) -> int:
    """Return the side of a model's images in pixels: the one at the end of its name, or that of its recipe.

    Models for long sequences, at 448 pixels, are those with a decoder in their names.

    Args:
        name: Name of the model; empty if none is given.

    Raises:
        UsageError: The name does not say the size.
    """
    model = name.lower()
    if _VIT_OF_PAPERS.match(model):
        model = re.sub("[-/@]", "_", model)
    architecture, _, weights = model.partition(".")
    for part in (weights, "" if _OTHER_NUMBER_IN_NAME.match(architecture) else architecture):
        if named := _SIZE_IN_NAME.search(part):
            return int(named[1])
    if re.match(r"mae_vit_.*_dec\d+d", model):
        return 448
    if _AT_224_PIXELS.fullmatch(model):
        return 224
    raise UsageError(f"the image size of {name or 'the model'} is not known; give --image-size")
