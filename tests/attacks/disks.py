"""Attacks by disks and on what lies on them: failing and full devices, links of strangers, receipts that lead away."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import subprocess
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.dataset.index import index_schema
from dataprep.dataset.replicas import record_replicas
from dataprep.demo.make import write_demo
from dataprep.errors import DataprepError
from dataprep.storage import open_storage
from tests.attacks import Attack
from tests.support.adoption import adopt_here
from tests.support.builds import build_arguments, command, dataprep, digests, is_finished
from tests.support.picture_web import laion_arguments, picture_web
from tests.support.refusals import refuse
from train.checkpoints.checkpoint import CheckpointFolder
from train.checkpoints.files import ARRAYS, NUMPY

DIGITS = "0123456789abcdef" * 2

# Reports the error to whoever syncs first, and has the device recover before anybody else does.
RECOVERING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    int result = real(fd), code = errno;
    if (result) { unsetenv("LD_PRELOAD"); if (system(getenv("RECOVER"))) {} errno = code; }
    return result;
}
"""


def _run(arguments: list[object], *prefix: object, **options: object) -> subprocess.CompletedProcess[str]:
    words = [*map(str, prefix), *command(*arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=600, check=False, **options)


def _syncs_fail(folder: Path) -> str:
    write_demo("coco", folder / "coco", images=110, odd=False)
    arguments = build_arguments("coco-dup5", folder / "coco", folder / "out", "webdataset", "--num-shards", 1)
    run = _run([*arguments, "--workers", 1], preexec_fn=partial(refuse, {"fdatasync": errno.EIO}))
    assert run.returncode != 0, "a failed sync of a shard was told to nobody"
    assert "input/output error; check the disk" in run.stderr, run.stderr[-500:]
    assert not is_finished(folder / "out")
    return run.stderr.strip().splitlines()[-1]


def _device_fails_for_a_moment(folder: Path) -> str:
    if os.getuid():
        return "not run: mounting takes root"
    write_demo("coco", folder / "coco", images=300, odd=False)
    (folder / "shim.c").write_text(RECOVERING)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c", "-ldl"], check=True)
    ends = []
    for num_mib in (12, 17, 22):
        with _loop_device(folder, num_mib) as (backing, mounted):
            grow = f"mount -o remount,size=300m {backing}"
            arguments = build_arguments("coco-dup5", folder / "coco", mounted / "out", "webdataset", "--num-shards", 2)
            environment = {**os.environ, "LD_PRELOAD": str(folder / "shim.so"), "RECOVER": grow}
            run = _run([*arguments, "--workers", 1], env=environment)
            finished = is_finished(mounted / "out")
            assert (run.returncode == 0) == finished, run.stderr[-500:]
            if finished:
                os.sync()
                Path("/proc/sys/vm/drop_caches").write_text("3")
                check = dataprep("verify", mounted / "out")
                assert check.returncode == 0, f"{num_mib} MiB: a damaged shard was published: {check.stdout[-500:]}"
            ends.append(f"{num_mib} MiB: exit {run.returncode}")
    return ", ".join(ends)


@contextmanager
def _loop_device(folder: Path, num_mib: int) -> Iterator[tuple[Path, Path]]:
    """A file system on a device whose own storage is soon full: ext4 over a file in a small tmpfs."""
    backing, mounted = folder / "backing", folder / "mounted"
    for each in (backing, mounted):
        each.mkdir(exist_ok=True)
    image, made = backing / "image", []
    try:
        for point, words in (
            (backing, ["mount", "-t", "tmpfs", "-o", f"size={num_mib}m", "tmpfs", backing]),
            (None, ["truncate", "-s", "400M", image]),
            (None, ["mkfs.ext4", "-q", "-E", "lazy_itable_init=1,nodiscard", "-O", "^has_journal", image]),
            (mounted, ["mount", "-o", "loop,errors=continue", image, mounted]),
        ):
            subprocess.run(words, check=True, capture_output=True)
            made += [point] if point else []
        yield backing, mounted
    finally:
        for point in reversed(made):
            subprocess.run(["umount", point], check=False, capture_output=True)


def _links_of_a_stranger(folder: Path) -> str:
    """Archives whose `_build` or `_build/tmp` leads to the user's files, which have the names of spool files."""
    write_demo("coco", folder / "coco", images=8, odd=False)
    home = folder / "home"
    (home / "tmp").mkdir(parents=True)
    for place in (home, home / "tmp"):
        (place / f"thesis-{DIGITS}").write_text("years of work")
    kept = digests(home)
    uses: dict[str, Callable[[Path], object]] = {
        "build": lambda root: _succeed(build_arguments("coco-dup5", folder / "coco", root, "webdataset")),
        "adopt": lambda root: adopt_here(root, splits=(("train", "train"),)),
        "checkpoint": lambda root: CheckpointFolder(str(root), codec=NUMPY).save(1, {ARRAYS: {}}),
        "replicas": lambda root: record_replicas(open_storage(str(root)), []),
    }
    for link, target in (("_build", home), ("_build/tmp", home), ("_build/tmp", Path("../../home/tmp"))):
        for name, use in uses.items():
            root = folder / f"{name}-{link.replace('/', '-')}-{target.name}"
            _unpack(folder / "stranger.tar", root, link, target, name)
            with pytest.raises(DataprepError, match="pass the folder it points to instead"):
                use(root)
            assert digests(home) == kept, f"{name} changed what {link} leads to"
    return f"{len(kept)} files of the user as they were"


def _succeed(arguments: list[object]) -> None:
    run = dataprep(*arguments)
    if run.returncode:
        raise DataprepError(run.stderr)


def _unpack(archive: Path, root: Path, link: str, target: Path, use: str) -> None:
    with tarfile.open(archive, "w") as tar:
        member = tarfile.TarInfo(link)
        member.type, member.linkname = tarfile.SYMTYPE, str(target)
        tar.addfile(member)
    with tarfile.open(archive) as tar:
        tar.extractall(root, filter="fully_trusted")
    if use == "adopt":
        (root / "train/a").mkdir(parents=True)
        picture = next((root.parent / "coco").rglob("*.zip"))
        (root / "train/a/x.jpg").write_bytes(picture.read_bytes()[:1000])


def _receipt_that_leads_away(folder: Path) -> str:
    """A dataset of fetched images with a retry begun, whose receipt says that its shard waits in the user's home."""
    with picture_web() as web:
        table = web.write_table(folder / "table.parquet", 3)
        build = dataprep(*laion_arguments(table, folder / "out", "webdataset"))
        assert build.returncode == 0, build.stderr[-500:]
    private = folder / "home/.ssh/id_ed25519"
    private.parent.mkdir(parents=True)
    private.write_text("PRIVATE KEY\n")
    manifest = (folder / "out/dataset.json").read_bytes()
    before = digests(folder / "out")
    document = json.loads(manifest)
    shards = len(document["splits"][0]["shards"])
    root = folder / f"out/_change/{DIGITS}"
    (root / "receipts").mkdir(parents=True)
    plan = {
        "id": DIGITS,
        "kind": "retry-failed",
        "revision": document["revision"],
        "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
        "choice": {"reasons": [], "everything": False},
        "making": {},
        "shard_rows": [1],
        "first_shard": shards,
        "first_number": shards,
        "codecs": {},
    }
    (root.parent / "plan.json").write_text(json.dumps(plan))
    rows = pa.table({"shard": pa.array([0], pa.int32()), "row": pa.array([0], pa.int32())})
    pq.write_table(rows, root / "rows.parquet")
    fetched = {
        "attempt": "../home/.ssh",
        "files": [],
        "statuses": {},
        "reasons": {},
        "allow_networks": [],
        "consents": [],
    }
    receipt = {"index": 0, "split": "train", "split_index": shards, "samples": 1, "num_bytes": 12, "events": []}
    receipt |= {"sha256": "0" * 64, "crc32c": "AAAAAA==", "file": "id_ed25519"}
    receipt["fetched"] = fetched | {"before": {"statuses": {}, "reasons": {}}}
    table = pa.Table.from_pylist([], schema=index_schema())
    metadata = {b"receipt": json.dumps(receipt).encode(), b"of": str(root.relative_to(folder / "out")).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), root / "receipts/00000.parquet")
    run = dataprep("retry-failed", folder / "out", "--contact", "mailto:tests@example.org")
    assert private.exists() and not (folder / "out/id_ed25519").exists(), "a private file was moved into the dataset"
    assert "Traceback" not in run.stderr and run.returncode != 0, run.stderr[-800:]
    after = digests(folder / "out")
    assert before == {name: digest for name, digest in after.items() if not name.startswith("_change/")}
    return run.stderr.strip().splitlines()[-1]


def _no_hard_links(folder: Path) -> str:
    write_demo("coco", folder / "coco", images=12, odd=False)
    found = []
    for name, refusals in (("usual", {}), ("without", {"link": errno.EPERM, "linkat": errno.EPERM})):
        arguments = build_arguments("coco-dup5", folder / "coco", folder / name, "tfrecord", "--num-shards", 2)
        run = _run([*arguments, "--workers", 2], preexec_fn=partial(refuse, refusals))
        assert run.returncode == 0, run.stderr[-500:]
        found.append(digests(folder / name))
    assert found[0] == found[1]
    return f"{len(found[0])} files, the same bytes"


# Power loss: what is not synced, or is named in a folder that is not, may be gone


def _power_loss(folder: Path, fmt: str, more: tuple[object, ...]) -> str:
    write_demo("coco", folder / "coco", images=24, odd=False)
    arguments = build_arguments("coco-dup5", folder / "coco", folder / "new/out", fmt, "--num-shards", 2, *more)
    calls = "fsync,link,linkat,rename,renameat,renameat2,mkdir,mkdirat,symlink,symlinkat"
    try:
        run = _run(arguments, "strace", "-f", "-y", "-qq", "-s", 4096, "-e", f"trace={calls}", "-o", folder / "trace")
    except FileNotFoundError:
        return "not run: no strace here"
    assert run.returncode == 0, run.stderr[-500:]
    lost = _not_durable(folder / "trace", folder / "new")
    assert not lost, f"a power loss may take {lost[:5]}"
    return f"{len(digests(folder / 'new/out'))} files durable"


def _not_durable(trace: Path, root: Path) -> list[str]:
    """What exists below a folder in the end, and was not synced, or not in the folder that names it."""
    files: set[Path] = set()
    unnamed: dict[Path, set[Path]] = defaultdict(set)
    lost = []
    for call, paths in _calls(trace):
        if call == "fsync":
            files.add(paths[0])
            unnamed.pop(paths[0], None)
            continue
        new = paths[-1]
        if not new.is_relative_to(root):
            continue
        if call in ("link", "linkat") or (call.startswith("rename") and new.is_file()):
            if paths[0] not in files:
                lost.append(f"the bytes of {new}")
        elif call.startswith("rename"):
            for key in [key for key in unnamed if key.is_relative_to(paths[0])]:
                moved = new / key.relative_to(paths[0])
                unnamed[moved] |= {moved / path.name for path in unnamed.pop(key)}
        unnamed[new.parent].add(new)
    return lost + [str(path) for paths in unnamed.values() for path in paths if os.path.lexists(path)]


def _calls(trace: Path) -> Iterator[tuple[str, list[Path]]]:
    """Successful calls with the paths that they name."""
    begun: dict[str, str] = {}
    for line in trace.read_text().splitlines():
        process, _, text = line.partition(" ")
        text = text.strip()
        if text.endswith("<unfinished ...>"):
            begun[process] = text.removesuffix("<unfinished ...>").rstrip()
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", text):
            text = begun.pop(process, "") + resumed[1]
        call = re.match(r"(\w+)\((.*)\)\s+= 0", text)
        if call is None:
            continue
        name, said = call[1], call[2]
        if name == "fsync":
            yield name, [Path(said.partition("<")[2].rpartition(">")[0])]
            continue
        pairs = re.findall(r'(?:(?:\d+|AT_FDCWD)<([^>]*)>, )?"([^"]*)"', said)
        yield name, [Path(folder, path) for folder, path in pairs]


ATTACKS = [
    Attack("every background sync fails", _syncs_fail),
    Attack("a device that fails for a moment", _device_fails_for_a_moment),
    Attack("links in a stranger's archive", _links_of_a_stranger, sampled=True),
    Attack("a receipt that leads out of the dataset", _receipt_that_leads_away),
    Attack("a file system without hard links", _no_hard_links),
    Attack("power loss, shards", partial(_power_loss, fmt="webdataset", more=())),
    Attack(
        "power loss, links of an image folder", partial(_power_loss, fmt="imagefolder", more=("--repeat", "physical"))
    ),
]
