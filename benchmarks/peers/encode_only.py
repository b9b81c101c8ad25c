"""(a) The roofline of laion.py: decode, resize and encode in plain loops, in as many processes; no web, no shards."""

from __future__ import annotations

import argparse
from pathlib import Path

from contest import print_samples, spawn_each

from dataprep.fetched.collect import EncodeOptions, RowFilter, encode_image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("list", type=Path, help="file with one file name per line")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    files = options.list.read_text().splitlines()
    spawn_each(encode_all, [(files[index :: options.processes],) for index in range(options.processes)])
    print_samples(len(files))


def encode_all(files: list[str]) -> None:
    """Encode the files of one process."""
    options, row_filter = EncodeOptions(), RowFilter()
    for file in files:
        encode_image(Path(file).read_bytes(), options, row_filter)


if __name__ == "__main__":
    main()
