"""Prints resizer.json with img2dataset's own Resizer; needs img2dataset 1.47.0 and opencv-python-headless 4.14.0."""

import hashlib
import io
import itertools
import json

from img2dataset.resizer import Resizer
from pictures import png_cases

QUALITIES = {"jpg": 95, "png": 3, "webp": 90}
MODES = ("no", "keep_ratio", "keep_ratio_largest", "center_crop", "border")


def main() -> None:
    found = {}
    for mode, bigger, file_format in itertools.product(MODES, (True, False), QUALITIES):
        resizer = Resizer(256, mode, bigger, encode_quality=QUALITIES[file_format], encode_format=file_format)
        for name, data in png_cases().items():
            image, *sizes, error = resizer(io.BytesIO(data))
            if error is not None:
                raise SystemExit(f"{mode} {bigger} {file_format} {name}: {error}")
            found[f"{mode} {bigger} {file_format} {name}"] = [hashlib.sha256(image).hexdigest()[:16], *sizes]
    print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)) + "\n}")


if __name__ == "__main__":
    main()
