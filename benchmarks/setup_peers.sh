#!/usr/bin/env bash
# The peers whose pins conflict with ours, or that nothing else needs, in environments of their own: .bench-venv, and
# inside it img2dataset's, which pins older versions of half of what the others need
set -euo pipefail
cd "$(dirname "$0")/.."
uv=.venv/bin/uv
install() { # ENVIRONMENT CONSTRAINTS
  "$uv" venv --quiet --allow-existing --python .venv/bin/python "$1"
  "$uv" pip install --quiet --python "$1/bin/python" -r "$2"
}
install .bench-venv benchmarks/peers-constraints.txt
install .bench-venv/img2dataset benchmarks/img2dataset-constraints.txt
