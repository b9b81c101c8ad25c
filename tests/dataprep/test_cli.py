import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import click
import pytest

from dataprep.__main__ import WORKER_MODULES, will_build
from dataprep.builder.archives import ArchiveRecipe
from dataprep.cli import COMMANDS, exit_code_of, group
from dataprep.errors import UsageError
from tests.support.builds import build_arguments, dataprep_anew, printed, refuses
from tests.support.own_data import picture, write_files
from tests.support.words import replaced

CONTEXT = click.Context(group)
GROUPS = {name: group.get_command(CONTEXT, name).list_commands(CONTEXT) for name in ("build", "tpu")}
HEAVY = "torch tensorflow apache_beam pyarrow PIL google.cloud.storage obstore numpy rich scipy".split()


def test_workers_of_a_build_are_prepared_before_the_command_is_imported():
    assert WORKER_MODULES[1:] == ArchiveRecipe.worker_modules
    assert will_build(["build", "folder", "--source", "pictures", "--output", "shards"])
    assert not will_build(["build", "folder", "--source", "pictures", "--output", "shards", "--dry-run"])


def test_help_imports_nothing_heavy():
    """What makes `dataprep --help` take 0.1 s; the time itself is in benchmarks/."""
    code = "import sys; from dataprep.cli import group; group(['--help'], standalone_mode=False); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.splitlines()[-1].split())
    assert "dataprep.cli" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("name", [*COMMANDS, *(f"{of} {name}" for of, names in GROUPS.items() for name in names)])
def test_every_command_explains_itself_with_examples(name):
    shown = printed(group, *name.split(), "--help")
    assert f"dataprep {name} " in " ".join(shown.split("Examples:")[1].split())
    if name not in (*GROUPS, "train"):  # training programs have flags of their own
        assert "--json" in shown


def test_no_command_imports_torch_tensorflow_or_beam():
    modules = [f"dataprep.commands.{name.replace('-', '_')}" for name in COMMANDS]
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "tensorflow", "apache_beam"}.isdisjoint(run.stdout.split())


def test_build_starts_its_server_before_anything_heavy_is_imported():
    code = "import sys, dataprep.commands.build, pipelines.local, dataprep.builder.growth; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "dataprep.builder.pool" in run.stdout.split()
    assert {*HEAVY, "pandas"}.isdisjoint(run.stdout.split())


NOTE_IMPORTS = """
import os, sys

class Noted:
    def find_spec(self, name, path=None, target=None):
        with open({file!r}, "a") as file:
            print(os.getpid(), name, file=file)

sys.meta_path.insert(0, Noted())
"""
UNNEEDED = {
    "apache_beam", "dataprep.cloud.tpu", "dataprep.fetched", "dataprep.sources.imagenet", "dataprep.web", "google.auth",
    "google.cloud", "obstore", "pandas", "pyarrow.compute", "requests", "rich", "scipy", "tensorflow", "torch",
}  # fmt: skip
"""Modules that no command needs which reads and writes folders, and neither is a dataset of ImageNet's nor writes to a
terminal. Pandas would take as long as the rest of the start; many a call of pyarrow imports it."""


def processes_by_import(folder, *arguments):
    """Run a command as its console script does; the processes that imported each module."""
    (folder / "path").mkdir(exist_ok=True)
    noted = folder / "imported"
    noted.unlink(missing_ok=True)
    (folder / "path/sitecustomize.py").write_text(NOTE_IMPORTS.format(file=str(noted)))
    command = [Path(sys.executable).with_name("dataprep"), *map(str, arguments)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(folder / "path")}, capture_output=True, check=True)
    found = {}
    for line in noted.read_text().splitlines():
        process, name = line.split()
        found.setdefault(name, set()).add(process)
    return found


def test_no_process_that_works_on_folders_imports_what_it_does_not_need(originals, tmp_path):
    imported = processes_by_import(
        tmp_path, *build_arguments("coco-dup5", originals["coco"], tmp_path / "out", "tfrecord")
    )
    assert len(imported["dataprep.builder.archives"]) == 2  # the command, and the server of its workers
    assert len(imported["click"]) == 1
    assert imported.keys() & UNNEEDED == set()
    for command in ("inspect", "verify"):
        imported = processes_by_import(tmp_path, command, tmp_path / "out", "--json")
        assert f"dataprep.commands.{command}" in imported
        assert imported.keys() & UNNEEDED <= {"rich"}  # their output for people is made with it


IMAGENET = "build imagenet --source s --output o --format tfrecord".split()
USAGE = {
    "unknown dataset": (["build", "coco-2017"], "is not one of"),
    "no source": ("build imagenet --output o --format tfrecord".split(), "imagenet needs --source"),
    "unknown split": ([*IMAGENET, "--split", "test"], "has no split 'test'; it has train, val"),
    "bad size": ([*IMAGENET, "--shard-bytes", "lots"], "got 'lots', expected a size such as 256MiB"),
    "not repeated": ([*IMAGENET, "--repeat", "physical"], "imagenet train+val uses each image once per epoch"),
    "links in a bucket": (
        "build coco-dup5 --source s --output gs://bucket/o --format imagefolder --repeat physical".split(),
        "a bucket has no links",
    ),
    "beam options for the local pool": (
        [*IMAGENET, "--", "--region=x"], "got options --region=x for another engine than --runner local"
    ),
    "images of a dataset with originals": ([*IMAGENET, "--images", "5"], "imagenet has a fixed number of images"),
    "no originals": (IMAGENET, "ILSVRC2012_img_train.tar"),
    "an unknown place": (replaced(IMAGENET, "--source", "ftp://x/y"), "ftp:// is not known"),
    "check none and resize": ([*IMAGENET, "--check", "none", "--resize", "256"], "--check none reads no image"),
}  # fmt: skip


@pytest.mark.parametrize("case", USAGE)
def test_wrong_usage_is_one_line_and_exit_code_2(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, message = USAGE[case]
    run = refuses(*arguments, PYTHONPATH=str(Path(__file__).parents[2]))
    assert message in run.stderr
    assert run.stdout == ""
    assert list(tmp_path.iterdir()) == []


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
ADVICE = (
    "the locale of this process writes file names in ascii, which does not have all letters: set PYTHONUTF8=1, and "
    "run the same command again"
)


@pytest.mark.parametrize("variables", [{"PYTHONIOENCODING": "ascii"}, ASCII], ids=["output", "locale"])
def test_output_in_ascii_escapes_what_it_cannot_show(finished, variables):
    """As `inspect` writes its "·" to a terminal with LC_ALL=POSIX, or for a file in Latin-1."""
    run = dataprep_anew("inspect", finished("imagenet-webdataset"), **variables)
    assert run.returncode == 0, run.stderr
    assert "imagenet \\xb7 webdataset" in run.stdout


def test_names_that_an_ascii_locale_cannot_read_are_an_error_of_one_line(tmp_path):
    write_files(tmp_path / "pets", {f"{name}/1.jpg": picture(1) for name in ("süß", "b")})
    arguments = ["build", "folder", "--source", tmp_path / "pets", "--output", tmp_path / "out", "--format"]
    run = dataprep_anew(*arguments, "webdataset", **ASCII)
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert line.startswith("dataprep: a name or a text has characters that cannot be written here (")
    assert line.endswith(f"; {ADVICE}")
    assert dataprep_anew(*arguments, "webdataset", **(ASCII | {"PYTHONUTF8": "1"})).returncode == 0


def test_names_that_an_ascii_locale_cannot_write_are_an_error_of_one_line(tmp_path):
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as packed:
        for name in ("süß", "b"):
            packed.writestr(f"{name}/1.jpg", picture(1))
    arguments = ["--output", tmp_path / "out", "--format", "imagefolder", "--workers", "1"]
    run = dataprep_anew("build", "folder", "--source", tmp_path / "pets.zip", *arguments, **ASCII)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].endswith(f"; {ADVICE}")
    assert "Traceback" not in run.stderr


def test_output_to_a_full_disk_is_one_line():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "dataprep", "build", "--help"]
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        "dataprep: the output cannot be written ([Errno 28] No space left on device); free some space, and run the "
        "same command again"
    ]


def run_here(error: Exception, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of a command that fails with an error, and what it prints."""

    @click.command()
    def failing() -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["failing"])
        return exit_code_of(failing, "failing"), capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        OSError(12, "Cannot allocate memory"),
        ImportError("libarrow.so.2500: failed to map segment from shared object"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_memory_left_is_one_line(error, capsys):
    code, printed = run_here(error, capsys)
    assert code == 1
    assert printed.startswith("failing: no memory left (")
    assert "; use fewer --workers, or raise the limit (ulimit -v, ulimit -u, or the container's)" in printed
    assert printed.count("\n") == 1


LIMITED = """
import resource, sys, click
from dataprep.cli import exit_code_of

@click.command()
def large():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    bytearray(1 << 31)

sys.exit(exit_code_of(large, "large"))
"""


def test_a_limit_on_memory_is_one_line():
    run = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith("large: no memory left (MemoryError); use fewer --workers")
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), RuntimeError("a bug"), ImportError("a bug")])
def test_other_errors_keep_their_traceback(error, capsys):
    with pytest.raises(type(error), match=str(error.args[-1])):
        run_here(error, capsys)


@pytest.mark.parametrize("name", ["dataprep", "dataprep-train-vit"])
def test_an_error_escapes_what_controls_a_terminal(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name])

    @click.command()
    def fails() -> None:
        raise UsageError("a\x1b]52;c;aWQ=\x07 b\u202e: no such file")

    assert exit_code_of(fails, name) == 2
    assert capsys.readouterr().err == f"{name}: a\\u001b]52;c;aWQ=\\u0007 b\\u202e: no such file\n"


def test_output_escapes_what_controls_a_terminal_and_json_stays_the_same(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["dataprep"])

    @click.command()
    def prints() -> None:
        click.echo(json.dumps({"\u202e": "\x9b\n"}, ensure_ascii=False))
        print("\x1b[2J", file=sys.stderr)

    assert exit_code_of(prints, "dataprep") == 0
    out, err = capsys.readouterr()
    assert (out.isascii(), json.loads(out), err) == (True, {"\u202e": "\x9b\n"}, "\\u001b[2J\n")


def test_hostile_names_in_an_archive_reach_no_terminal(tmp_path):
    hostile = "a\x1b]0;P\x07\u202e\x9b"
    (tmp_path / "source").mkdir()
    with zipfile.ZipFile(tmp_path / "source" / f"{hostile}.zip", "w") as archive:
        archive.writestr(f"{hostile}/../1.jpg", b"")
    run = refuses(*build_arguments("folder", tmp_path / "source", tmp_path / "out", "webdataset"))
    assert set("\x1b\x07\u202e\x9b").isdisjoint(run.stdout + run.stderr)
    assert r"a\u001b]0;P\u0007\u202e\u009b.zip" in run.stderr
