"""Manifests for GKE fit the published schemas, and say what has to happen when nodes are taken away."""

import pytest

from dataprep.cloud.tpu.manifest import MODES, ManifestRequest, job_set
from dataprep.errors import UsageError
from pipelines.engines import Part, part_of
from tests.support.kubernetes import fields, fits_kubernetes, misspelt

BUILD = "coco-dup5"
EVERYTHING = {
    "build": BUILD,
    "queue": "team-a",
    "namespace": "research",
    "service_account": "trainer",
    "mode": "flex-start",
    "max_run": "1d12h",
}


def manifest(accelerator: str = "v6e-16", **options):
    given = {"name": "mae", "image": "image", "argv": ["dataprep-pretrain-mae"], **options}
    return job_set(ManifestRequest(type=accelerator, **given))


def jobs(document) -> dict:
    return {job["name"]: job for job in document["spec"]["replicatedJobs"]}


def training_pod(document) -> dict:
    return jobs(document)["train"]["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("build", [None, BUILD])
def test_a_manifest_fits_the_published_schemas(mode, build):
    reservation = "r" if mode == "reservation" else None
    assert fits_kubernetes(manifest(mode=mode, reservation=reservation, build=build))


def test_every_misspelt_field_is_found():
    document = manifest(**EVERYTHING)
    assert fits_kubernetes(document)
    places = list(fields(document))
    assert len(places) > 60
    assert [place for place in places if fits_kubernetes(misspelt(document, place))] == []


@pytest.mark.parametrize(
    ("accelerator", "label", "topology", "hosts", "chips"),
    [
        ("v4-32", "tpu-v4-podslice", "2x2x4", 4, "4"),
        ("v5litepod-16", "tpu-v5-lite-podslice", "4x4", 4, "4"),
        ("v5p-128", "tpu-v5p-slice", "4x4x4", 16, "4"),
        ("v6e-8", "tpu-v6e-slice", "2x4", 1, "8"),
        ("v6e-256", "tpu-v6e-slice", "16x16", 64, "4"),
        ("tpu7x-1x1x1", "tpu7x", "1x1x1", 1, "1"),
        ("tpu7x-2x2x4", "tpu7x", "2x2x4", 4, "4"),
        ("tpu7x-8", "tpu7x", "2x2x1", 1, "4"),
    ],
)
def test_the_training_asks_for_the_nodes_of_its_slice(accelerator, label, topology, hosts, chips):
    document = manifest(accelerator)
    spec = jobs(document)["train"]["template"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (hosts, hosts, "Indexed")
    pod = training_pod(document)
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": label,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"google.com/tpu": chips}


def test_the_build_runs_in_all_parts_before_the_training():
    document = manifest(build=BUILD)
    assert list(jobs(document)) == ["build", "train"]
    assert jobs(document)["train"]["dependsOn"] == [{"name": "build", "status": "Complete"}]
    spec = jobs(document)["build"]["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"] == ["dataprep", "build", "coco-dup5", "--part", "auto/8"]
    assert spec["completions"] == 8
    assert [part_of("auto/8", {"JOB_COMPLETION_INDEX": str(n)}) for n in range(8)] == [Part(n, 8) for n in range(1, 9)]
    assert "dependsOn" not in jobs(manifest())["train"]


def test_nodes_that_are_taken_away_do_not_count_as_failures():
    """A pod of such a node fails its Job with PodFailurePolicy, and no other failure of the training does."""
    document = manifest(build=BUILD, max_restarts=3)
    policy = document["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 3
    taken_away, wrong = policy["rules"]
    assert (taken_away["action"], taken_away["targetReplicatedJobs"]) == (
        "RestartJobSetAndIgnoreMaxRestarts",
        ["train"],
    )
    assert (wrong["action"], wrong["targetReplicatedJobs"]) == ("FailJobSet", ["build"])
    spec = jobs(document)["train"]["template"]["spec"]
    assert spec["backoffLimit"] == 0
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]


def test_every_mode_names_its_nodes():
    spot = training_pod(manifest(mode="spot"))
    assert spot["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert [each["key"] for each in spot["tolerations"]] == ["cloud.google.com/gke-spot"]
    flex = manifest(mode="flex-start", queue="team-a")
    assert training_pod(flex)["nodeSelector"]["cloud.google.com/gke-flex-start"] == "true"
    assert flex["metadata"]["annotations"] == {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": "604800"}
    reserved = training_pod(manifest(mode="reservation", reservation="ironwood"))
    assert reserved["nodeSelector"]["cloud.google.com/reservation-name"] == "ironwood"


def test_a_queue_of_kueue_is_a_label():
    assert manifest(queue="team-a")["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team-a"}
    assert "labels" not in manifest()["metadata"]


@pytest.mark.parametrize("quantity", ["", "x", "-1", "1.5Gi", "3 Gi"])
def test_a_part_requests_quantities_of_kubernetes(quantity):
    with pytest.raises(UsageError, match="expected a Kubernetes quantity, such as 4, 500m or 3Gi"):
        manifest(build=BUILD, part_cpu="500m", part_memory=quantity)


@pytest.mark.parametrize(
    ("accelerator", "options", "said"),
    [
        ("v3-8", {}, "GKE's name for this generation is not known"),
        ("v4-24", {}, "its topology is not known; write it, e.g. v4:2x2x4"),
        ("v6e-8", {"name": "Mae"}, "not a name of a TPU"),
        ("v6e-8", {"queue": "a b"}, "`queue` 'a b': expected a name"),
        ("v6e-8", {"image": "a b"}, "`image` 'a b': expected one such as"),
        ("v6e-8", {"mode": "reservation"}, "belong together"),
        ("v6e-8", {"reservation": "r"}, "belong together"),
        ("v6e-8", {"max_run": "1d"}, "add `mode` flex-start"),
        ("v6e-8", {"mode": "flex-start", "max_run": "1d"}, "`max_run` 1d: only Kueue can request nodes for that long"),
        ("v6e-8", {"mode": "flex-start", "queue": "q", "max_run": "8d"}, "flex-start gives nodes for 7d at most"),
        ("v6e-8", {"mode": "flex-start", "queue": "q", "max_run": "soon"}, "expected a duration such as 7d"),
    ],
)
def test_what_gke_cannot_do_is_refused(accelerator, options, said):
    with pytest.raises(UsageError, match=said):
        manifest(accelerator, **options)
