"""Makes the manifest of a build and a training on GKE: one JobSet, which Kueue admits if it names a queue. Pure.

The build's parts run on CPU nodes first; the training starts when one of them has found the dataset complete. If a node
of the training is taken away, the JobSet starts again without that counting as a failure, and the training continues
from its checkpoint; the build then ends at once, because the dataset exists.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from dataprep.arguments import WHERE, WRITE, Request, Texts, option, request, texts
from dataprep.cloud.accelerators import Accelerator, parse_accelerator, shape_of
from dataprep.cloud.tpu.command_lines import MAX_FLEX_START, check_name, duration_s
from dataprep.cloud.tpu.jobs import FRAMEWORKS, Framework
from dataprep.errors import UsageError

Mode = Literal["on-demand", "spot", "flex-start", "reservation"]
MODES: tuple[Mode, ...] = ("on-demand", "spot", "flex-start", "reservation")
WRONG_USAGE_CODE = 2
"""Exit code of a command that would fail again in the same way."""
GRACE_S = 120
"""Seconds that a training gets for a checkpoint before its pod is killed."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,56}[a-z0-9])?")  # leaves room for the endings of flavors
_QUANTITY = re.compile(r"([0-9]{1,9})(m|[kMGTP]i?)?")
_IMAGE = re.compile(r"[^\s\x00-\x1f]{1,512}")
_MODE_LABELS = {"spot": "cloud.google.com/gke-spot", "flex-start": "cloud.google.com/gke-flex-start"}
_TAKEN_AWAY = {"type": "DisruptionTarget", "status": "True"}
Document = dict[str, object]


@request
class ManifestRequest(Request):
    """Write a JobSet for GKE: with `build`, a build in parts, then training on a TPU, with restarts when its nodes
    are taken away.

    Nothing is sent to a cluster: apply the file with kubectl. The cluster needs JobSet and, for `queue`, Kueue.
    """

    name: str = option("Name of the JobSet.", kw_only=False)
    type: str = option("TPU, such as v6e-16 or tpu7x-2x2x4.", metavar="TYPE", group=WHERE)
    image: str = option("Container image with this package and the training framework.", group=WHERE)
    build: str | None = option(
        "Arguments of a dataprep build to run first, in parts.", default=None, metavar="'DATASET …'"
    )
    parts: int = option("Number of parts of the build, one pod each.", default=8, low=1)
    part_cpu: str = option("CPUs for each part.", default="4", rare=True)
    part_memory: str = option("Memory for each part.", default="3Gi", rare=True)
    part_disk: str = option("Disk for each part.", default="4Gi", rare=True)
    queue: str | None = option(
        "Kueue's local queue that admits the JobSet.", default=None, metavar="NAME", shown="no Kueue", group=WHERE
    )
    namespace: str | None = option("Kubernetes namespace.", default=None, group=WHERE)
    service_account: str | None = option(
        "Kubernetes service account, bound to a Google Cloud service account.",
        default=None,
        metavar="NAME",
        group=WHERE,
    )
    mode: Mode = option("How to provide the TPU nodes.", default="on-demand", group=WHERE)
    reservation: str | None = option("Reservation, with `mode` reservation.", default=None, metavar="NAME", group=WHERE)
    max_run: str | None = option(
        "Time for which `queue` requests flex-start nodes.", default=None, metavar="DURATION", shown="7d", group=WHERE
    )
    max_restarts: int = option("Maximum number of restarts after failures.", default=10, rare=True)
    framework: Framework = option("Framework to set environment variables for.", default="torch")
    output: Path | None = option("File to write.", default=None, metavar="FILE", shown="standard output", group=WRITE)
    argv: Texts = option("Training command and its arguments.", rest=True, metavar="-- COMMAND…")

    def __post_init__(self) -> None:
        """Check the values, and that they go together."""
        super().__post_init__()
        check_name(self.name)
        if self.build is not None:
            _ = self.build_argv  # refuses other words
            for field_name in ("part_cpu", "part_memory", "part_disk"):
                if not _QUANTITY.fullmatch(text := getattr(self, field_name)):
                    raise UsageError(f"`{field_name}` {text!r}: expected a Kubernetes quantity, such as 4, 500m or 3Gi")
        for field_name, text in (("namespace", self.namespace), ("queue", self.queue)):
            if text is not None and not _LABEL.fullmatch(text):
                raise UsageError(f"`{field_name}` {text!r}: expected a name of a-z, 0-9 and -, 58 characters at most")
        if not _IMAGE.fullmatch(self.image):
            raise UsageError(f"`image` {self.image!r}: expected one such as REGION-docker.pkg.dev/PROJECT/REPO/NAME")
        if not self.accelerator.generation.gke_accelerator:
            raise UsageError(f"{self.accelerator.name}: GKE's name for this generation is not known; take v4 or newer")
        if (self.mode == "reservation") != (self.reservation is not None):
            raise UsageError("`mode` reservation and `reservation` belong together; give both, or neither")
        if self.max_run is not None:
            if self.mode != "flex-start":
                raise UsageError("`max_run` is for nodes that you get for a limited time; add `mode` flex-start")
            if self.queue is None:
                raise UsageError(
                    f"`max_run` {self.max_run}: only Kueue can request nodes for that long; add `queue`, or set it on "
                    "the node pool"
                )
            if not 0 < duration_s(self.max_run) <= duration_s(MAX_FLEX_START):
                raise UsageError(f"`max_run` {self.max_run}: flex-start gives nodes for {MAX_FLEX_START} at most")

    @property
    def accelerator(self) -> Accelerator:
        """The TPU that `type` names."""
        return parse_accelerator(self.type)

    @property
    def build_argv(self) -> list[str]:
        """Command of the build, without its part. Raises UsageError if `build` does not hold the words of one."""
        words = self.build or ""
        try:
            argv = shlex.split(words)
        except ValueError as error:
            raise UsageError(f"`build` {words!r}: {error}; quote it as for a shell") from None
        if not argv or argv[0].startswith("-") or any(word.split("=")[0] == "--part" for word in argv):
            raise UsageError("`build`: expected the words after `dataprep build`, a dataset first, without --part")
        return ["dataprep", "build", *argv]


def job_set(request: ManifestRequest) -> Document:
    """Return the JobSet as JSON values, which are YAML values, too.

    Raises:
        UsageError: The topology of the TPU is not known.
    """
    metadata: Document = {"name": request.name}
    if request.namespace:
        metadata["namespace"] = request.namespace
    if request.queue:
        metadata["labels"] = {"kueue.x-k8s.io/queue-name": request.queue}
    if request.queue and request.mode == "flex-start":
        seconds = duration_s(request.max_run or MAX_FLEX_START)
        metadata["annotations"] = {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": str(seconds)}
    jobs = [_build_job(request)] if request.build else []
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {"failurePolicy": _failure_policy(request), "replicatedJobs": [*jobs, _training_job(request)]},
    }


def _node_labels(request: ManifestRequest) -> dict[str, str]:
    """Return the labels of the nodes that the training needs."""
    labels = {
        "cloud.google.com/gke-tpu-accelerator": request.accelerator.generation.gke_accelerator,
        "cloud.google.com/gke-tpu-topology": shape_of(request.accelerator),
    }
    if request.mode in _MODE_LABELS:
        labels[_MODE_LABELS[request.mode]] = "true"
    if request.reservation:
        labels["cloud.google.com/reservation-name"] = request.reservation
    return labels


def _failure_policy(request: ManifestRequest) -> Document:
    """Return the rules for failures: jobs fail with PodFailurePolicy only in the two cases that their pods name."""
    reason = ["PodFailurePolicy"]
    taken_away = {
        "name": "nodetakenaway",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": reason,
        "targetReplicatedJobs": ["train"],
    }
    wrong = {
        "name": "wrongcommand",
        "action": "FailJobSet",
        "onJobFailureReasons": reason,
        "targetReplicatedJobs": ["build"],
    }
    return {"maxRestarts": request.max_restarts, "rules": [taken_away, *([wrong] if request.build else [])]}


def _build_job(request: ManifestRequest) -> Document:
    resources = {"cpu": request.part_cpu, "memory": request.part_memory, "ephemeral-storage": request.part_disk}
    container: Document = {
        "name": "part",
        "image": request.image,
        "command": [*request.build_argv, "--part", f"auto/{request.parts}"],
        "resources": {"requests": resources},
    }
    rules: list[Document] = [
        {"action": "Ignore", "onPodConditions": [_TAKEN_AWAY]},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [WRONG_USAGE_CODE]}},
    ]
    spec: Document = {
        "completions": request.parts,
        "parallelism": request.parts,
        "completionMode": "Indexed",
        "backoffLimitPerIndex": 3,
        "successPolicy": {"rules": [{"succeededCount": 1}]},
        "podFailurePolicy": {"rules": rules},
        "template": {"spec": _pod(request, container, {})},
    }
    return {"name": "build", "replicas": 1, "template": {"spec": spec}}


def _training_job(request: ManifestRequest) -> Document:
    accelerator, hosts = request.accelerator, request.accelerator.hosts
    chips = accelerator.machine.chips
    container: Document = {
        "name": "train",
        "image": request.image,
        "command": list(texts(request.argv)),
        "env": [{"name": key, "value": value} for key, value in FRAMEWORKS[request.framework].items()],
        "resources": {"requests": {"google.com/tpu": str(chips)}, "limits": {"google.com/tpu": str(chips)}},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # the loader's processes pass batches
    }
    pod = _pod(request, container, _node_labels(request))
    pod["terminationGracePeriodSeconds"] = GRACE_S
    pod["volumes"] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    spec: Document = {
        "completions": hosts,
        "parallelism": hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,  # the hosts of a slice start again together
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onPodConditions": [_TAKEN_AWAY]}]},
        "template": {"spec": pod},
    }
    # All pods of the job get a node pool, which is a slice, to themselves.
    annotations = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    job: Document = {"name": "train", "replicas": 1}
    if request.build:
        job["dependsOn"] = [{"name": "build", "status": "Complete"}]
    return {**job, "template": {"metadata": {"annotations": annotations}, "spec": spec}}


def _pod(request: ManifestRequest, container: Document, selector: Mapping[str, str]) -> Document:
    pod: Document = {"restartPolicy": "Never"}
    if request.service_account:
        pod["serviceAccountName"] = request.service_account
    if selector:
        pod["nodeSelector"] = dict(selector)
        tolerated = [_MODE_LABELS[request.mode]] if request.mode in _MODE_LABELS else []
        tolerated += ["cloud.google.com/gke-queued"] if request.mode == "flex-start" else []
        if tolerated:
            pod["tolerations"] = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in tolerated]
    return {**pod, "containers": [container]}
