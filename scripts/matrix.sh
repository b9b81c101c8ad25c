#!/usr/bin/env bash
# Run `make test` on several Pythons one after another, each in a checkout of the last commit below build/matrix.
#   matrix.sh VERSION...            such as 3.11 3.12 3.13
set -euo pipefail
cd "$(dirname "$0")/.."
failed=()
for version in "$@"; do
    python=$(bash scripts/find_python.sh "$version")
    if [[ -z $python ]]; then
        echo "Python $version cannot be found, or cannot make .venv; install it, or leave it out: make matrix PYTHONS=3.13" >&2
        exit 1
    fi
    checkout=build/matrix/$version
    [[ -d $checkout ]] || git clone --quiet . "$checkout"
    git -C "$checkout" fetch --quiet origin HEAD
    git -C "$checkout" checkout --quiet --force --detach FETCH_HEAD
    echo "== Python $version: $python"
    make -C "$checkout" test PYTHON="$python" || failed+=("$version")
done
if [[ ${#failed[@]} -gt 0 ]]; then
    echo "tests failed on Python ${failed[*]}" >&2
    exit 1
fi
