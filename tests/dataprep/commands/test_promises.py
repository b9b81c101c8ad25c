"""What the documents promise of every command: --json is one object on stdout, and --dry-run writes nothing."""

import json
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from dataprep.cli import group
from dataprep.demo.make import demo_server, write_demo_laion
from tests.support.builds import dataprep, succeeds
from tests.support.fake_gcloud import fake_gcloud
from tests.support.tables import hub

WEB = ("--contact", "mailto:tests@example.org", "--allow-network", "127.0.0.0/8", "--workers", "1",
       "--read-seconds", "100", "--answer-seconds", "200", "--retries", "0")  # fmt: skip
PARTIAL = ("--allow-partial", "--max-reject-ratio", "1", "--format", "webdataset", "--num-shards", "1",
           "--workers", "1")  # fmt: skip
ZONE = ("--zone", "us-central2-b")
CASES: dict[str, tuple[str, ...]] = {
    "adopt": ("{folder}", "--index", "{world}/adopted", "--workers", "1"),
    "bench": ("{dataset}", "--batches", "1", "--rounds", "1", "--batch-size", "4",
              "--image-size", "32", "--workers", "1"),
    "build coco": ("--source", "{coco}", "--output", "{world}/annotated", "--annotations", "none", *PARTIAL),
    "build coco-dup5": ("--source", "{coco}", "--output", "{world}/coco-built", *PARTIAL),
    "build folder": ("--source", "{pets}", "--output", "{world}/folder-built", "--format", "webdataset",
                     "--name", "pets", "--workers", "1"),
    "build imagenet": ("--source", "{imagenet}", "--output", "{world}/imagenet-built", "--split", "val",
                       *PARTIAL),
    "build imagenet-21k": ("--source", "{folder}", "--output", "{world}/21k-built", *PARTIAL),
    "build imagenet-fake": ("--images", "30", "--output", "{world}/fake-built", "--split", "val", *PARTIAL),
    "build laion": ("--source", "{laion}/laion.parquet", "--output", "{world}/laion-built", "--format", "webdataset",
                    *WEB),
    "build table": ("--source", "{table}", "--output", "{world}/table-built", "--format", "webdataset",
                    "--name", "dogs", "--workers", "1"),
    "card": ("{fetched}", "--overwrite"),
    "check-region": ("gs://promised", "--zone", "us-central1-a"),
    "convert": ("{dataset}", "--output", "{world}/converted", "--format", "tfrecord", "--workers", "1"),
    "create-bucket": ("gs://promised-new", "--near", "us-central2-b"),
    "demo-data": ("coco", "{world}/demo", "--images", "20"),
    "diagnose": ("{dataset}", "--device", "simulated:1000", "--batch-size", "4", "--image-size", "32",
                 "--seconds", "0.3"),
    "inspect": ("{dataset}",),
    "map": ("{fetched}", "--column", "name=tests.support.mapped:keys", "--workers", "1"),
    "plan-input": ("--accelerator", "v4-32", "--images-per-s", "1000", "--image-size", "224"),
    "recheck": ("{fetched}", "--output", "{world}/check", *WEB),
    "remove": ("{fetched}", "--keys", "{code}/pins.txt", "--dry-run", "--allow-missing"),
    "replicate": ("{dataset}", "--to", "{world}/copied", "--workers", "1", "--region-policy", "warn"),
    "retry-failed": ("{fetched}", *WEB),
    "select": ("{fetched}", "--name", "half", "--sample", "0.5"),
    "tpu plan": ("v4-32",),
    "tpu create": ("new-tpu", *ZONE, "--type", "v4-8"),
    "tpu setup": ("my-tpu", *ZONE, "--code", "{code}", "--requirements", "{code}/pins.txt", "--python", "{python}"),
    "tpu run": ("my-tpu", *ZONE, "--run", "r", "--poll-s", "0.2", "--", "echo", "hello"),
    "tpu status": ("my-tpu", *ZONE),
    "tpu kill": ("my-tpu", *ZONE, "--grace-s", "0"),
    "tpu exec": ("my-tpu", *ZONE, "--", "echo", "hello"),
    "tpu copy": ("my-tpu", *ZONE, "{code}/pins.txt", "pins.txt"),
    "tpu profile": ("my-tpu", *ZONE, "logs", "{world}/traces"),
    "tpu ssh": ("my-tpu", *ZONE, "-L", "6006"),
    "tpu manifest": ("mae", "--type", "v6e-16", "--image", "image", "--", "dataprep-pretrain-mae"),
    "tpu delete": ("my-tpu", *ZONE, "--yes"),
    "verify": ("{dataset}", "--workers", "1"),
    "watch": ("{dataset}",),
}  # fmt: skip
"""Every command, and arguments on small real data with which it ends well."""
READ_ONLY = {"bench", "check-region", "diagnose", "inspect", "plan-input", "tpu manifest", "verify", "watch"}
"""Change nothing but a page or a folder that is asked for."""
SHOWN_ELSEWHERE = {
    "adopt", "bench", "build coco", "build coco-dup5", "build folder", "build imagenet-fake", "build laion",
    "build table", "card", "check-region", "convert", "create-bucket", "demo-data", "diagnose", "inspect", "plan-input",
    "recheck", "replicate", "select", "tpu setup", "verify", "watch",
}  # fmt: skip
"""Commands whose JSON their own tests read; setup installs packages."""
IN_PROCESSES = {
    "adopt", "bench", "convert", "diagnose", "map", "recheck", "retry-failed", "replicate",
    *(name for name in CASES if "build" in name),
}  # fmt: skip
"""Start processes, which must not be children of the tests' own."""


def leaves(parent: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, by its words; the programs that `train` starts have flags of their own."""
    context = click.Context(parent)
    for name in parent.list_commands(context):
        if name == "train":
            continue
        command = parent.get_command(context, name)
        assert command is not None
        words = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from leaves(command, words)
        else:
            yield words, command


COMMANDS = dict(leaves(group))


@pytest.fixture(scope="module")
def stored(finished, tmp_path_factory):
    """Datasets that the commands read."""
    folder = tmp_path_factory.mktemp("promises")
    with demo_server(folder / "laion", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        write_demo_laion(folder / "laion", f"http://127.0.0.1:{server.server_port}", 30, 0, lambda *_: None)
        succeeds("build", "laion", "--source", folder / "laion/laion.parquet", "--output", folder / "fetched",
                       "--format", "webdataset", *WEB)  # fmt: skip
        laion = {name: folder / name for name in ("laion", "fetched")}
        table = hub(folder / "table")
        plain = finished("imagenet-imagefolder")
        yield {"dataset": finished("imagenet-webdataset"), "folder": plain, "table": table, **laion}
        server.shutdown()


@pytest.fixture
def places(stored, originals, tmp_path, tmp_path_factory, monkeypatch, gcs):
    """A world of its own for a command: home, temporary and working folder, code, a TPU."""
    world = tmp_path_factory.mktemp("w") / "o"  # short: a socket's path in TMPDIR has at most 107 bytes
    for name in ("home", "tmp", "cwd", "code"):
        (world / name).mkdir(parents=True)
    (world / "code/pins.txt").write_text("")
    (world / "code/train.py").write_text("print('hello')\n")
    monkeypatch.chdir(world / "cwd")
    monkeypatch.setenv("HOME", str(world / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("TMPDIR", str(world / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with fake_gcloud(tmp_path / "cloud", monkeypatch) as cloud:
        cloud.add_tpu("my-tpu", workers=1, acceleratorType="v4-8")
        trace = cloud.home() / "logs/plugins/profile/2026_11_21_12_30_00/host.xplane.pb"
        trace.parent.mkdir(parents=True)
        trace.write_bytes(b"trace")
        yield {**stored, **originals, "world": world, "code": world / "code", "python": "3.11"}


def run(name: str, places: dict[str, Path], *options: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    words = [*name.split(), *options, *(word.format(**places) for word in CASES[name])]
    if name in IN_PROCESSES:
        ran = dataprep(*words)
        return ran.returncode, ran.stdout, ran.stderr
    result: Result = CliRunner().invoke(group, words)
    return result.exit_code, result.stdout, f"{result.stderr}\n{result.exception!r}"


def test_every_command_has_an_example_in_this_test():
    assert set(CASES) == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_json_and_every_writing_command_a_dry_run(name):
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert "--json" in options
    assert "--dry-run" in options or name in READ_ONLY


@pytest.mark.parametrize("name", sorted(set(CASES) - SHOWN_ELSEWHERE))
def test_json_is_one_object_and_all_of_stdout(name, places):
    code, out, said = run(name, places, "--json")
    assert code == 0, said
    assert isinstance(json.loads(out), dict)


def entries(folder: Path) -> dict[str, object]:
    """Every file and folder below, with the time of its last change; a folder's time tells of files that came and
    went."""
    found: dict[str, object] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        known = path.lstat()
        found[str(path)] = (known.st_ino, known.st_mode, known.st_size, known.st_mtime_ns)
    return found


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - READ_ONLY))
@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
def test_a_dry_run_writes_nothing_anywhere(name, as_json, places, gcs):
    folders = {places["world"].parent, *(Path(place) for place in places.values())} - {Path("3.11")}
    before = {folder: entries(folder) for folder in folders}
    buckets = gcs.stats()
    code, out, said = run(name, places, "--dry-run", *(["--json"] if as_json else []))
    assert code == 0, said
    assert out.strip()
    assert not as_json or isinstance(json.loads(out), dict)
    assert {folder: entries(folder) for folder in folders} == before
    assert gcs.stats().get("bytes_received") == buckets.get("bytes_received")
