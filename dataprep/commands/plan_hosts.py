"""The part of `dataprep plan-input` about all TPUs: the smallest of each kind whose hosts deliver a rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table

from dataprep.cloud.accelerators import Accelerator, TpuMachine, generations, machines, smallest_slice

if TYPE_CHECKING:
    from loaders.capacity.plan import CapacityPlan, ImageCost, Pod


class CoreSpeed(NamedTuple):
    """Speed of a host's core, as a share of the core on which the cost of an image was measured."""

    core_speed: float
    core_basis: str
    """What the speed rests on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnoughHosts:
    """The smallest TPU with one kind of host that delivers a rate."""

    machine: TpuMachine
    host_images_per_s: float
    """Rate that one host certainly delivers; 0 if its vCPUs are not known."""
    hosts: int
    """Number of hosts that the rate takes."""
    accelerator: Accelerator | None
    """Smallest TPU with so many hosts; None if there is none."""
    plan: CapacityPlan | None
    """Plan of that TPU; None if there is none."""

    @property
    def at_least(self) -> bool:
        """Whether the hosts may deliver more, because the amount of what limits them is not published."""
        return self.plan is not None and any(
            resource.at_least for resource in self.plan.resources if resource.name == self.plan.limit
        )


def enough_hosts(
    images_per_s: float, costs: Mapping[str, ImageCost], pod_of: Callable[[TpuMachine], Pod]
) -> list[EnoughHosts]:
    """Return what each kind of host needs for a rate, the smallest number of hosts first.

    Args:
        images_per_s: Rate of all hosts together.
        costs: Cost of an image by TPU generation.
        pod_of: Returns one host of a kind whose vCPUs are known.
    """
    from loaders.capacity.plan import plan_capacity

    found = []
    for machine in machines().values():
        if not machine.slices:
            continue
        if machine.vcpus is None:
            found.append(EnoughHosts(machine=machine, host_images_per_s=0, hosts=0, accelerator=None, plan=None))
            continue
        pod, cost = pod_of(machine), costs[machine.generation]
        host_images_per_s = plan_capacity(images_per_s, pod, cost).images_per_s
        hosts = ceil(images_per_s / host_images_per_s)
        accelerator = smallest_slice(machine, hosts)
        plan = plan_capacity(images_per_s, replace(pod, hosts=accelerator.hosts), cost) if accelerator else None
        found.append(
            EnoughHosts(
                machine=machine,
                host_images_per_s=host_images_per_s,
                hosts=hosts,
                accelerator=accelerator,
                plan=plan,
            )
        )
    return sorted(found, key=_rank)


def hosts_table(title: str, found: Sequence[EnoughHosts]) -> Table:
    """Return a table of the TPUs that deliver the rate."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("smallest TPU", "hosts", "machine", "images/s each", "headroom", "limit"):
        table.add_column(
            name, justify="left" if name in ("smallest TPU", "machine", "limit") else "right", no_wrap=True
        )
    for row in found:
        if row.accelerator is not None and row.plan is not None:
            sign = "≥ " if row.at_least else ""
            table.add_row(
                row.accelerator.name,
                f"{row.accelerator.hosts:,}",
                row.machine.machine_type,
                f"{sign}{row.host_images_per_s:,.0f}",
                f"{sign}{row.plan.headroom:,.2f} x",
                row.plan.limit,
            )
    return table


def hosts_notes(found: Sequence[EnoughHosts], speeds: Mapping[str, CoreSpeed]) -> Iterator[str]:
    """Yield a line for each kind of host without a TPU in the table, and one for each speed of cores."""
    for row in found:
        if row.accelerator is None:
            yield f"{row.machine.machine_type}: {_reason(row)}"
    for speed in dict.fromkeys(speeds.values()):
        names = ", ".join(name for name, each in speeds.items() if each == speed)
        yield f"cores of {names}: each counted as {speed.core_speed:g} of one that measured; {speed.core_basis}"


def hosts_document(found: Sequence[EnoughHosts], speeds: Mapping[str, CoreSpeed]) -> dict[str, object]:
    """Return the rows as JSON values, which docs/capacity.md describes."""
    return {
        "tpus": [
            {
                "accelerator": row.accelerator.name,
                "hosts": row.accelerator.hosts,
                "machine_type": row.machine.machine_type,
                "generation": row.machine.generation,
                "host_images_per_s": row.host_images_per_s,
                "headroom": row.plan.headroom,
                "limit": row.plan.limit,
                "at_least": row.at_least,
            }
            for row in found
            if row.accelerator is not None and row.plan is not None
        ],
        "left_out": {row.machine.machine_type: _reason(row) for row in found if row.accelerator is None},
        "cores": {name: speed._asdict() for name, speed in speeds.items()},
    }


def _reason(row: EnoughHosts) -> str:
    if row.machine.vcpus is None:
        return "its vCPUs are not known"
    return f"{row.hosts:,} hosts would be needed, more than the largest TPU with them has"


def _rank(row: EnoughHosts) -> tuple[bool, int, float, int]:
    """Return the place of a row: TPUs of few hosts first, then much headroom, then the older generation."""
    headroom = row.plan.headroom if row.plan else 0.0
    hosts = row.accelerator.hosts if row.accelerator else 0
    return row.accelerator is None, hosts, -headroom, list(generations()).index(row.machine.generation)
