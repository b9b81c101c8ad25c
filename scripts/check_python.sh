#!/usr/bin/env bash
# Fail with one line if PYTHON cannot make .venv, or if .venv was made by another Python.
#   check_python.sh PYTHON ORIGIN        ORIGIN is make's $(origin PYTHON)
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 origin=$2
fail() {
    echo "PYTHON=$python $1; expected $2" >&2
    exit 1
}
supported="CPython 3.11, 3.12 or 3.13, such as: make setup PYTHON=python3.13"

if [[ -x .venv/bin/uv && $origin == file ]]; then
    exit 0 # .venv exists, and PYTHON has its default value
fi
problem=$("$python" scripts/check_python.py 2>/dev/null) || fail "cannot be found or run" "$supported"
[[ -z $problem ]] || fail "$problem" "$supported"
if [[ -x .venv/bin/uv ]]; then
    version='import sys; print("Python %d.%d" % sys.version_info[:2])'
    asked=$("$python" -c "$version") made=$(.venv/bin/python -c "$version" 2>/dev/null || echo "a Python that is gone")
    [[ $asked == "$made" ]] || fail "is $asked, .venv is of $made" "the same; remove .venv and .bench-venv to change it"
fi
