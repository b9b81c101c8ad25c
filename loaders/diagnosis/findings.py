"""Result of `dataprep diagnose`: rates of the stages, parts of a step, verdict, and changes that would help.

All rates are images/s of one host. `to_document` is the JSON that `--json` prints; docs/bottleneck.md describes it.
`Option` says how a change's settings are typed: `dataprep diagnose` has other options than a training command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal, TypedDict

from dataprep.host.versions import MachineDocument
from loaders.metrics.earlier import SCHEMA_VERSION

if TYPE_CHECKING:
    from loaders.decode.decoders import Backend

MIN_GAIN = 1.05
"""Gain below which a change is not worth a restart, and a difference may be noise."""

Stage = Literal["fetch", "prepare", "transfer", "compute"]
STAGES: tuple[Stage, ...] = ("fetch", "prepare", "transfer", "compute")
"""Stages in the order in which an image passes them."""
Limit = Literal["fetch", "prepare", "transfer", "compute", "cores", "contention"]
"""Limit of a run: a stage, the cores that several stages share, or stages that slow each other down (`contention`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRate:
    """Rate of one stage alone."""

    name: Stage
    images_per_s: float
    """Rate while no other stage runs; for `compute` the rate of the run's own steps, if these were faster."""
    cpu_s_per_image: float
    """CPU time on the machine, including other processes that serve this stage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Parts of one step as the training loop sees them, seconds."""

    started_s: float
    """Start of the step, counted from the start of the first step in the list."""
    wait_s: float
    """Time that the loop waited for a batch."""
    transfer_s: float
    """Time that the device waited for the batch to arrive; 0 if it was transferred during the step before."""
    compute_s: float
    """Time that the device computed."""


class Changes(TypedDict, total=False):
    """New settings of a run: fields of `LoaderConfig`, `transfer_ahead`, `compute_threads` of a model on the cores that
    decode, or `short_side` of a rebuilt dataset."""

    batch_size: int
    threads: int
    processes: int
    prefetch_batches: int
    reads_in_flight: int
    decoder: Backend
    cache_dir: str
    transfer_ahead: int
    compute_threads: int
    short_side: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """One change, and the rate that it should reach."""

    name: str
    """`workers`, `compute-threads`, `prefetch`, `cache`, `resize`, `batch`, `transfer-ahead`, `location` or
    `decoder`."""
    settings: Changes
    needs: Literal["restart", "rebuild", "copy"]
    """Effort of the change: a run with other settings, a rebuilt dataset, or a copy in another bucket."""
    images_per_s: float
    """Rate of a short run with the change if it was tried, otherwise the prediction."""
    predicted_images_per_s: float
    """Rate predicted from the changed stages."""
    is_tried: bool
    """Whether a run with the change was measured."""
    gain: float
    """Rate with the change divided by the observed rate: 1.0 changes nothing, 2.0 doubles it."""
    limit: Limit
    """Limit of the run with the change."""
    advice: str
    """Advice in one line, with the option or the command."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """Upper bound of the rate if one part of a run becomes faster: the rate of a run without the part."""

    images_per_s: float
    """Rate of a short run without the part if it was tried, otherwise the prediction."""
    predicted_images_per_s: float
    """Rate predicted from the stages without the part."""
    is_tried: bool
    """Whether a run without the part was measured."""
    gain: float
    """Rate without the part divided by the observed rate."""
    limit: Limit
    """Limit of the run without the part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformCost:
    """Cost of the user's transform within preparing an image, while no other stage runs."""

    name: str
    """Place of its definition, `MODULE:NAME`; several are separated by commas."""
    s_per_image: float
    """Time of a thread, including waits for the interpreter lock."""
    cpu_s_per_image: float
    """CPU time of that thread."""
    prepare_s_per_image: float
    """Time that a thread takes to prepare an image: decoding, cropping and the transform."""
    holds_lock: bool
    """Whether the threads of a process take turns in it, and all together call it hardly more often than one could."""
    without: Bound | None
    """A run without the transform: a faster transform can bring the rate up to this bound. None if preparing does not
    limit the run, or if that is undecided."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """A run with the best change that needs neither rebuild nor copy."""

    name: str
    settings: Changes
    predicted_images_per_s: float
    measured_images_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """Everything that a report shows."""

    url: str
    device: str
    """Name of the device, e.g. `cpu (resnet50)` or `simulated:2000`."""
    verdict: str
    """One sentence: what the run waits for, what to do, and the gain; or why this is undecided."""
    limit: Limit
    observed_images_per_s: float
    predicted_images_per_s: float
    """Rate predicted from the stages alone."""
    contention: str
    """Reason why the stages together are more than a tenth slower than predicted; empty if they are not."""
    utilisation: float
    """Accelerator's utilisation: observed rate / rate of compute alone, 0..1. MLPerf Storage passes at 0.9."""
    stages: tuple[StageRate, ...]
    wait_share: float
    """Share of all steps' time in which the loop waited for a batch; the three shares add up to 1."""
    transfer_share: float
    """Share of all steps' time in which the device waited for a batch to arrive."""
    compute_share: float
    """Share of all steps' time in which the device computed."""
    timeline: tuple[StepTimes, ...]
    """The first steps, at most 200."""
    fixes: tuple[Fix, ...]
    """Changes that gain at least 5 %, the best first."""
    applied: Applied | None
    transform: TransformCost | None = None
    """Share of preparing spent in the user's transform; None without one."""
    bytes_per_image: float
    """Mean size of an encoded image."""
    settings: dict[str, object]
    machine: MachineDocument
    attainable_images_per_s: float = 0.0
    """Rate with the best division of the cores among the stages, if nothing else changes."""
    allocation: dict[str, float] = field(default_factory=dict)
    """Cores that each stage takes at that rate."""
    undecided: str = ""
    """Reason why neither `limit` nor a change can be named: the measured rates contradict each other, or other programs
    may have caused them; empty otherwise."""
    compute_alone_images_per_s: float = 0.0
    """Rate of the device in its own measurement. The stage `compute` has a higher one if the run's own steps were
    faster: each is a lower bound of the device's rate."""
    other_cores: float = 0.0
    """Cores that other programs used before or after the measurement, whichever is more; 0 if unknown."""
    slow_link: str = ""
    """Reason, and settings, if the run was measured with fewer reads in flight or a longer deadline than it is set up
    with, because its reads missed their deadline over a slow link. Empty if it was measured as it is."""
    cache: str = ""
    """Sentence that says whether a run with a local cache was measured from the full cache; empty without a cache."""


def to_document(found: Diagnosis) -> dict[str, object]:
    """Return a diagnosis as JSON values."""
    return {"schema_version": SCHEMA_VERSION, **asdict(found)}


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command."""

    name: str
    """Name as it is typed, e.g. `--num_workers`."""
    unit: int = 1
    """Divisor for the setting's value: a batch of 128 images may be `--batch_size 64` on each of 2 devices."""
    value: str = ""
    """Word to print instead of the setting's value; empty: the value is printed."""

    def text(self, setting: object) -> str:
        """Return the option with the value of the setting, as it is typed."""
        shown = setting // self.unit if isinstance(setting, int) else setting
        return f"{self.name} {self.value or shown}"


Options = Mapping[str, Option]
"""Options by the names of the settings (`Changes`); a setting without an option cannot be set."""

_SETTINGS = ("threads", "processes", "decoder", "prefetch_batches", "reads_in_flight", "batch_size", "transfer_ahead")
DIAGNOSE: Options = {name: Option(f"--{name.replace('_', '-')}") for name in _SETTINGS} | {
    "cache_dir": Option("--cache-dir", value="DIR")
}
"""Options of `dataprep diagnose`."""
