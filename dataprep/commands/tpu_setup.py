"""`dataprep tpu setup`, `copy` and `profile`: files to the workers, and traces from them."""

from __future__ import annotations

import hashlib
import tempfile
from importlib import resources
from pathlib import Path, PurePosixPath

import click

from dataprep.arguments import StrictCommand
from dataprep.cloud.tpu.command_lines import fetch_command
from dataprep.cloud.tpu.fleet import Fleet, require_all
from dataprep.cloud.tpu.jobs import FRAMEWORKS, prepare
from dataprep.cloud.tpu.profiles import Trace, arrange
from dataprep.cloud.tpu.staging import Archive, pack
from dataprep.cloud.tpu.startup import parse_share
from dataprep.commands.tpu_options import Done, Where, examples, note, on_workers
from dataprep.errors import StorageError, UsageError

ENVIRONMENT_TIMEOUT_S = 3600.0


@click.command(
    "setup",
    cls=StrictCommand,
    epilog=examples(
        "tpu setup my-tpu --zone us-central2-b --code .",
        "tpu setup my-tpu --zone us-central2-b --framework jax --nfs 10.0.0.2:/vol1=/mnt/data",
    ),
)
@on_workers
@click.option(
    "--code",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Folder of code that all workers get.",
)
@click.option(
    "--framework", type=click.Choice(list(FRAMEWORKS)), default="torch", show_default=True,
    help="Framework whose packages are installed.",
)  # fmt: skip
@click.option(
    "--requirements",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of pinned packages, instead of the framework's.",
)
@click.option(
    "--python", "python_version", default="3.13", show_default=True, help="Version of the environment's Python."
)
@click.option(
    "--nfs",
    "shares",
    multiple=True,
    metavar="SERVER:/SHARE=/FOLDER",
    help="NFS share to check, and to mount if it is not mounted; may be repeated.",
)
def setup_command(
    where: Where,
    code: Path,
    framework: str,
    requirements: Path | None,
    python_version: str,
    shares: tuple[str, ...],
) -> Done:
    """Copy code to all workers, create an environment for it, check mounts, and open /tmp/tpu_logs to all users.

    Code goes into a folder that is named by its digest, so that a running program keeps the code with which it began.
    Run setup again after every change: of the steps that are done only the copying is repeated; changed code gets a
    new environment. The frameworks need different versions of libtpu or of torch, so an environment has only one of
    them.
    """
    parsed, archive = [parse_share(share) for share in shares], pack(code)
    fleet = where.fleet()
    prepare(fleet, note)
    for share in parsed:
        answers = fleet.call("mount", share.source, share.target)
        require_all(answers, f"mount {share.source}")
        repaired = [answer.worker for answer in answers if answer.reply["mount"] != "fine"]
        if repaired:
            note(f"{share.target}: mounted on worker {', '.join(map(str, repaired))}")
    remote = f".dataprep-{archive.name}.tar.gz"
    if where.dry_run:
        fleet.gcloud.show(f"# an archive of {archive.files:,} files, which setup makes and removes:")
        fleet.copy(f"{archive.name}.tar.gz", remote)
    else:
        _copy_archive(fleet, archive, remote)
    require_all(fleet.call("unpack", remote, archive.name, archive.sha256), "stage code")
    pins = requirements or Path(str(resources.files("dataprep").joinpath("data", f"tpu-{framework}.txt")))
    remote = f".dataprep-{hashlib.sha256(pins.read_bytes()).hexdigest()[:12]}.txt"
    fleet.copy(str(pins), remote)
    answers = fleet.call("environment", remote, f"--python={python_version}", timeout_s=ENVIRONMENT_TIMEOUT_S)
    require_all(answers, "make the environment")
    if not where.dry_run:
        where.say(
            f"{archive.files:,} files in ~/.dataprep/code/{archive.name} on {len(answers)} workers, with {pins.stem}"
        )
    code_facts = {"code": f"~/.dataprep/code/{archive.name}", "sha256": archive.sha256, "files": archive.files}
    return Done(facts={**code_facts, "workers": len(answers), "requirements": pins.stem})


@click.command(
    "copy", cls=StrictCommand, epilog=examples("tpu copy my-tpu --zone us-central2-b checkpoint.pth checkpoint.pth")
)
@on_workers
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("destination")
def copy_command(where: Where, source: Path, destination: str) -> Done:
    """Copy a file or a folder to all workers; a relative DESTINATION is below the home folder."""
    fleet = where.fleet()
    fleet.copy(str(source), destination, recurse=source.is_dir())
    return Done(facts={"source": str(source), "destination": destination, "workers": len(fleet.target.instances)})


@click.command(
    "profile", cls=StrictCommand, epilog=examples("tpu profile my-tpu --zone us-central2-b logs/run-1 traces")
)
@on_workers
@click.argument("log_folder", metavar="LOG_FOLDER")
@click.argument("destination", type=click.Path(file_okay=False, path_type=Path))
def profile_command(where: Where, log_folder: str, destination: Path) -> Done:
    """Collect the traces of all workers below LOG_FOLDER in DESTINATION, in the layout that TensorBoard reads.

    Traces of several hosts that began within two minutes become one run. To see them:
    tensorboard --logdir DESTINATION, or xprof --logdir DESTINATION.
    """
    if "://" in log_folder:
        raise UsageError(f"{log_folder}: traces in a bucket are in one place already; give it to xprof --logdir")
    fleet = where.fleet()
    answers = fleet.call("traces", log_folder)
    require_all(answers, "list traces")
    sizes = {(answer.worker, path): size for answer in answers for path, size in answer.reply["files"].items()}
    folders = {answer.worker: answer.reply["folder"] for answer in answers}
    if where.dry_run:
        fleet.gcloud.run(fetch_command(fleet.target, 0, f"{log_folder}/plugins/profile", "FOLDER"))
        return Done()
    if not sizes:
        raise UsageError(f"{log_folder}: no traces on any worker; train with --profile_steps A:B")
    placed = arrange(sizes)
    with tempfile.TemporaryDirectory(dir=destination.parent) as scratch:
        fetched = _fetch(fleet, folders, sizes, Path(scratch))
        for trace, target in placed.items():
            (destination / target).parent.mkdir(parents=True, exist_ok=True)
            fetched[trace].rename(destination / target)
    runs = sorted({PurePosixPath(target).parent.name for target in placed.values()})
    workers = len({worker for worker, _ in placed})
    where.say(f"{len(placed)} traces of {workers} workers in {destination}: {', '.join(runs)}")
    return Done(facts={"destination": str(destination), "traces": len(placed), "workers": workers, "runs": runs})


def _copy_archive(fleet: Fleet, archive: Archive, remote: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        packed = Path(scratch) / f"{archive.name}.tar.gz"
        packed.touch(mode=0o600)  # scp gives the copy the same mode
        packed.write_bytes(archive.data)
        fleet.copy(str(packed), remote)


def _fetch(fleet: Fleet, folders: dict[int, str], sizes: dict[Trace, int], scratch: Path) -> dict[Trace, Path]:
    """Fetch only the folders of traces, because checkpoints may be beside them, each into a folder named here."""
    sources = sorted({(worker, str(PurePosixPath(path).parent)) for worker, path in sizes})
    local = {source: scratch / str(number) for number, source in enumerate(sources)}
    for (worker, folder), target in local.items():
        fleet.gcloud.require(fetch_command(fleet.target, worker, f"{folders[worker]}/{folder}", str(target)))
    fetched = {}
    for (worker, path), size in sizes.items():
        file = fetched[worker, path] = local[worker, str(PurePosixPath(path).parent)] / PurePosixPath(path).name
        got = file.stat().st_size if file.is_file() and not file.is_symlink() else 0
        if got != size:
            raise StorageError(
                f"worker {worker}: {path} has {got:,} bytes here, {size:,} on the worker; run the same command again"
            )
    return fetched
