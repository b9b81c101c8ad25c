#!/usr/bin/env bash
# Print the newest supported Python of this machine that can make .venv; python3 if none can.
#   find_python.sh [VERSION]        VERSION, such as 3.12, is the only one that is looked for; prints nothing without it
# Looked for are commands of PATH, then Pythons of pyenv, whose commands do not run where another version is chosen.
set -euo pipefail
cd "$(dirname "$0")/.."
for version in ${1:-3.13 3.12 3.11}; do
    for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/"python$version"; do
        if problem=$("$python" scripts/check_python.py 2>/dev/null) && [[ -z $problem ]]; then
            echo "$python"
            exit 0
        fi
    done
done
[[ $# -gt 0 ]] || echo python3
