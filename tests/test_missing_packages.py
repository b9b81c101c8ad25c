"""Frameworks that are not installed: each import and each program says in one line which command installs them."""

import json
import re
import subprocess
import sys

import pytest

ABSENT = ("torch", "torchvision", "torch_xla", "jax", "flax", "optax", "tensorflow", "grain", "cv2", "ray")
IMPORTS = {
    "import loaders.torch": "torch",
    "import train.models.encoders": "torch",
    "from loaders import TorchBatches": "torch",
    "import loaders.grain": "grain",
    "import loaders.xla": "xla",
    "import loaders.jax; loaders.jax.host_rank()": "jax",
    "import loaders.tf; loaders.tf.dataset(None)": "tf",
    "from pipelines.engines import engine_module; engine_module('ray')": "ray",
    "from dataprep.fetched.collect import _cv2; _cv2()": "laion",
}
"""Imports that need a framework, with the extra that installs it."""
TRAIN = ("--data-path", "x", "--device", "cpu")
PROGRAMS = {
    "dataprep train resnet": (TRAIN, "torch"),
    "dataprep train finetune-mae": (TRAIN, "torch"),
    "dataprep train pretrain-mae": (TRAIN, "torch"),
    "dataprep train vit": (TRAIN, "torch"),
    "dataprep train vit ": (("--plan",), "torch"),
    "dataprep train export": (("a.pth", "b.pth"), "torch"),
    "dataprep train resnet-jax": (("--workdir", "x", "--config.dataset.root", "x"), "jax"),
    "dataprep train vit  ": ((*TRAIN, "--framework", "jax"), "jax"),
    "-m train.train_resnet": (TRAIN, "torch"),
    "-m train.finetune_mae": (TRAIN, "torch"),
    "-m train.export": (("a.pth", "b.pth"), "torch"),
    "dataprep diagnose": (("x", "--device", "cuda", "--model", "resnet50"), "torch"),
}
"""Programs with arguments, and the extra that installs what they need."""
CODE = f"""
import contextlib, io, json, runpy, sys


class Absent:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Absent())
from dataprep.cli import main
found = {{}}
for text in {list(IMPORTS)!r}:
    try:
        exec(text)
    except ImportError as error:
        found[text] = [getattr(error, "exit_code", None), str(error)]
for text, (arguments, _) in {PROGRAMS!r}.items():
    sys.argv = [*text.split(), *arguments]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True) if sys.argv[0] == "-m" else main()
        except SystemExit as ended:
            found[text] = [ended.code, said.getvalue().removesuffix("\\n")]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[int, str]]:
    """How each import and each program ends in a process that has none of the frameworks."""
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize(
    ("name", "extra"), [*IMPORTS.items(), *((name, extra) for name, (_, extra) in PROGRAMS.items())]
)
def test_a_missing_framework_is_one_line_with_the_command_that_installs_it(found, name, extra):
    code, line = found[name]
    assert code == 2
    assert re.search(rf": No module named '\w+'; pip install 'tpu-dataprep\[{extra}\]'$", line)
    assert "\n" not in line
