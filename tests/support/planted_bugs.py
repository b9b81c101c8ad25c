"""Bugs that a fuzzer must find: changes of the sources in C, each of which was once a real mistake or could be one."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]

BUGS = {
    "reads behind the data": (
        "check",
        "dataprep/formats/_jpeg_codes.h",
        "if (found && window->source_end - from >= 2 && !from[1])",
        "if (found && !from[1])",
    ),
    "stores a coefficient behind the block": (
        "decoder",
        "loaders/decode/_jpeg_huffman.h",
        "if (keep && next <= 64)",
        "if (keep)",
    ),
    "passes over codes behind the end of a block": (
        "decoder",
        "loaders/decode/_jpeg_huffman.h",
        "if (UNLIKELY(after != 64 && (after < END_OF_BLOCK || after >= END_OF_BLOCK + 64)))",
        "if (0)",
    ),
    "keeps the brightness of the interval before": (
        "decoder",
        "loaders/decode/_jpeg.c",
        "    memset(scan->last_dc, 0, sizeof scan->last_dc);\n",
        "",
    ),
    "decodes too narrow a margin": (
        "decoder",
        "loaders/decode/_jpeg.c",
        "if (from && (int)(to - from) <= jpeg->max_h_samp_factor)",
        "if (0)",
    ),
    "scales other rows on another processor": (
        "decoder",
        "loaders/decode/_jpeg_resize.h",
        "narrow_avx2(rows + 2 * row_bytes, row_bytes,",
        "narrow_avx2(rows + row_bytes, row_bytes,",
    ),
    "calls a file sound whose last codes are missing": (
        "check",
        "dataprep/formats/_check.c",
        "if (8 * (bits.next - window->end) > bits.count)",
        "if (0)",
    ),
    "calls a file sound with bytes in front of a marker": (
        "check",
        "dataprep/formats/_check.c",
        "!window->has_end || left >= 8 ||",
        "!window->has_end ||",
    ),
    "writes a progressive file that lacks scans": (
        "restart",
        "dataprep/formats/_restart.c",
        "    refuse_unfinished(transcoder);\n    unsigned",
        "    unsigned",
    ),
    "drops the segment that says how colours are meant": (
        "restart",
        "dataprep/formats/_restart.c",
        "if (!lists_images(segment))",
        "if (segment->marker != JPEG_APP0 + 14)",
    ),
}
"""For each bug: the fuzz target, the file, the right text, and the wrong one."""


def plant_bug(folder: Path, name: str) -> str:
    """Copy the sources into a folder, with one bug, and return the name of the target that must find it."""
    target, file, right, wrong = BUGS[name]
    for part in ("loaders/decode", "dataprep/formats", "tests/fuzz"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.py", "*.so", "*.zip"))
    path = folder / file
    text = path.read_text()
    assert text.count(right) == 1, f"{file} has changed: {right!r}"
    path.write_text(text.replace(right, wrong))
    return target
