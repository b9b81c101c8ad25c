"""`dataprep tpu setup`, `copy` and `profile`: files to the workers, and traces from them."""

from __future__ import annotations

import hashlib
import tempfile
from importlib import resources
from pathlib import Path, PurePosixPath

import click

from dataprep.commands.tpu_options import Where, note, on_tpu
from dataprep.errors import StorageError, UsageError
from dataprep.tpu.fleet import Fleet, require_all
from dataprep.tpu.gcloud import fetch_command
from dataprep.tpu.jobs import FRAMEWORKS, prepare
from dataprep.tpu.profiles import Trace, arrange
from dataprep.tpu.staging import pack
from dataprep.tpu.startup import parse_share

ENVIRONMENT_TIMEOUT_S = 3600.0


@click.command("setup")
@on_tpu
@click.option(
    "--code",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Folder of code for all workers.",
)
@click.option("--framework", type=click.Choice(list(FRAMEWORKS)), default="torch", show_default=True)
@click.option(
    "--requirements",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Pinned packages, instead of those for the framework.",
)
@click.option("--python", "python_version", default="3.11", show_default=True, help="Of the environment.")
@click.option("--nfs", "shares", multiple=True, metavar="SERVER:/SHARE=/FOLDER", help="Check, or mount; several times.")
def setup_command(
    where: Where,
    code: Path,
    framework: str,
    requirements: Path | None,
    python_version: str,
    shares: tuple[str, ...],
) -> None:
    """Stage code on all workers, make its environment there, check mounts, open /tmp/tpu_logs.

    Code goes into a folder that is named by its digest: a run that goes on keeps its own. Run it again after any
    change; what is done already costs seconds. torch and jax need different versions of libtpu, so an environment has
    one of them.
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
    with tempfile.TemporaryDirectory() as scratch:
        packed = Path(scratch) / f"{archive.name}.tar.gz"
        packed.write_bytes(archive.data)
        remote = f".dataprep-{packed.name}"
        fleet.gcloud.show(f"# an archive of {archive.files:,} files, which setup makes and removes:")
        fleet.copy(str(packed), remote)
    require_all(fleet.call("unpack", remote, archive.name, archive.sha256), "stage code")
    pins = requirements or Path(str(resources.files("dataprep").joinpath("data", f"tpu-{framework}.txt")))
    remote = f".dataprep-{hashlib.sha256(pins.read_bytes()).hexdigest()[:12]}.txt"
    fleet.copy(str(pins), remote)
    answers = fleet.call("environment", remote, f"--python={python_version}", timeout_s=ENVIRONMENT_TIMEOUT_S)
    require_all(answers, "make the environment")
    if not where.dry_run:
        click.echo(
            f"{archive.files:,} files in ~/.dataprep/code/{archive.name} on {len(answers)} workers, with {pins.stem}"
        )


@click.command("copy")
@on_tpu
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("destination")
def copy_command(where: Where, source: Path, destination: str) -> None:
    """Copy a file or a folder to all workers; a relative DESTINATION is below the home folder."""
    where.fleet().copy(str(source), destination, recurse=source.is_dir())


@click.command("profile")
@on_tpu
@click.argument("log_folder", metavar="LOG_FOLDER")
@click.argument("destination", type=click.Path(file_okay=False, path_type=Path))
def profile_command(where: Where, log_folder: str, destination: Path) -> None:
    """Collect the traces of all workers below LOG_FOLDER as TensorBoard wants them, in DESTINATION.

    Folders of the hosts that begin within two minutes become one run with all hosts. Then:
    tensorboard --logdir DESTINATION, or xprof --logdir DESTINATION.
    """
    if "://" in log_folder:
        raise UsageError(f"{log_folder}: traces in a bucket are in one place already; give it to xprof --logdir")
    fleet = where.fleet()
    answers = fleet.call("traces", log_folder)
    require_all(answers, "list traces")
    sizes: dict[Trace, int] = {}
    folders = {answer.worker: answer.reply["folder"] for answer in answers}
    for answer in answers:
        sizes |= {(answer.worker, path): size for path, size in answer.reply["files"].items()}
    if where.dry_run:
        fleet.gcloud.run(fetch_command(fleet.target, 0, f"{log_folder}/plugins/profile", "FOLDER"))
        return
    if not sizes:
        raise UsageError(f"{log_folder}: no traces on any worker; train with --profile_steps A:B")
    placed = arrange(sizes)
    with tempfile.TemporaryDirectory(dir=destination.parent) as scratch:
        _fetch(fleet, folders, sizes, Path(scratch))
        for (worker, path), target in placed.items():
            (destination / target).parent.mkdir(parents=True, exist_ok=True)
            (Path(scratch) / str(worker) / path).rename(destination / target)
    runs = sorted({PurePosixPath(target).parent.name for target in placed.values()})
    click.echo(
        f"{len(placed)} traces of {len({worker for worker, _ in placed})} workers in {destination}: {', '.join(runs)}"
    )


def _fetch(fleet: Fleet, folders: dict[int, str], sizes: dict[Trace, int], scratch: Path) -> None:
    """Each folder of traces alone: checkpoints may lie beside them."""
    for worker, folder in sorted({(worker, str(PurePosixPath(path).parent)) for worker, path in sizes}):
        local = scratch / str(worker) / folder
        local.parent.mkdir(parents=True, exist_ok=True)
        fleet.gcloud.require(fetch_command(fleet.target, worker, f"{folders[worker]}/{folder}", str(local)))
    for (worker, path), size in sizes.items():
        fetched = scratch / str(worker) / path
        got = fetched.stat().st_size if fetched.exists() else 0
        if got != size:
            raise StorageError(
                f"worker {worker}: {path} has {got:,} bytes here, {size:,} there; run the same command again"
            )
