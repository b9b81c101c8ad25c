"""Draw docs/letterbox.jpg: a batch of complete images in letterboxes, with the boxes and masks that came with them.

.venv/bin/python scripts/letterbox_picture.py SHARDS PICTURE      SHARDS as `dataprep build coco` writes them
"""

import sys

import numpy as np
from PIL import Image, ImageDraw

from loaders import AnnotationFields, AnnotationTransform, open_loader

IMAGES, SIDE, GAP = 5, 160, 4
COLOURS = ("#ff3b30", "#34c759", "#0a84ff", "#ffd60a")


def main(url: str, path: str) -> None:
    """Draw the first batch of the split train that has an object in every image."""
    transform = AnnotationTransform(AnnotationFields(masks="segmentation"))
    settings = {"resize": "letterbox", "fields": transform.needed_fields, "transform": transform, "seed": 1}
    with open_loader(url, batch_size=1, image_size=SIDE, **settings) as loader:
        shown = [batch for batch in loader if 1 <= len(batch.fields["objects"][0]["bbox"]) <= len(COLOURS)][:IMAGES]
    picture = Image.new("RGB", (IMAGES * (SIDE + GAP) - GAP, SIDE), "white")
    for column, batch in enumerate(shown):
        image, objects = Image.fromarray(batch.images[0]), batch.fields["objects"][0]
        for colour, mask in zip(COLOURS, objects["segmentation"], strict=False):
            image.paste(colour, mask=Image.fromarray((mask * 96).astype(np.uint8)))
        for colour, (x, y, width, height) in zip(COLOURS, objects["bbox"], strict=False):
            ImageDraw.Draw(image).rectangle((x, y, x + width, y + height), outline=colour, width=2)
        picture.paste(image, (column * (SIDE + GAP), 0))
    picture.save(path, quality=85)


if __name__ == "__main__":
    main(*sys.argv[1:])
