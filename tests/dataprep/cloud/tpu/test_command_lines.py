"""Argument lists for every generation, checked by what the real gcloud takes."""

import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dataprep.cloud.accelerators import parse_accelerator
from dataprep.cloud.tpu.command_lines import (
    CreateTpu,
    Place,
    Share,
    Target,
    cache_command,
    check_zone,
    copy_commands,
    create_commands,
    delete_commands,
    describe_command,
    duration_s,
    fetch_command,
    instances_command,
    parse_share,
    queued_command,
    ssh_command,
    startup_script,
)
from dataprep.commands.create_bucket import account_commands
from dataprep.errors import UsageError
from tests.support.markdown import ROOT

REAL = shutil.which("gcloud")
LATER = {"--accelerator-topology-mode", "--request-valid-for-duration", "--target-size-policy-mode", "--version"}
PLACE = Place(name="my-tpu", zone="us-central2-b", project="p")

BY_TPU_API = [  # accelerator, what gcloud is told, workers
    ("v2-8", ["--accelerator-type=v2-8", "--version=tpu-ubuntu2204-base"], 1),
    ("v2-32", ["--accelerator-type=v2-32", "--version=tpu-ubuntu2204-base"], 4),
    ("v3-8", ["--accelerator-type=v3-8", "--version=tpu-ubuntu2204-base"], 1),
    ("v3-256", ["--accelerator-type=v3-256", "--version=tpu-ubuntu2204-base"], 32),
    ("v4-8", ["--accelerator-type=v4-8", "--version=tpu-ubuntu2204-base"], 1),
    ("v4-32", ["--accelerator-type=v4-32", "--version=tpu-ubuntu2204-base"], 4),
    ("v4:2x2x4", ["--type=v4", "--topology=2x2x4", "--version=tpu-ubuntu2204-base"], 4),
    ("v4:4x4x8", ["--type=v4", "--topology=4x4x8", "--version=tpu-ubuntu2204-base"], 32),
    ("v5litepod-1", ["--accelerator-type=v5litepod-1", "--version=v2-alpha-tpuv5-lite"], 1),
    ("v5litepod-8", ["--accelerator-type=v5litepod-8", "--version=v2-alpha-tpuv5-lite"], 1),
    ("v5litepod-64", ["--accelerator-type=v5litepod-64", "--version=v2-alpha-tpuv5-lite"], 16),
    ("v5e-16", ["--accelerator-type=v5litepod-16", "--version=v2-alpha-tpuv5-lite"], 4),
    ("v5p-8", ["--accelerator-type=v5p-8", "--version=v2-alpha-tpuv5"], 1),
    ("v5p-128", ["--accelerator-type=v5p-128", "--version=v2-alpha-tpuv5"], 16),
    ("v6e-1", ["--accelerator-type=v6e-1", "--version=v2-alpha-tpuv6e"], 1),
    ("v6e-8", ["--accelerator-type=v6e-8", "--version=v2-alpha-tpuv6e"], 1),
    ("v6e:4x4", ["--accelerator-type=v6e-16", "--version=v2-alpha-tpuv6e"], 4),
    ("v6e-256", ["--accelerator-type=v6e-256", "--version=v2-alpha-tpuv6e"], 64),
    ("ct6e-standard-8t", ["--accelerator-type=v6e-8", "--version=v2-alpha-tpuv6e"], 1),
]
BY_COMPUTE_ENGINE = [  # accelerator, machine type, image family, topology of a slice, machines
    ("v5p-8", "ct5p-hightpu-4t", "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", None, 1),
    ("v5p:2x2x4", "ct5p-hightpu-4t", "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", "2x2x4", 4),
    ("v6e-1", "ct6e-standard-1t", "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", None, 1),
    ("v6e-4", "ct6e-standard-4t", "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", None, 1),
    ("v6e-32", "ct6e-standard-4t", "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", "4x8", 8),
    ("v6e-256", "ct6e-standard-4t", "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", "16x16", 64),
    ("tpu7x-standard-1t", "tpu7x-standard-1t", "ubuntu-accel-2404-amd64-tpu-tpu7x", None, 1),
    ("tpu7x-8", "tpu7x-standard-4t", "ubuntu-accel-2404-amd64-tpu-tpu7x", None, 1),
    ("tpu7x-2x2x1", "tpu7x-standard-4t", "ubuntu-accel-2404-amd64-tpu-tpu7x", None, 1),
    ("tpu7x-2x2x4", "tpu7x-standard-4t", "ubuntu-accel-2404-amd64-tpu-tpu7x", "2x2x4", 4),
]


def request(accelerator: str, **options) -> CreateTpu:
    return CreateTpu(name=PLACE.name, zone=PLACE.zone, project=PLACE.project, type=accelerator, **options)


def run(cloud, commands: list[list[str]]) -> None:
    for argv in commands:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{argv}\n{done.stderr}"


@pytest.mark.parametrize(("accelerator", "told", "workers"), BY_TPU_API, ids=[row[0] for row in BY_TPU_API])
def test_the_tpu_api_creates_a_tpu_with_these_commands(cloud, accelerator, told, workers):
    (argv,) = create_commands(request(accelerator))
    assert argv[:6] == ["gcloud", "compute", "tpus", "tpu-vm", "create", "my-tpu"]
    assert set(told) <= set(argv)
    run(cloud, [argv])
    assert len(cloud.read("my-tpu", "tpu")["networkEndpoints"]) == workers


@pytest.mark.parametrize(("accelerator", "machine", "image", "topology", "machines"), BY_COMPUTE_ENGINE)
def test_compute_engine_creates_a_tpu_with_these_commands(cloud, accelerator, machine, image, topology, machines):
    commands = create_commands(request(accelerator, api=None if accelerator.startswith("tpu7x") else "compute-engine"))
    making = next(argv for argv in commands if any(word.startswith("--machine-type") for word in argv))
    assert {f"--machine-type={machine}", f"--image-family={image}", "--maintenance-policy=TERMINATE"} <= set(making)
    assert "--labels=dataprep-tpu=my-tpu" in making
    topologies = [word for argv in commands for word in argv if word.startswith("--accelerator-topology=")]
    assert topologies == ([f"--accelerator-topology={topology}"] if topology else [])
    run(cloud, commands)
    assert len(cloud.read("my-tpu", "machines")) == machines


def test_every_field_of_a_request_becomes_a_flag_of_gcloud(cloud):
    Path("start.sh").write_text("#!/bin/sh\n")
    common = {
        "service_account": "trainer@p.iam.gserviceaccount.com",
        "network": "n",
        "subnetwork": "s",
        "internal_ips": True,
        "label": {"team": "vision", "cost": "a1"},
        "spot": True,
    }
    (argv,) = create_commands(request("v4-32", queued=True, valid_until="6h", **common), Path("start.sh"))
    assert argv[3:6] == ["queued-resources", "create", "my-tpu"]
    assert {
        "--node-id=my-tpu",
        "--runtime-version=tpu-ubuntu2204-base",
        "--valid-until-duration=6h",
        "--spot",
        "--network=n",
        "--subnetwork=s",
        "--internal-ips",
        "--service-account=trainer@p.iam.gserviceaccount.com",
        "--labels=cost=a1,team=vision",
        "--metadata-from-file=startup-script=start.sh",
        "--project=p",
        "--zone=us-central2-b",
    } <= set(argv)
    run(cloud, [argv])
    (argv,) = create_commands(request("v6e-8", api="compute-engine", **common), Path("start.sh"))
    assert {"--provisioning-model=SPOT", "--no-address", "--subnet=s", "--threads-per-core=1"} <= set(argv)
    run(cloud, [argv])
    (argv,) = create_commands(request("tpu7x-2x2x1", reservation="r"))
    assert {"--provisioning-model=RESERVATION_BOUND", "--reservation-affinity=specific", "--reservation=r"} <= set(argv)


@pytest.mark.parametrize(
    ("accelerator", "options", "said"),
    [
        ("v4-8", {"api": "compute-engine"}, "`api` compute-engine does not create it; leave `api` out, or give tpu"),
        ("tpu7x-2x2x4", {"api": "tpu"}, "`api` tpu does not create it"),
        ("v5p-32", {"api": "compute-engine"}, "needs a topology; write e.g. v5p:2x2x4"),
        ("v5p:2x2x4", {}, "topologies only of v2, v3, v4; write v5p-32"),
        ("ct3p-hightpu-4t", {}, "takes no machine types"),
        ("v4-8", {"spot": True, "reserved": True}, "give one of them"),
        ("v4-8", {"valid_until": "6h"}, "add `queued`"),
        ("v4-8", {"reservation": "r"}, "for the TPU API give `reserved` and `runtime_version`"),
        ("v4-8", {"boot_disk_gb": 50}, "`boot_disk_gb` are for Compute Engine"),
        ("tpu7x-2x2x1", {"queued": True}, "for the TPU API"),
        ("v6e-8", {"max_run": "1d"}, "add `flex_start`"),
        ("v6e-8", {"flex_start": True, "spot": True}, "`flex_start` excludes `spot` and reservations"),
        ("v6e-8", {"flex_start": True, "max_run": "169h"}, "flex-start gives a TPU for 7d at most"),
        ("v6e-8", {"flex_start": True, "max_run": "0d"}, "flex-start gives a TPU for 7d at most"),
        ("v6e-8", {"flex_start": True, "max_run": "soon"}, "expected a duration such as 7d, 36h or 90m"),
        ("tpu7x-2x2x4", {"flex_start": True, "valid_until": "2h"}, "the wait for a group of machines has no limit"),
    ],
)
def test_requests_that_no_service_can_fulfil_are_refused(accelerator, options, said):
    with pytest.raises(UsageError, match=said):
        create_commands(request(accelerator, **options))


def test_flex_start_waits_in_the_queue_of_the_tpu_api(cloud):
    (argv,) = create_commands(request("v6e-16", flex_start=True, max_run="3d", valid_until="6h"))
    assert argv[1:7] == ["alpha", "compute", "tpus", "queued-resources", "create", "my-tpu"]
    flags = {"--provisioning-model=flex-start", "--max-run-duration=3d", "--valid-until-duration=6h"}
    assert flags <= set(argv)
    run(cloud, [argv])
    assert cloud.names("request") == {"my-tpu"}


@pytest.mark.parametrize("accelerator", ["v5p-8", "v6e-4", "tpu7x-standard-1t", "tpu7x-2x2x4"])
def test_flex_start_on_compute_engine_deletes_its_machines_at_the_end(cloud, accelerator):
    commands = create_commands(request(accelerator, api="compute-engine", flex_start=True))
    making = next(argv for argv in commands if any(word.startswith("--machine-type") for word in argv))
    flags = {"--provisioning-model=FLEX_START", "--max-run-duration=7d", "--instance-termination-action=DELETE"}
    assert flags <= set(making)
    run(cloud, commands)


@pytest.mark.parametrize(("text", "seconds"), [("7d", 604_800), ("36h", 129_600), ("1d12h", 129_600), ("90s", 90)])
def test_durations_are_read(text, seconds):
    assert duration_s(text) == seconds


def test_a_slice_of_compute_engine_needs_its_project():
    with pytest.raises(UsageError, match="add `project`"):
        create_commands(CreateTpu(name="t", zone="us-east5-a", type="tpu7x-2x2x4"))


@pytest.mark.parametrize("name", ["My-TPU", "-x", "x;rm", "a" * 64, ""])
def test_names_that_no_tpu_can_have_are_refused(name):
    with pytest.raises(UsageError, match="not a name of a TPU"):
        Place(name=name, zone="us-central2-b")


@pytest.mark.parametrize("zone", ["us-central2", "us central2-b", "--project=x", ""])
def test_malformed_zones_are_refused(zone):
    with pytest.raises(UsageError, match="not a zone"):
        Place(name="t", zone=zone)


@pytest.mark.parametrize(
    ("region", "tpu", "said"),
    [
        ("europe-west4", None, "its zones known to have TPUs are europe-west4-a, europe-west4-b, perhaps more"),
        ("europe-west4", "v5litepod-16", "its zones known to have v5e are europe-west4-b, perhaps more"),
        ("europe-west4", "v4-32", "none of its zones is known to have v4; other zones are us-central2-b, perhaps more"),
    ],
)
def test_a_region_is_refused_with_its_zones_that_have_the_tpu(region, tpu, said):
    with pytest.raises(UsageError) as refused:
        check_zone(region, tpu and parse_accelerator(tpu))
    assert str(refused.value) == f"`zone` '{region}': a region, not a zone; {said}"


def test_a_zone_of_the_new_form_is_accepted():
    assert Place(name="t", zone="us-central1-ai1a").region == "us-central1"


def test_workers_are_reached_by_ssh_and_scp_of_both_services():
    tpu = Target(place=PLACE, api="tpu", instances=("0", "1"), internal_ip=True)
    assert ssh_command(tpu, 1, "a 'b'")[1:] == [
        *("compute", "tpus", "tpu-vm", "ssh", "my-tpu", "--zone=us-central2-b", "--project=p", "--worker=1"),
        *("--internal-ip", "--quiet", "--command=a 'b'"),
    ]
    assert "--worker=all" in copy_commands(tpu, "x", "y", recurse=False)[0]
    assert fetch_command(tpu, 1, "x", "y")[5:7] == ["my-tpu:x", "y"]
    group = Target(place=PLACE, api="compute-engine", instances=("my-tpu-a", "my-tpu-b"))
    assert ssh_command(group, 1, "true")[1:4] == ["compute", "ssh", "my-tpu-b"]
    assert [argv[4] for argv in copy_commands(group, "x", "y", recurse=True)] == ["my-tpu-a:y", "my-tpu-b:y"]
    assert fetch_command(group, 0, "x", "y")[3] == "my-tpu-a:x"


def test_deleting_takes_everything_that_creating_made():
    tpu = Target(place=PLACE, api="tpu", instances=())
    assert [argv[3:6] for argv in delete_commands(tpu, queued=False)] == [["tpu-vm", "delete", "my-tpu"]]
    assert delete_commands(tpu, queued=True)[0][3:6] == ["queued-resources", "delete", "my-tpu"]
    one = Target(place=PLACE, api="compute-engine", instances=("my-tpu",))
    assert [argv[1:4] for argv in delete_commands(one, queued=False)] == [["compute", "instances", "delete"]]
    group = Target(place=PLACE, api="compute-engine", instances=("my-tpu-a", "my-tpu-b"))
    assert [argv[2] for argv in delete_commands(group, queued=False)] == [
        *("instance-groups", "instance-templates", "resource-policies")
    ]


@pytest.mark.skipif(REAL is None, reason="the Google Cloud SDK is not installed")
def test_the_recorded_flags_are_those_of_the_sdk():
    table = Path(REAL).resolve().parents[1] / "data/cli/gcloud_completions.py"
    if not table.exists():
        pytest.skip("this SDK has no table of its flags")
    spec = importlib.util.spec_from_file_location("gcloud_completions", table)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    recorded = json.loads((ROOT / "tests/support/gcloud_flags.json").read_text())
    for command, flags in recorded.items():
        if not command.startswith("compute"):  # the table has no commands of the alpha track either
            continue
        node = module.STATIC_COMPLETION_CLI_TREE
        for word in command.split():
            node = node["commands"][word]
        assert set(flags) - LATER <= set(node["flags"]), command


def every_list() -> list[list[str]]:
    """Argument lists of every kind: for all types and options, and for both services."""
    options = {
        "service_account": "t@p.iam.gserviceaccount.com",
        "network": "n",
        "subnetwork": "s",
        "internal_ips": True,
        "label": {"team": "vision"},
        "startup_script": __file__,
    }
    requests = [request(name) for name, *_ in BY_TPU_API]
    requests += [request(name, api="compute-engine") for name, *_ in BY_COMPUTE_ENGINE]
    requests += [
        request("v4-32", queued=True, valid_until="6h", spot=True, **options),
        request("v4-32", reserved=True, runtime_version="tpu-ubuntu2204-base"),
        request("v6e-16", flex_start=True, max_run="3d", valid_until="6h", **options),
        request("v6e-8", api="compute-engine", spot=True, **options),
        request("v6e-8", api="compute-engine", flex_start=True, max_run="1d12h", valid_until="2h", **options),
        request("tpu7x-2x2x4", flex_start=True, **options),
        request("tpu7x-2x2x4", reservation="r", image_family="f", **options),
    ]
    lists = [argv for each in requests for argv in create_commands(each)]
    tpu = Target(place=PLACE, api="tpu", instances=("0", "1"), internal_ip=True)
    one = Target(place=PLACE, api="compute-engine", instances=("my-tpu",))
    group = Target(place=PLACE, api="compute-engine", instances=("my-tpu-a", "my-tpu-b"), internal_ip=True)
    for target in (tpu, one, group):
        lists += [*delete_commands(target, queued=False), ssh_command(target, 0, "a 'b' --c")]
        lists += [*copy_commands(target, "x", "y", recurse=True), fetch_command(target, 0, "x", "y")]
    lists += [*delete_commands(tpu, queued=True), describe_command(PLACE), queued_command(PLACE)]
    lists += [instances_command(PLACE), *account_commands("b", "my-trainer", "p", "writer")]
    lists += [cache_command("b", "us-central1-a"), *map(str.split, ADVICE)]
    listing = ["--format=json", "--quiet"]
    lists.append(["gcloud", "compute", "tpus", "tpu-vm", "list", "--zone=-", *listing])
    return [*lists, ["gcloud", "compute", "instances", "list", "--filter=name=x", "--zones=us-east5-a", *listing]]


ADVICE = (
    "gcloud storage cp --recursive gs://a gs://b/",
    "gcloud compute tpus accelerator-types list --zone=us-central1-a",
    "gcloud compute tpus locations list",
    "gcloud services enable tpu.googleapis.com compute.googleapis.com",
    "gcloud auth application-default login",
    "gcloud components update",
)
"""Commands that messages and documents tell users to run."""


def as_sdk_528(argv: list[str]) -> list[str]:
    """Return an argument list without what SDK 528 does not know yet: flags, and FLEX_START outside its alpha track."""
    known = [word for word in argv if word.partition("=")[0] not in LATER or word.startswith("--version=")]
    return [known[0], "alpha", *known[1:]] if "--provisioning-model=FLEX_START" in known else known


def parsed_by_the_sdk(lists: list[list[str]], folder: Path) -> list[str | None]:
    """Return the error of the installed SDK's own parser for each argument list, or None."""
    root = Path(REAL).resolve().parents[1]
    bundled = root / "platform/bundledpythonunix/bin/python3"
    python = str(bundled) if bundled.exists() else "/usr/bin/python3"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "CLOUDSDK_CONFIG": str(folder)}
    command = [python, "-S" if bundled.exists() else "-s", str(ROOT / "tests/support/sdk_parser.py"), str(root)]
    ran = subprocess.run(
        command, input=json.dumps(lists), capture_output=True, text=True, check=True, env=environment, cwd=folder
    )
    return json.loads(ran.stdout)


@pytest.mark.skipif(REAL is None, reason="the Google Cloud SDK is not installed")
def test_the_parser_of_the_sdk_takes_every_argument_list(tmp_path):
    lists = [as_sdk_528(argv) for argv in every_list()]
    wrong = [
        ["gcloud", "compute", "tpus", "tpu-vm", "create", "t", "--zone=z", "--no-such-flag"],
        ["gcloud", "compute", "tpus", "tpu-vm", "creates", "t"],
        ["gcloud", "compute", "instances", "create", "t", "--zone=z", "--provisioning-model=MAYBE"],
    ]
    errors = parsed_by_the_sdk([*lists, *wrong], tmp_path)
    assert [(argv, error) for argv, error in zip(lists, errors, strict=False) if error is not None] == []
    assert all(errors[len(lists) :]), "what the SDK does not know is an error"


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
