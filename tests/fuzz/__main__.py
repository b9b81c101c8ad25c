"""Fuzz the extensions in C: `make fuzz`, or `python -m tests.fuzz --seconds 600`.

Exits 1 with the sanitizer's report when an input breaks a promise; the input is then in build/fuzz/found.
"""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.run import TARGETS, fuzz, keep_corpus, missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--seconds", type=int, default=0, help="length of a target's run")
    parser.add_argument("--runs", type=int, default=-1, help="number of inputs of a target's run")
    parser.add_argument("--keep", action="store_true", help="keep the reduced corpus in tests/fuzz")
    options = parser.parse_args()
    if lacking := missing():
        sys.exit(f"fuzzing needs {lacking}; Debian: apt-get install clang cmake cargo")
    if unknown := [name for name in options.targets if name not in TARGETS]:
        parser.error(f"no target is called {unknown[0]}; there are {', '.join(TARGETS)}")
    failed = False
    for name in options.targets or TARGETS:
        try:
            print(f"{name}: {fuzz(name, seconds=options.seconds, runs=options.runs)}", flush=True)
        except AssertionError as error:
            print(error, file=sys.stderr)
            failed = True
        if options.keep:
            print(f"{name}: {keep_corpus(name)} inputs kept", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
