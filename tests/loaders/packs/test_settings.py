import re

import numpy as np
import pytest

from dataprep.errors import UsageError
from loaders import Packs

WRONG = [
    ({"tokens": "512"}, "packs: tokens must be a whole number, got '512'"),
    ({"tokens": True}, "packs: tokens must be a whole number, got True"),
    ({"tokens": 2**20}, "packs: tokens must be 1 to 65,536, got 1,048,576"),
    ({"images": 0}, "packs: images must be 1 to 65,536, got 0"),
    ({"patch": 1.5}, "packs: patch must be a whole number, got 1.5"),
    ({"patch": 513}, "packs: patch must be 1 to 512, got 513"),
    ({"images": 600}, "packs: 600 images do not fit into 512 tokens; give more tokens"),
    ({"min_tokens": 513}, "packs: min_tokens must be 1 to 512, got 513"),
    ({"max_tokens": None, "min_tokens": "a"}, "packs: min_tokens must be a whole number, got 'a'"),
    (
        {"max_tokens": 100},
        "packs: 4 images of 64 to 100 tokens cannot fill 512 tokens, 128 each; "
        "change images, tokens, min_tokens or max_tokens",
    ),
    ({"crop": 0.5}, "packs: crop must be a range within 0 to 1, or None, got 0.5"),
    ({"crop": (0.5, 0.2)}, "packs: crop must be a range within 0 to 1, or None, got (0.5, 0.2)"),
    ({"crop": (0, 1)}, "packs: crop must be a range within 0 to 1, or None, got (0, 1)"),
    ({"crop": (0.5, float("nan"))}, "packs: crop must be a range within 0 to 1, or None, got (0.5, nan)"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_value_says_what_was_got_and_expected(settings, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        Packs(**{"tokens": 512, "images": 4, **settings})


def test_bounds_are_half_and_twice_the_mean_by_default():
    packs = Packs(tokens=np.int64(512), images=4)
    assert (type(packs.tokens), packs.least, packs.most, packs.patch_bytes) == (int, 64, 256, 768)
    assert Packs(tokens=4, images=4).least == 1
    assert Packs(tokens=6, images=1).most == 6


def test_a_document_holds_what_the_batches_depend_on():
    assert Packs(tokens=512, images=4, patch=14, max_tokens=200, crop=[0.5, 1]).document() == {
        "tokens": 512,
        "images": 4,
        "patch": 14,
        "min_tokens": 64,
        "max_tokens": 200,
        "crop": [0.5, 1.0],
    }
