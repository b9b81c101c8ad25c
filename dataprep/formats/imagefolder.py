"""Image folder: every image is a file of its own, as torchvision's ImageFolder reads them. Names only.

It has no shards, so it is no ShardFormat: the build writes the files, these functions say where.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dataprep.errors import FormatError
from dataprep.formats.checked import check_class_folder, is_key

FOLDERLESS = "images"
"""Where images go that have neither a class nor a folder: ImageFolder reads none that lie in its root."""
REPEATED = "images"
"""What `image_file` takes instead of the split where an image is repeated by links that point here."""
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,10}")


def image_file(split: str, sample_key: str, class_name: str, suffix: str) -> str:
    """Where an image lies relative to the dataset's root, e.g. `train/train2017/000000000009.jpg`.

    The folder is the class, or the key's own folder where there are no classes. Of a key with a class only
    what follows the last slash is kept: keys of one class must differ there.

    Args:
        split: e.g. `train`, or REPEATED.
        sample_key: e.g. `train2017/000000000009` or `n01440764/n01440764_10026`.
        class_name: empty where the dataset has no classes.
        suffix: e.g. `.jpg` or `.JPEG`.

    Raises:
        FormatError: the key, the class or the suffix could lead out of the split's folder.
    """
    if not is_key(sample_key) or not _SUFFIX.fullmatch(suffix):
        raise FormatError(
            f"file {sample_key[:200]!r} with suffix {suffix[:20]!r}, expected a key of [A-Za-z0-9_/=-] and a "
            "suffix such as .jpg; correct the source that made this sample"
        )
    folder, _, basename = sample_key.rpartition("/")
    if class_name:
        check_class_folder(class_name)
        folder = class_name
    return f"{split}/{folder or FOLDERLESS}/{basename}{suffix}"


def repeat_links(folders: Sequence[str], count: int, *, split: str = "train") -> list[tuple[str, str]]:
    """The links that show each image `count` times, with their targets relative to the link's folder.

    As the recipe of MAE on long sequences lays out COCO five times: `train/train2017_0` to
    `../images/train2017`, then `train/train2017_1` to the same, and so on.

    Args:
        folders: the sources' folders below `images/`, none of them nested.
        count: passes an epoch makes.
        split: the folder that holds the links.
    """
    target = f"../{REPEATED}/"
    return [(f"{split}/{name}_{repeat}", target + name) for name in folders for repeat in range(count)]
