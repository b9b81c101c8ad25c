"""Metadata is in setup.cfg; here stand only the C extensions: the loaders' decoder, without which they use libraries,
and the writer of restart markers, without which `--jpeg restart` is refused."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "loaders.decode._jpeg",
            ["loaders/decode/_jpeg.c"],
            depends=[f"loaders/decode/_jpeg_{part}.h" for part in ("huffman", "resize", "resize_simd")],
            libraries=["jpeg"],
            # No fused multiply-add: the weights are the same on every processor.
            extra_compile_args=["-O3", "-ffp-contract=off"],
            optional=True,  # no compiler or no libjpeg-turbo headers: the install goes on
        ),
        Extension("dataprep.build._restart", ["dataprep/build/_restart.c"], libraries=["jpeg"], optional=True),
    ]
)
