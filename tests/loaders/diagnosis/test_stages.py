"""The stages of a run, as they are and as changes would make them."""

from dataclasses import replace

from loaders.config import LoaderConfig
from loaders.diagnosis.devices import parse_simulated
from loaders.diagnosis.fixes import find_fixes
from loaders.diagnosis.observed_run import RunSetup
from loaders.diagnosis.prediction import predict
from loaders.diagnosis.stages import StageBench, Stages

CONFIG = LoaderConfig(batch_size=4, image_size=32, threads=2, prefetch_batches=2)
FAST = parse_simulated("simulated:1e9")


def test_a_cache_and_a_nearer_bucket_are_predicted_without_the_far_buckets_latency(bucket_dataset, gcs, tmp_path):
    """Four reads at a time of 200 ms each: 20 images/s as it is, and no limit to what comes out of a cache."""
    config = replace(CONFIG, reads_in_flight=4)
    setup = RunSetup(url=bucket_dataset("imagefolder"), split="train", config=config)
    gcs.set_latency(200)
    try:
        with setup.open() as loader:
            stages = Stages(
                StageBench(
                    setup=setup,
                    device=FAST,
                    loader=loader,
                    batch=next(iter(loader)),
                    busy_cores=0.0,
                    seconds=0.1,
                    folder=tmp_path,
                    progress=lambda what: None,
                )
            )
            stages.measure_stages(4 / 0.2)
            predicted = predict(stages.rates(setup))
            fixes = {fix.name: fix for fix in find_fixes(stages, predicted.images_per_s, predicted, "fetch")}
    finally:
        gcs.set_latency(0)

    two_batches = 2 * 4 / 0.2  # are under way at once, and come every 200 ms
    for fix in (fixes["cache"], fixes["location"]):  # on a busy machine the processor may be the limit then
        assert fix.predicted_images_per_s > 1.5 * two_batches or fix.limit == "cores", fix
