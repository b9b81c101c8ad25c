"""`dataprep tpu`: its commands as help lists them, and on machines of Compute Engine as well as of the TPU API."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dataprep.commands.tpu import command
from tests.support.tpu import QUICK, tpu
from tests.support.words import replaced


def test_help_lists_the_commands_in_the_order_in_which_they_are_used():
    shown = CliRunner().invoke(command, ["--help"]).stdout
    assert re.findall(r"^  (\w+)  ", shown.partition("Commands:\n")[2], re.MULTILINE) == [
        *("plan", "create", "setup", "run", "status", "kill", "exec", "copy", "profile", "ssh", "delete", "manifest")
    ]


def test_commands_reach_the_machines_of_compute_engine(cloud):
    cloud.add_machines("my-tpu", ["my-tpu-0a", "my-tpu-0b"])
    assert tpu("exec", "--", "echo x").stdout == "[0] x\n[1] x\n"
    assert tpu("run", "--run", "r", *QUICK, "--", "echo", "ran").stdout == "ran\n"
    assert "RUNNING, tpu7x-standard-4t, 2 workers" in tpu("status").stdout


_PLACE = ("my-tpu", "--zone", "us-central2-b")
WORDS: dict[str, tuple[str, ...]] = {
    "plan": ("v4-32",),
    "create": (*_PLACE, "--type", "v4-32"),
    "setup": (*_PLACE, "--code", "code"),
    "run": (*_PLACE, "--run", "r", "--", "true"),
    "status": _PLACE,
    "kill": (*_PLACE, "--run", "r"),
    "exec": (*_PLACE, "--", "true"),
    "copy": (*_PLACE, "code", "copy"),
    "profile": (*_PLACE, "logs", "traces"),
    "ssh": _PLACE,
    "delete": _PLACE,
    "manifest": ("mae", "--type", "v6e-16", "--image", "image", "--", "dataprep-pretrain-mae"),
}
"""Every command, and arguments with which its dry run ends well."""
VALUES = {
    "api": "compute-engine", "accelerator": "v4-16", "labels": "team=vision", "shares": "10.0.0.2:/vol1=/mnt/data",
    "packages": "htop", "own_script": "own.sh", "boot_disk_gb": "50", "framework": "jax", "variables": "A=b",
    "requirements": "pins.txt", "code": "more", "grace_s": "7", "valid_until": "6h", "max_run": "3d", "mode": "spot",
    "build": "imagenet-fake --output gs://b/x --format tfrecord", "parts": "3", "part_cpu": "2", "part_memory": "1Gi",
    "part_disk": "1Gi", "max_restarts": "3", "output": "out.yaml", "zone": "us-east5-b", "python_version": "3.12",
}  # fmt: skip
"""Values of options by the names of their parameters; `other` for all others."""
WITH = dict.fromkeys(("parts", "part_cpu", "part_memory", "part_disk"), ("--build", VALUES["build"]))
"""Options without which another has no meaning."""
NOT_IN_A_DRY_RUN = {
    "run": {"keep_going", "poll_s", "patience_s", "grace_s", "log_dir"},
    "kill": {"yes"},
    "delete": {"yes"},
    "exec": {"workers"},
    "profile": {"run"},
}
"""Options that matter only while something runs."""


def outcome(name: str, *options: str) -> tuple[int, str, str]:
    """What a dry run prints, and how it ends."""
    dry = () if name in ("plan", "manifest") else ("--dry-run",)
    words = WORDS[name]
    end = words.index("--") if "--" in words else len(words)
    line = [name, *dry, *replaced(words[:end], *options), *words[end:]]
    result = CliRunner().invoke(command, [str(word) for word in line])
    files = sorted(path.name for path in Path().iterdir())
    Path("out.yaml").unlink(missing_ok=True)
    return result.exit_code, result.output + repr(result.exception), " ".join(files)


def given(parameter: click.Option) -> tuple[str, ...]:
    """An option with a value that is not its default."""
    return (parameter.opts[0],) if parameter.is_flag else (parameter.opts[0], VALUES.get(parameter.name, "other"))


@pytest.mark.parametrize("name", command.commands)
def test_every_option_of_every_command_has_an_effect(cloud, name):
    Path("code").mkdir()
    Path("more").mkdir()
    for path in ("own.sh", "pins.txt", "code/a.py", "more/b.py"):
        Path(path).write_text("\n")
    assert outcome(name)[0] == 0, outcome(name)
    options = [each for each in command.commands[name].params if isinstance(each, click.Option)]
    tried = [each for each in options if each.name not in {"dry_run", *NOT_IN_A_DRY_RUN.get(name, ())}]
    without = [
        each.opts[0]
        for each in tried
        if outcome(name, *WITH.get(each.name, ())) == outcome(name, *WITH.get(each.name, ()), *given(each))
    ]
    assert without == []


def test_commands_that_reach_no_worker_have_no_flag_for_its_address():
    with_flag = {
        name for name, found in command.commands.items() if any(each.name == "internal_ip" for each in found.params)
    }
    assert with_flag == {"setup", "run", "status", "kill", "exec", "copy", "profile", "ssh"}
