"""The start-up script in a real bash, with programs that fail at first."""

import os
import subprocess
from pathlib import Path

import pytest

from dataprep.cloud.tpu.startup import Share, parse_share, startup_script
from dataprep.errors import UsageError


@pytest.fixture
def machine(tmp_path):
    """`apt-get` and `mount` fail as often as `failures` says; all that is called is in `calls`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "root/run").mkdir(parents=True)
    flaky = (
        '#!/bin/sh\necho "$(basename "$0") $*" >> "$HERE/calls"\n'
        'if [ -s "$HERE/failures" ]; then sed -i 1d "$HERE/failures"; exit 100; fi\n'
    )
    programs = {"apt-get": flaky, "mount": flaky, "sleep": "#!/bin/sh\n", "mountpoint": "#!/bin/sh\nexit 1\n"}
    programs["chmod"] = programs["mkdir"] = "#!/bin/sh\n"
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def boot(machine: Path, script: str) -> tuple[str, list[str]]:
    """What the script records, and what it called."""
    (machine / "start.sh").write_text(script)
    path = f"{machine / 'bin'}:{os.environ['PATH']}"
    environment = {"PATH": path, "HERE": str(machine), "DATAPREP_TPU_ROOT": str(machine / "root")}
    done = subprocess.run(["bash", machine / "start.sh"], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return (machine / "root/run/dataprep-startup").read_text().strip(), (machine / "calls").read_text().splitlines()


SHARES = [Share("10.0.0.2:/vol1", "/mnt/data"), Share("files:/b", "/mnt/b")]


def test_packages_are_installed_and_shares_mounted_with_retries(machine):
    (machine / "failures").write_text("1\n2\n3\n")
    record, calls = boot(machine, startup_script(SHARES, ["htop"]))
    assert record == "done"
    apt = "apt-get -o DPkg::Lock::Timeout=600 -y"
    assert calls == [
        *[f"{apt} update"] * 4,
        f"{apt} install gcc libjpeg-dev python3-venv nfs-common htop",
        "mount -t nfs -o vers=3,nosuid,nodev 10.0.0.2:/vol1 /mnt/data",
        "mount -t nfs -o vers=3,nosuid,nodev files:/b /mnt/b",
    ]


def test_nothing_that_others_made_is_opened_at_boot(machine):
    (machine / "root/tmp").mkdir()
    (machine / "bin/mkdir").unlink()
    (machine / "root/secret").mkdir(0o700)
    (machine / "root/tmp/tpu_logs").symlink_to("../secret")
    assert boot(machine, startup_script())[0] == "done"
    assert (machine / "root/secret").stat().st_mode & 0o7777 == 0o700
    (machine / "root/tmp/tpu_logs").unlink()
    boot(machine, startup_script())
    assert (machine / "root/tmp/tpu_logs").stat().st_mode & 0o7777 == 0o1777


def test_a_command_that_failed_ten_times_is_recorded(machine):
    (machine / "failures").write_text("x\n" * 10)
    record, calls = boot(machine, startup_script())
    assert record == "failed: apt-get -o DPkg::Lock::Timeout=600 -y update"
    assert len(calls) == 11


def test_without_shares_no_file_system_is_installed():
    assert "nfs" not in startup_script().replace("mount -t nfs", "")


@pytest.mark.parametrize(
    "text", ["", "10.0.0.2:/vol1", "10.0.0.2:/vol1=mnt", "a:/b=/m n", "a:/b=/../etc", "a;b:/c=/d", "$(x):/b=/c"]
)
def test_malformed_shares_are_refused(text):
    with pytest.raises(UsageError, match="expected SERVER:/SHARE=/FOLDER"):
        parse_share(text)


@pytest.mark.parametrize("name", ["x; rm -rf /", "$(x)", "--yes", ""])
def test_names_that_no_package_can_have_are_refused(name):
    with pytest.raises(UsageError, match="not a name of a Debian package"):
        startup_script([], [name])


def test_a_share_is_parsed_into_source_and_folder():
    assert parse_share("10.0.0.2:/vol1=/mnt/data/") == Share("10.0.0.2:/vol1", "/mnt/data")
