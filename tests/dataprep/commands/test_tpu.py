"""`dataprep tpu`: its commands as help lists them, and on machines of Compute Engine as well as of the TPU API."""

from __future__ import annotations

import re

from click.testing import CliRunner

from dataprep.commands.tpu import command
from tests.support.tpu import QUICK, tpu


def test_help_lists_the_commands_in_the_order_in_which_they_are_used():
    shown = CliRunner().invoke(command, ["--help"]).stdout
    assert re.findall(r"^  (\w+)  ", shown.partition("Commands:\n")[2], re.MULTILINE) == [
        *("plan", "create", "setup", "run", "status", "kill", "exec", "copy", "profile", "delete", "manifest"),
    ]


def test_commands_reach_the_machines_of_compute_engine(cloud):
    cloud.add_machines("my-tpu", ["my-tpu-0a", "my-tpu-0b"])
    assert tpu("exec", "--", "echo x").stdout == "[0] x\n[1] x\n"
    assert tpu("run", "--run", "r", *QUICK, "--", "echo", "ran").stdout == "ran\n"
    assert "RUNNING, tpu7x-standard-4t, 2 workers" in tpu("status").stdout
