"""The crop of one view, drawn slowly and plainly by torchvision's algorithm from our words."""

import math

from dataprep.dataset.randomness import philox_words
from loaders.decode.crop import TRIES, WORDS, View


def reference_view(seed, position, height, width, size, scale, ratio, flip, *, clip=False, number=0):
    """One view, in Python floats, as torchvision.transforms.RandomResizedCrop.get_params; with `clip` the first box
    that is drawn is cut to the image. `number` is that of the view among those of its image."""
    purpose = f"load/augment/{number}" if number else "load/augment"
    words = philox_words(WORDS, seed=seed, purpose=purpose, start=position * WORDS)
    draws = [(word >> 11) / 2**53 for word in words.tolist()]
    flipped = draws[2 * TRIES + 2] < flip
    for attempt in range(TRIES):
        area = height * width * (scale[0] + draws[2 * attempt] * (scale[1] - scale[0]))
        low, high = math.log(ratio[0]), math.log(ratio[1])
        aspect = math.exp(low + draws[2 * attempt + 1] * (high - low))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if clip:
            w, h = max(1, min(w, width)), max(1, min(h, height))
        if 0 < w <= width and 0 < h <= height:
            top = math.floor(draws[2 * TRIES] * (height - h + 1))
            left = math.floor(draws[2 * TRIES + 1] * (width - w + 1))
            return View(top, left, h, w, size, size, 0, 0, flipped)
    if width / height < min(ratio):
        w, h = width, round(width / min(ratio))
    elif width / height > max(ratio):
        w, h = round(height * max(ratio)), height
    else:
        w, h = width, height
    return View((height - h) // 2, (width - w) // 2, h, w, size, size, 0, 0, flipped)
