"""Finds a TPU by its name, through `gcloud`: first in the TPU API, then among the machines of Compute Engine."""

from __future__ import annotations

from dataprep.cloud.gcloud import Gcloud, GcloudMissingError
from dataprep.cloud.tpu.command_lines import Api, Place, Target, check_name, describe_command, instances_command
from dataprep.dataset.documents import JsonObject
from dataprep.errors import DataprepError, UndecidedError, UsageError

LIST_TIMEOUT_S = 120.0
"""Deadline of listing the TPUs of all zones, which takes seconds."""
MOST_LISTED = 10
"""Maximum number of TPUs that an error lists."""


def find_target(gcloud: Gcloud, place: Place, api: Api | None, *, internal_ip: bool = False) -> Target:
    """Find a TPU whose zone is known, with its workers.

    Args:
        gcloud: Runs the commands; a dry run shows them, and finds a TPU of one worker.
        place: The TPU's name and zone.
        api: Service to search; None for the TPU API, and if that has no such TPU, Compute Engine.
        internal_ip: Reach the workers by their internal addresses.

    Raises:
        UsageError: There is no such TPU, or it is not ready.
    """
    if api != "compute-engine":
        node = gcloud.read(describe_command(place))
        if gcloud.dry_run:
            gcloud.show("# then the same for every worker: --worker=0, --worker=1, …")
            return Target(place=place, api="tpu", instances=("0",), internal_ip=internal_ip)
        if node is not None:
            if node.get("state") != "READY":
                raise UsageError(
                    f"{place.name} is {node.get('state')}, expected READY; wait, and see dataprep tpu status"
                )
            numbers = tuple(map(str, range(len(node.get("networkEndpoints") or [{}]))))
            return Target(place=place, api="tpu", instances=numbers, internal_ip=internal_ip)
    machines = gcloud.read(instances_command(place)) or []
    if gcloud.dry_run:
        return Target(place=place, api="compute-engine", instances=(place.name,), internal_ip=internal_ip)
    if not machines:
        raise UsageError(f"{place.name}: no such TPU in {place.zone}; check its name, --zone and --project")
    waiting = [machine["name"] for machine in machines if machine.get("status") != "RUNNING"]
    if waiting:
        raise UsageError(f"{place.name}: {', '.join(waiting)} not RUNNING; wait, and see dataprep tpu status")
    names = tuple(sorted(machine["name"] for machine in machines))
    return Target(place=place, api="compute-engine", instances=names, internal_ip=internal_ip)


def find_zone(name: str, zone: str | None = None) -> str:
    """Return the zone of a TPU.

    Args:
        name: The TPU's name.
        zone: Zone to search; needed if there are several TPUs of this name.

    Raises:
        UsageError: There is no `gcloud`, or no TPU or several of this name.
        UndecidedError: `gcloud` could not answer.
    """
    check_name(name)
    listed = _entries("compute", "tpus", "tpu-vm", "list", f"--zone={zone or '-'}")
    found = [_zone_of(node) for node in listed if _last(node.get("name", "")) == name]
    if not found:
        zones = [f"--zones={zone}"] if zone else []
        vms = _entries("compute", "instances", "list", f"--filter=name={name}", *zones)
        found = [_last(vm.get("zone", "")) for vm in vms if vm.get("name") == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"--tpu {name}: TPUs of this name are in {', '.join(found)}; add --zone")
    names = ", ".join(sorted(_last(node.get("name", "")) for node in listed)[:MOST_LISTED]) or "none"
    raise UsageError(f"--tpu {name}: no such TPU, gcloud lists {names}; check the name and the project, or give --zone")


def _entries(*words: str) -> list[JsonObject]:
    gcloud = Gcloud(lambda _line: None)
    try:
        return gcloud.entries(["gcloud", *words, "--format=json", "--quiet"], timeout_s=LIST_TIMEOUT_S)
    except GcloudMissingError as error:
        raise UsageError(f"--tpu: {error}, or give --zone") from None
    except DataprepError as error:
        raise UndecidedError(f"--tpu: {error}, or give --zone") from error


def _zone_of(node: JsonObject) -> str:
    """Return the zone of a node of the TPU API, whose name is projects/P/locations/ZONE/nodes/NAME."""
    zone: str = node["name"].split("/")[-3]
    return zone


def _last(path: str) -> str:
    return path.rpartition("/")[2]
