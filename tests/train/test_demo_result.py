"""The result that `make demo` prints at its end, of the log that a training writes today."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts/demo.sh"


def test_the_demo_reads_the_log_of_a_training(pretrain, tmp_path):
    assert pretrain(output_dir=str(tmp_path)) == 0
    (program,) = re.findall(r"<<'END'\n(import json.*?)\nEND\n", SCRIPT.read_text(), re.DOTALL)
    words = [sys.executable, "-", str(tmp_path / "log.txt")]
    done = subprocess.run(words, input=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = r"loss from \d\.\d\d to \d\.\d\d in \d+ steps; \d+ images/s; \d+\.\d % of the time waited for input\n"
    assert re.fullmatch(shown, done.stdout)
