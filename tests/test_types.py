"""What a type checker says of a user's script: nothing of a correct one, and each misspelt name and wrong type."""

from tests.loaders.test_init import WRONG
from tests.support.markdown import ROOT

RIGHT = """
import dataprep
from loaders import Batch, Loader, LoaderConfig, LoaderSettings, PilTransform, open_decoder, open_loader, read_fields
from loaders import AnnotationFields, AnnotationTransform, Mixture, MixtureSource, TorchvisionTransform, mixture

settings: LoaderSettings = {"seed": 1, "fields": ("caption",)}
open_loader("gs://bucket/imagenet", "val", batch_size=8, **settings).close()
with open_loader("gs://bucket/imagenet", batch_size=8, image_size=192, shuffle=None, cache_dir="cache") as loader:
    for batch in loader:
        names: list[str] = batch.keys
        rows: int = batch.images.shape[0]
mixed: Mixture = mixture([("gs://bucket/coco", 0.5), ("pets", 3, "val"), MixtureSource(url="b", at_end="drop")])
open_loader(mixed, batch_size=8, seed=1).close()
open_loader(mixture("mix.json"), "val", batch_size=8).close()
decoder: str = open_decoder("bilinear", "library").name
moved = AnnotationTransform(AnnotationFields(masks="segmentation"))
open_loader("coco", batch_size=8, fields=moved.needed_fields, transform=moved).close()
open_loader("coco", batch_size=8, transform=TorchvisionTransform(lambda image: image)).close()
config = LoaderConfig(batch_size=8, scale=(0.08, 1.0), on_error="skip")
caption = read_fields("webdataset", b"", ("caption",))
dataprep.build_folder(source="a", output="b", format="webdataset", resize=256, split=["train"])
"""
WRONG_CALLS = {
    'dataprep.build_folder(sorce="a", output="b", format="webdataset")': 'Unexpected keyword argument "sorce"',
    'dataprep.build_folder(source="a", output="b", format="webdataset", resize="256")': 'Argument "resize"',
    'dataprep.verify("a", deep=1)': 'Argument "deep"',
    'dataprep.build_table(source="a", output="b", format="web")': 'Argument "format"',
    **{
        f'open_loader("shards", batch_size=8, {name}={value!r})': said
        for settings, said, _ in WRONG
        for name, value in settings.items()
    },
}


def test_a_type_checker_finds_every_wrong_call_and_nothing_else(tmp_path):
    """`make lint` has filled the cache."""
    from mypy import api

    (tmp_path / "script.py").write_text(RIGHT + "\n".join(WRONG_CALLS))
    printed, _, code = api.run(["--strict", f"--config-file={ROOT / 'setup.cfg'}", str(tmp_path / "script.py")])
    found = [line.split(":", 2) for line in printed.splitlines() if ": error:" in line]
    first = RIGHT.count("\n") + 1
    assert (code, [int(line) for _, line, _ in found]) == (1, list(range(first, first + len(WRONG_CALLS)))), printed
    for (_, _, printed_line), said in zip(found, WRONG_CALLS.values(), strict=True):
        assert printed_line.startswith(f" error: {said}"), printed
