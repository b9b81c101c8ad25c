"""Parses the name of a TPU: its generation, its chips, and the virtual machines that drive them.

The facts are tables with their sources, `data/tpu_generations.csv` and `data/tpu_types.csv`. Names are Google's: an
accelerator type (`v3-256`, `v5litepod-64`), a generation or machine type with a topology (`v4:2x2x4`, `tpu7x-2x2x4`,
`ct3p-hightpu-4t:4x4`), or a machine type alone for one machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from math import prod
from typing import Literal

from msgspec import convert

from dataprep.cloud.prices import table
from dataprep.errors import UsageError

SLICE_HOST_CHIPS = 4
"""Number of chips of each machine in a slice of several machines, in every generation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """Facts that all TPUs of a generation have in common."""

    name: str
    """Name of the generation, from `v2` to `v6e` and `7x`."""
    prefix: str
    """First part of its TPUs' names: `v5litepod` for v5e, `tpu7x` for 7x, otherwise the generation's own name."""
    suffix_counts: Literal["cores", "chips", ""]
    """Unit of the number in an accelerator type; empty for a generation that has only topologies."""
    suffixes: tuple[int, ...]
    """Available sizes, ascending."""
    dimensions: int
    """Number of sides that a topology has."""
    max_chips: int
    """Number of chips in the largest slice."""
    cores_per_chip: int
    devices_per_chip: int
    """Number of devices that PyTorch/XLA and JAX see in a chip."""
    hbm_gib_per_chip: int
    tpu_api: bool
    """Whether `gcloud compute tpus` creates TPUs of this generation."""
    compute_engine: bool
    """Whether `gcloud compute instances` creates TPUs of this generation."""
    gke_accelerator: str
    """Value of GKE's node label for this generation; empty if GKE does not have it, or no source states it."""
    runtime_version: str
    """Software version of its TPUs in the TPU API; empty if that does not create this generation."""
    aliases: tuple[str, ...]
    """Other names of the generation, such as `trillium` for v6e."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TpuMachine:
    """One kind of virtual machine with TPU chips."""

    machine_type: str
    """Name in Compute Engine and GKE; machines of v2 and v3, which have none there, have their generation's."""
    generation: str
    chips: int
    vcpus: int | None
    """Number of vCPUs; None if no source states it."""
    ram_gb: int
    nic_gbps: float | None
    """Maximum network bandwidth, in Gbit/s; None if no source states it."""
    slices: bool
    """Whether accelerator types and topologies refer to this machine; other kinds are requested by machine type."""
    source: str
    date: str
    """Date of the source, as YYYY-MM-DD."""
    note: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """A TPU slice: one or more machines of one kind."""

    name: str
    """Name as Google writes it."""
    generation: Generation
    machine: TpuMachine
    hosts: int
    """Number of machines, i.e. of the TPU VM's workers."""
    chips: int
    topology: str | None
    """Topology such as `2x2x4`, if the name contains it."""
    note: str = ""
    """Note on how the name was understood, if it is not one of Google's."""

    @property
    def cores(self) -> int:
        """Number of TensorCores."""
        return self.chips * self.generation.cores_per_chip

    @property
    def devices(self) -> int:
        """Number of devices that PyTorch/XLA and JAX see."""
        return self.chips * self.generation.devices_per_chip

    @property
    def hbm_gib(self) -> int:
        """Memory of all chips, in GiB."""
        return self.chips * self.generation.hbm_gib_per_chip


def parse_accelerator(name: str) -> Accelerator:
    """Return the TPU with a name, in upper or lower case.

    Raises:
        UsageError: No TPU has this name; the text lists the nearest ones.
    """
    wanted = name.strip().lower()
    shown = name if name.isprintable() else ascii(name)
    if wanted in machines() and wanted not in generations():
        return _slice(wanted, machines()[wanted], machines()[wanted].chips)
    by_topology = re.fullmatch(r"(.+)[:-]([0-9]{1,5}(?:x[0-9]{1,5})+)", wanted)
    if by_topology:
        return _by_topology(shown, *by_topology.groups())
    by_suffix = re.fullmatch(r"(.+)-([0-9]{1,6})", wanted)
    generation = _families().get(by_suffix[1]) if by_suffix else None
    if by_suffix is None or generation is None:
        raise UsageError(f"{shown}: no TPU of this name is known; {_nearest(wanted)}")
    return _by_suffix(shown, generation, int(by_suffix[2]))


@cache
def generations() -> dict[str, Generation]:
    """Return all generations by name, the oldest first."""
    found = {}
    for row in table("tpu_generations.csv"):
        lists = {"suffixes": _suffixes(row["suffixes"]), "aliases": row["aliases"].split()}
        found[row["generation"]] = convert({**row, **lists, "name": row["generation"]}, Generation, strict=False)
    return found


@cache
def machines() -> dict[str, TpuMachine]:
    """Return all kinds of machines by machine type."""
    found = {}
    for row in table("tpu_types.csv"):
        unknown = {name: None for name in ("vcpus", "nic_gbps") if not row[name]}
        found[row["machine_type"]] = convert({**row, **unknown}, TpuMachine, strict=False)
    return found


def accelerator_types(generation: Generation) -> list[str]:
    """Return a generation's accelerator types, the smallest first; empty if it has only topologies."""
    return [f"{generation.prefix}-{suffix}" for suffix in generation.suffixes]


def there_are_tpus() -> str:
    """Return the end of an error about a name that is wrong or missing: the range of each generation."""
    kinds = []
    for found in generations().values():
        sizes = accelerator_types(found)
        kinds.append(f"{sizes[0]} to {sizes[-1]}" if sizes else f"{found.prefix}-2x2x1 and larger")
    return f"there are {', '.join(kinds)}, and topologies such as v4:2x2x4"


def smallest_slice(machine: TpuMachine, hosts: int) -> Accelerator | None:
    """Return the smallest TPU with at least this many machines of a kind; None if the largest has fewer.

    Sizes are powers of two, and the largest size on offer.
    """
    generation = generations()[machine.generation]
    if generation.suffixes:
        sizes = [size for size in generation.suffixes if _is_power_of_2(size) or size == generation.suffixes[-1]]
        names = [f"{generation.prefix}-{size}" for size in sizes]
    else:
        shapes = [compact(2**power, generation.dimensions) for power in range(generation.max_chips.bit_length())]
        names = [f"{generation.prefix}-{shape}" for shape in shapes if shape]
    slices = map(parse_accelerator, names)
    return next((found for found in slices if found.machine == machine and found.hosts >= hosts), None)


def known_zones(generation: str, mode: str | None = None) -> list[str]:
    """Return the zones that are known to have a generation, or one of its provisioning modes; there may be more."""
    rows = [row for row in table("tpu_zones.csv") if row["type"] == generation]
    return [row["zone"] for row in rows if mode is None or mode in row["modes"].split()]


def zone_refusal(region: str, accelerator: Accelerator | None = None) -> str:
    """Return the error about a region in place of a zone, with the region's known zones.

    Args:
        accelerator: TPU that the zone must have; None for any.
    """
    what = "TPUs" if accelerator is None else accelerator.generation.name
    kinds = generations() if accelerator is None else [what]
    known = sorted({zone for kind in kinds for zone in known_zones(kind)})
    inside = [zone for zone in known if zone.startswith(f"{region}-")]
    zones = (
        f"its zones known to have {what} are"
        if inside
        else f"none of its zones is known to have {what}; other zones are"
    )
    return f"`zone` {region!r}: a region, not a zone; {zones} {', '.join(inside or known)}, perhaps more"


def zone_note(accelerator: Accelerator, zone: str) -> str:
    """Return a note if a zone or region is not among those that are known to have a TPU; an empty text if it is."""
    known = known_zones(accelerator.generation.name)
    if any(each == zone or each.startswith(f"{zone}-") for each in known):
        return ""
    return f"{zone} is not known to have {accelerator.generation.name}; known zones: {', '.join(known)}, perhaps more"


def shape_of(accelerator: Accelerator) -> str:
    """Return the topology of a slice: the one in its name, else the most compact one.

    Raises:
        UsageError: The number of chips has no usual shape in three dimensions.
    """
    if accelerator.topology:
        return accelerator.topology
    shape = compact(accelerator.chips, accelerator.generation.dimensions)
    if shape is None:
        prefix = accelerator.generation.prefix
        raise UsageError(f"{accelerator.name}: its topology is not known; write it, e.g. {prefix}:2x2x4")
    return shape


def _by_xpk_name(name: str, generation: Generation, cores: int) -> Accelerator:
    """Return a TPU by xpk's name, whose number counts TensorCores: `tpu7x-8` has four chips."""
    chips, rest = divmod(cores, generation.cores_per_chip)
    shape = None if rest else compact(chips, generation.dimensions)
    if shape is None or chips > generation.max_chips:
        raise UsageError(
            f"{name}: read as an xpk name, this means {cores:,} TensorCores, and no topology is known for that number; "
            f"give the topology instead, e.g. {generation.prefix}-2x2x4 for 16 chips"
        )
    found = _by_topology(name, generation.prefix, shape)
    note = f"{name} is xpk's name for {cores:,} TensorCores: {found.name}, {chips:,} chips"
    return replace(found, note=note)


def compact(chips: int, dimensions: int) -> str | None:
    """Return the most compact topology of a power of two: 4x8, 2x2x4; None for any other number of chips."""
    if chips < 1 or not _is_power_of_2(chips) or (dimensions == 3 and chips == 2):
        return None
    sides = [1] * dimensions
    power = chips.bit_length() - 1
    for number in range(power):
        sides[number % dimensions] *= 2
    return "x".join(map(str, sorted(sides) if power >= dimensions else sorted(sides, reverse=True)))


def _by_suffix(name: str, generation: Generation, suffix: int) -> Accelerator:
    if not generation.suffixes:
        return _by_xpk_name(name, generation, suffix)
    if suffix not in generation.suffixes:
        near = sorted(sorted(generation.suffixes, key=lambda known: abs(known - suffix))[:2])
        raise UsageError(
            f"{name}: {generation.prefix} does not come with {suffix:,} {generation.suffix_counts}; "
            f"nearest: {', '.join(f'{generation.prefix}-{known}' for known in near)}"
        )
    chips = suffix // generation.cores_per_chip if generation.suffix_counts == "cores" else suffix
    return _slice(f"{generation.prefix}-{suffix}", _slice_machine(generation, chips), chips)


def _by_topology(name: str, family: str, topology: str) -> Accelerator:
    machine = machines().get(family)
    generation = generations()[machine.generation] if machine else _families().get(family)
    if generation is None:
        raise UsageError(f"{name}: no TPU of this name is known; {_nearest(family)}")
    sides = [int(side) for side in topology.split("x")]
    chips = prod(sides)
    if len(sides) != generation.dimensions or not 0 < chips <= generation.max_chips:
        shape = "x".join("ABC"[: generation.dimensions])
        raise UsageError(
            f"{name}: a topology of {generation.prefix} is {shape} with at most {generation.max_chips:,} chips; "
            f"got {topology}"
        )
    machine = machine or _slice_machine(generation, chips)
    if chips % machine.chips:
        raise UsageError(f"{name}: {chips} chips do not fill machines of {machine.chips} chips each; choose a multiple")
    suffix = chips * (generation.cores_per_chip if generation.suffix_counts == "cores" else 1)
    known = machine == _slice_machine(generation, chips)
    official = f"{generation.prefix}-{suffix if suffix in generation.suffixes else topology}"
    return _slice(official if known else f"{machine.machine_type}:{topology}", machine, chips, topology)


def _slice(name: str, machine: TpuMachine, chips: int, topology: str | None = None) -> Accelerator:
    generation, hosts = generations()[machine.generation], chips // machine.chips
    return Accelerator(name=name, generation=generation, machine=machine, hosts=hosts, chips=chips, topology=topology)


def _slice_machine(generation: Generation, chips: int) -> TpuMachine:
    """Return the kind of machine of a slice: one with all its chips if that exists, else one with four."""
    kinds = {kind.chips: kind for kind in machines().values() if kind.generation == generation.name and kind.slices}
    return kinds.get(chips, kinds[SLICE_HOST_CHIPS])


def _families() -> dict[str, Generation]:
    """Return generations by the first part of a name: prefix, generation (`v5e-16`), or alias (`trillium-8`)."""
    return {key: found for found in generations().values() for key in (found.name, found.prefix, *found.aliases)}


def _nearest(wanted: str) -> str:
    if wanted in _families():
        found = _families()[wanted]
        sizes = [name for name in accelerator_types(found) if _is_power_of_2(int(name.rpartition("-")[2]))]
        known = ", ".join(sizes) or f"{found.prefix}-2x2x1, {found.prefix}-2x2x4"
        return f"{wanted} is a generation, and its size is missing: write {known}"
    suffixes = [(found, size) for found in generations().values() for size in found.suffixes]
    names = [
        f"{family}-{size}"
        for found, size in suffixes
        if _is_power_of_2(size)  # without v4's other 1,000
        for family in dict.fromkeys((found.prefix, found.name, *found.aliases))
    ]
    topologies = [f"{found.prefix}-{'x'.join('224'[: found.dimensions])}" for found in generations().values()]
    types = machines().keys() - generations().keys()
    near = get_close_matches(wanted, [*names, *topologies, *sorted(types)], n=3, cutoff=0.5)
    return f"nearest: {', '.join(near)}; {there_are_tpus()}" if near else there_are_tpus()


def _is_power_of_2(number: int) -> bool:
    return number & (number - 1) == 0


def _suffixes(text: str) -> tuple[int, ...]:
    """Parse the column `suffixes`: `8 32 128`, or `8..8192/8` for every eighth number."""
    match = re.fullmatch(r"([0-9]+)\.\.([0-9]+)/([0-9]+)", text)
    if match:
        first, last, step = map(int, match.groups())
        return tuple(range(first, last + 1, step))
    return tuple(map(int, text.split()))
