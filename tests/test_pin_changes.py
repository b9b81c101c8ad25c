"""What `make constraints` says about a change of pins."""

from __future__ import annotations

import subprocess
import sys

from scripts.pin_changes import changes
from tests.support.markdown import ROOT

BEFORE = """# a comment
gone==1.0
jax==0.10.2
same==3 ; sys_platform == 'linux'
"""
AFTER = """jax==0.10.2 ; python_full_version < '3.12'
jax==0.12.0.1 ; python_full_version >= '3.12'
new==2
same==3 ; sys_platform == 'linux'
"""
CHANGED = [
    "gone: 1.0 -> nothing",
    "jax: 0.10.2 -> 0.10.2 (python_full_version < '3.12'), 0.12.0.1 (python_full_version >= '3.12')",
    "new: nothing -> 2",
]


def test_a_change_names_the_package_and_its_old_and_new_versions():
    assert changes(BEFORE, AFTER) == CHANGED
    assert changes(AFTER, AFTER) == []


def test_the_script_prints_the_changes_below_the_name_of_the_file(tmp_path):
    for name, text in (("before.txt", BEFORE), ("after.txt", AFTER)):
        (tmp_path / name).write_text(text)
    command = [sys.executable, str(ROOT / "scripts/pin_changes.py")]
    run = [*command, "before.txt", "after.txt"], [*command, "after.txt", "after.txt"]
    said = [subprocess.run(each, cwd=tmp_path, capture_output=True, text=True, check=True).stdout for each in run]
    assert said[0].splitlines() == ["after.txt: 3 changed", *(f"  {line}" for line in CHANGED)]
    assert said[1] == "after.txt: as it was\n"
