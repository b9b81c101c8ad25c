"""Metadata is in setup.cfg; here stand only the C extensions: the loaders' decoder and the check of JPEGs, in whose
place libraries do the same in more time, and the writer of restart markers, without which `--jpeg restart` is refused.

Decoder and writer use the machine's libjpeg-turbo; an install without it, or without a compiler, goes on without them.
`make wheel` names a folder with a static libjpeg-turbo in DATAPREP_LIBJPEG, which then becomes a part of the
extensions; these must be built, and serve every Python from 3.11 on.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

sys.path.insert(0, str(Path(__file__).parent))
from dataprep.host.program import unsupported

# pip looks at python_requires only after this, and at it after the requirements of our packages, which it downloads.
if problem := unsupported():
    sys.exit(f"dataprep: {problem}")

LIBJPEG = os.environ.get("DATAPREP_LIBJPEG")
"""Folder with include/ and lib/libjpeg.a."""
STATIC = {
    "include_dirs": [f"{LIBJPEG}/include"],
    "extra_objects": [f"{LIBJPEG}/lib/libjpeg.a"],
    # Another libjpeg of the process must neither use these functions nor be used in their place.
    "extra_link_args": ["-Wl,--exclude-libs,ALL", "-Wl,-s"],
    "define_macros": [("Py_LIMITED_API", "0x030b0000")],
    "py_limited_api": True,
}
ALONE = STATIC if LIBJPEG else {"optional": True}
LIBRARY = STATIC if LIBJPEG else {"libraries": ["jpeg"], **ALONE}
CODES = "dataprep/formats/_jpeg_codes.h"

setup(
    ext_modules=[
        Extension(
            "loaders.decode._jpeg",
            ["loaders/decode/_jpeg.c"],
            depends=[CODES, *(f"loaders/decode/_jpeg_{part}.h" for part in ("huffman", "resize", "resize_simd"))],
            # No fused multiply-add: the weights are the same on every processor.
            extra_compile_args=["-O3", "-ffp-contract=off"],
            **LIBRARY,
        ),
        Extension(
            "dataprep.formats._check",
            ["dataprep/formats/_check.c"],
            depends=[CODES],
            extra_compile_args=["-O3"],
            **ALONE,
        ),
        Extension("dataprep.formats._restart", ["dataprep/formats/_restart.c"], **LIBRARY),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if LIBJPEG else {},
)
