"""Parses argument lists with the parser of an installed Google Cloud SDK, without running anything.

    PYTHON sdk_parser.py SDK_ROOT < lists.json      # prints a JSON list with an error, or null, for each list

It runs in the SDK's own Python, or in any that the SDK supports, and imports nothing of this repository.
"""

import contextlib
import io
import json
import sys


def main(root: str) -> None:
    sys.path[:0] = [f"{root}/lib", f"{root}/lib/third_party"]
    from googlecloudsdk import gcloud_main

    parser = gcloud_main.CreateCLI([])._CLI__parser
    found = []
    for argv in json.load(sys.stdin):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            try:
                parser.parse_args(argv[1:])
                error = None
            except (Exception, SystemExit) as raised:  # noqa: BLE001  # errors of the SDK have no common class
                error = f"{raised!r} {said.getvalue()}"
        found.append(error)
    print(json.dumps(found))


main(sys.argv[1])
