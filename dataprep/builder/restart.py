"""Codes JPEGs again with restart markers, so that a loader decodes a crop without reading the rest of the image.

A baseline JPEG can only be read from its beginning, because a code's place is where the code before it ended. A restart
marker is a place that can be found by itself. `_restart.c` writes the same coefficients with optimised Huffman tables,
which saves more than the markers take (docs/decisions/0020).
"""

from __future__ import annotations

from functools import cache

from dataprep.errors import UsageError

RESTART_LIBRARY = "libjpeg-turbo"
"""Library whose version decides the bytes of an image with restart markers, and not its pixels."""
INTERVAL_BYTES = 400
"""Approximate number of bytes between two markers, rounded to whole MCUs, at least one: compared with these, the files
are 0.4 % larger with 300 and 0.2 % smaller with 600; between 150 and 600 the time to decode a crop is the same."""


def with_restarts(data: bytes) -> bytes:
    """Return a JPEG with the same pixels and with restart markers.

    Returns:
        The JPEG as it is if decoders might show other pixels: it is damaged, lacks scans of a progressive image, has
        arithmetic codes or more than one definition of a quantisation table, or would take twice as many bytes.
    """
    from dataprep.builder import _restart

    try:
        return _restart.with_restarts(data, INTERVAL_BYTES)
    except ValueError:
        return data


@cache
def library_version() -> str:
    """Return the version of the library that `with_restarts` was built with.

    Raises:
        UsageError: It was not built.
    """
    try:
        from dataprep.builder import _restart
    except ImportError as error:
        raise UsageError(
            "--jpeg restart: dataprep.builder._restart was not built; install a wheel of tpu-dataprep, or "
            "install a C compiler and the headers of libjpeg-turbo (libjpeg-turbo8-dev or libjpeg62-turbo-dev) and "
            "then tpu-dataprep again, or leave --jpeg restart out"
        ) from error
    return _restart.LIBRARY_VERSION
