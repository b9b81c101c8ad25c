"""Make a release: sdist, wheels, bill of materials and checksums, checked, the same bytes whenever it is made.

    make release                                        for x86_64 and aarch64, on Python 3.11, 3.12 and 3.13
    make release ARCHS=x86_64 PYTHONS="3.12 3.13"       less of it

Everything is made twice in different folders from the last commit, with the commit's time as the time of every file,
and compared. What is in build/release/dist was then installed in empty environments. `scripts/wheel.py` says which
tools that needs; nothing is uploaded.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

from dataprep import __version__
from dataprep.errors import DISTRIBUTION
from scripts import sbom, wheel
from scripts.wheel import ROOT, digest_of, run, tool

WORK = ROOT / "build" / "release"
DIST = WORK / "dist"
NAME = f"tpu_dataprep-{__version__}"
PACKAGES = ("dataprep", "loaders", "pipelines", "train")
SDIST_NEEDS = (
    "PKG-INFO", "setup.py", "setup.cfg", "pyproject.toml", "constraints.txt", "LICENSE", "README.md",
    "loaders/decode/_jpeg.c", "loaders/decode/_jpeg_huffman.h", "dataprep/formats/_jpeg_codes.h",
    "dataprep/formats/_check.c", "dataprep/formats/_restart.c",
    "LICENSE.libjpeg-turbo.LICENSE.md", "LICENSE.libjpeg-turbo.README.ijg",
)  # fmt: skip
"""Files without which an sdist could not be built, or might not be passed on."""
WHEEL_NEEDS = (
    "loaders/decode/_jpeg.abi3.so", "dataprep/formats/_check.abi3.so", "dataprep/formats/_restart.abi3.so",
    "dataprep/py.typed", "loaders/py.typed",
    f"{NAME}.dist-info/entry_points.txt", f"{NAME}.dist-info/licenses/LICENSE",
    f"{NAME}.dist-info/licenses/LICENSE.libjpeg-turbo.LICENSE.md",
    f"{NAME}.dist-info/licenses/LICENSE.libjpeg-turbo.README.ijg",
)  # fmt: skip


def main() -> None:
    """Make and check the release; the exit status is 0 only if everything was done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--archs", default="x86_64 aarch64", help="processors for which wheels are built")
    parser.add_argument("--pythons", default=wheel.PYTHONS, help="versions or paths of interpreters that run it")
    options = parser.parse_args()
    archs, pythons = options.archs.split(), wheel.interpreters(options.pythons)
    for arch in archs:
        wheel.check_tools(arch)
    epoch_s = commit_time()
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch_s)  # for setuptools and auditwheel
    first, second = (make(WORK / name, archs, epoch_s) for name in ("first", "again"))
    compare(first, second)
    check(first, pythons)
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.copytree(first, DIST)
    print((DIST / "SHA256SUMS").read_text(), end="")
    print(f"{DIST.relative_to(ROOT)}: {len(archs)} wheels, the sdist and the bill of materials of {__version__}")


def commit_time() -> int:
    """Return the time of the last commit, of which the release is made; end the program if files differ from it."""
    if changed := git("status", "--porcelain").splitlines():
        raise SystemExit(f"make release: {len(changed)} files are not as in the last commit; commit or remove them")
    return int(git("log", "-1", "--format=%ct"))


def git(*words: str) -> str:
    """Return what git prints."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def make(work: Path, archs: list[str], epoch_s: int) -> Path:
    """Make everything below a folder, wheels from the unpacked sdist; return the folder with the results."""
    shutil.rmtree(work, ignore_errors=True)
    source = wheel.unpack_source()
    dist = work / "dist"
    dist.mkdir(parents=True)
    sdist = make_sdist(wheel.copy_tree(work / "tree", source), work, epoch_s)
    for arch in archs:
        print(f"{work.name}: building the wheel for {arch}", flush=True)
        with tarfile.open(sdist) as archive:
            archive.extractall(work / arch, filter="data")
        wheel.build_wheel(work / arch / NAME, work, wheel.build_libjpeg(source, work, arch), arch)
    (dist / f"{NAME}.cdx.json").write_text(sbom.bom_text(sbom.make_bom(epoch_s)))
    sums = [f"{digest_of(path)}  {path.name}\n" for path in sorted(dist.iterdir())]
    (dist / "SHA256SUMS").write_text("".join(sums))
    return dist


def make_sdist(tree: Path, work: Path, epoch_s: int) -> Path:
    """Build the sdist of a source tree; return it with equal times, owners and rights of all files."""
    wheel.package("sdist", tree, work / "sdist")
    (built,) = (work / "sdist").glob("*.tar.gz")
    return normalise(built, work / "dist" / f"{NAME}.tar.gz", epoch_s)


def normalise(sdist: Path, target: Path, epoch_s: int) -> Path:
    """Copy a .tar.gz with its files in order, and nothing in it of the machine and the time when it was made."""
    with (
        tarfile.open(sdist) as old,
        target.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=epoch_s) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted((each for each in old if each.isfile()), key=lambda each: each.name):
            plain = tarfile.TarInfo(member.name)
            plain.size, plain.mtime, plain.mode = member.size, epoch_s, 0o644
            new.addfile(plain, old.extractfile(member))
    return target


def compare(first: Path, second: Path) -> None:
    """End the program if two runs have made other files, or other bytes."""
    if (one := digests_of(first)) != (other := digests_of(second)):
        names = sorted(name for name in one | other if one.get(name) != other.get(name))
        raise SystemExit(
            f"make release: two runs made different bytes: {', '.join(names)}; compare {first} and {second}"
        )
    print(f"{len(one)} files made twice, with the same bytes", flush=True)


def digests_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def check(dist: Path, pythons: list[str]) -> None:
    """Look into every package, and install the sdist and the wheel for this machine in empty environments."""
    sdist, wheels = dist / f"{NAME}.tar.gz", sorted(dist.glob("*.whl"))
    run(tool("twine"), "check", "--strict", sdist, *wheels)
    refuse(faults_of_sdist(sdist))
    for path in wheels:
        refuse(faults_of_wheel(path))
        wheel.check_wheel(path)
    pictures = wheel.make_pictures(wheel.WORK / "pictures")
    for python in pythons:
        install_sdist(sdist, python)
        for path in wheels:
            if platform.machine() in path.name:
                wheel.run_wheel(path, python, pictures)


def refuse(faults: list[str]) -> None:
    """End the program if a package has faults."""
    if faults:
        raise SystemExit("\n".join(f"make release: {fault}" for fault in faults))


def faults_of_sdist(path: Path) -> list[str]:
    """Return what an sdist lacks, and what it should not contain."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = [f"{path.name} has no {name}" for name in SDIST_NEEDS if name not in names]
    return missing + foreign(path, {name for name in names if name.startswith(("tests/", "benchmarks/", "."))})


def faults_of_wheel(path: Path) -> list[str]:
    """Return what a wheel lacks, and what it should not contain."""
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        metadata = Parser().parsestr(archive.read(f"{NAME}.dist-info/METADATA").decode())
    missing = [f"{path.name} has no {name}" for name in WHEEL_NEEDS if name not in names]
    ours = re.compile(rf"({'|'.join(PACKAGES)})/|{re.escape(NAME)}\.dist-info/")
    faults = foreign(path, {name for name in names if not ours.match(name) or name.endswith((".c", ".h", ".pyc"))})
    if metadata["Version"] != __version__:
        faults.append(f"{path.name} is version {metadata['Version']}, expected {__version__}")
    return missing + faults


def foreign(path: Path, names: set[str]) -> list[str]:
    """Return one fault for each file that a package should not contain."""
    return [f"{path.name} contains {name}, which no user needs" for name in sorted(names)]


def install_sdist(sdist: Path, python: str) -> None:
    """Build and install the sdist in an empty environment as a user's installer does, and run it."""
    environment = WORK / f"sdist-{Path(python).name}"
    shutil.rmtree(environment, ignore_errors=True)
    run(tool("uv"), "venv", "--quiet", "--no-python-downloads", "--python", python, environment)
    words = ("--quiet", "--python", environment / "bin" / "python")
    run(tool("uv"), "pip", "install", *words, "--refresh-package", DISTRIBUTION, "-c", ROOT / "constraints.txt", sdist)
    program = "from loaders import open_decoder; print('  the sdist decodes with', open_decoder().name)"
    run(environment / "bin" / "dataprep", "--version")
    run(environment / "bin" / "python", "-P", "-c", program)


if __name__ == "__main__":
    main()
