#!/usr/bin/env bash
# The peers whose pins conflict with ours, or that nothing else needs, in an environment of their own: .bench-venv
set -euo pipefail
cd "$(dirname "$0")/.."
uv=.venv/bin/uv
"$uv" venv --quiet --allow-existing --python .venv/bin/python .bench-venv
"$uv" pip install --quiet --python .bench-venv/bin/python -r benchmarks/peers-constraints.txt
