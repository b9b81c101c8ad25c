"""Transforms that draw from generators of a whole process: seeded for each image, where the user draws nothing."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from dataprep.errors import StorageError, UsageError
from loaders import PilTransform, open_loader
from loaders.decode.seeding import seeded
from tests.support import pil_draws
from tests.support.markdown import ROOT, blocks
from tests.support.on_use import on_use

torch = on_use("torch")
IMAGE_HWC = np.zeros((16, 16, 3), np.uint8)
SETTINGS = {"batch_size": 12, "image_size": 16, "stall_s": 36_000.0}


def states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def test_generators_are_seeded_and_restored():
    random.seed(1)
    np.random.seed(1)
    before, drawn = states(), []
    for number in (7, 7, 8):
        with seeded(number):
            drawn.append((random.random(), float(np.random.rand())))
    assert drawn[0] == drawn[1]
    assert len({each for draws in drawn[1:] for each in draws}) == 4
    with pytest.raises(ValueError, match="inside"), seeded(0):
        raise ValueError("inside")
    assert states() == before


def test_one_thread_is_in_the_block_at_a_time():
    inside, order = threading.Event(), []

    def second() -> None:
        inside.wait()
        with seeded(1):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with seeded(0):
        inside.set()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_draws_in_the_users_thread_are_neither_taken_nor_repeated(dataset):
    """The user draws while threads of the loader transform: both are what they are alone."""
    random.seed(5)
    np.random.seed(5)
    alone = [(random.random(), float(np.random.rand())) for _ in range(40)]

    def run(**settings):
        random.seed(5)
        np.random.seed(5)
        draws, digest = [], hashlib.sha256()
        transform = PilTransform(pil_draws.shifted)
        with open_loader(dataset("webdataset"), **SETTINGS, transform=transform, **settings) as loader:
            for _, batch in zip(range(4), loader, strict=False):
                draws += [(random.random(), float(np.random.rand())) for _ in range(10)]
                digest.update(batch.images)
        return draws, digest.hexdigest()

    first, second = run(threads=2), run(threads=1)
    assert first[0] == second[0] == alone
    assert first[1] == second[1] == run(processes=1)[1]


def test_the_process_of_the_user_is_not_touched():
    transform, before = PilTransform(pil_draws.where), states()
    found = [transform(IMAGE_HWC, np.random.default_rng(3)) for _ in range(2)]
    assert states() == before
    assert found[0].tolist() == found[1].tolist()
    assert pil_draws.process_of(found[0]) == pil_draws.process_of(found[1]) != os.getpid()
    transform.close()
    assert pil_draws.process_of(transform(IMAGE_HWC, np.random.default_rng(3))) != pil_draws.process_of(found[0])


def test_processes_of_a_transform_end_with_it():
    transform = PilTransform(pil_draws.where)
    process = pil_draws.process_of(transform(IMAGE_HWC, np.random.default_rng(3)))
    os.kill(process, 0)
    del transform
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_an_error_comes_back_with_its_type_and_where_it_was_raised():
    with pytest.raises(ZeroDivisionError, match="of the transform's own") as caught:
        PilTransform(pil_draws.failing)(IMAGE_HWC, np.random.default_rng(3))
    assert "in failing" in str(caught.value.__cause__)


def test_a_process_that_dies_is_an_error():
    with pytest.raises(StorageError, match=r"the process of a transform died \(exit code 3\)"):
        PilTransform(pil_draws.dying)(IMAGE_HWC, np.random.default_rng(3))


def test_a_lambda_is_refused_in_one_line(dataset):
    with pytest.raises(UsageError, match=r"transform PilTransform cannot be sent .*; define it, .*in a module"):
        PilTransform(lambda image: image)(IMAGE_HWC, np.random.default_rng(3))
    with (
        open_loader(dataset("webdataset"), **SETTINGS, processes=1, transform=lambda image, rng: image) as loader,
        pytest.raises(UsageError, match=r"transform .*<lambda> cannot be sent .*; define it, .*in a module"),
    ):
        next(iter(loader))


def run(*arguments, program=None):
    """Run Python, which finds the modules of tests."""
    settings = {"cwd": ROOT, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "timeout": 800}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, input=program, capture_output=True, text=True, check=False, **settings)


NOTEBOOK = """
import numpy as np
from loaders import PilTransform, open_loader
def mine(image, rng): return image
def drawn(image): return image
if {wrapped}:
    PilTransform(drawn)(np.zeros((8, 8, 3), np.uint8), np.random.default_rng(0))
with open_loader({url!r}, batch_size=4, image_size=16, processes=1, transform=mine) as loader:
    next(iter(loader))
"""


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_function_of_a_notebook_is_refused_in_one_line(dataset, wrapped):
    program = NOTEBOOK.format(url=str(dataset("webdataset")), wrapped=wrapped)
    found = run("-c", program)
    assert found.returncode == 1
    assert found.stderr.count("Traceback") == 1
    assert "defined in a notebook" in found.stderr.splitlines()[-1]


UNGUARDED = """
import sys
from loaders import PilTransform, open_loader
from {module} import {name}
{code}
with open_loader({url!r}, batch_size=4, image_size=16, transform=PilTransform({name})) as loader:
    print(next(iter(loader)).images.shape)
"""


@pytest.mark.parametrize("own", [False, True])
def test_a_program_needs_a_guard_only_for_a_function_of_its_own(dataset, tmp_path, own):
    code = "def shifted(image): return image" if own else ""
    program = UNGUARDED.format(
        module="tests.support.pil_draws", name="shifted", code=code, url=str(dataset("webdataset"))
    )
    (tmp_path / "train.py").write_text(program)
    found = run(tmp_path / "train.py")
    if own:
        assert 'put the code that uses the loader under `if __name__ == "__main__":`' in found.stderr.splitlines()[-1]
    else:
        assert (found.returncode, found.stdout) == (0, "(4, 16, 16, 3)\n"), found.stderr


UNGUARDED_MAIN_GUARD = """
from loaders import open_loader

with open_loader({url!r}, batch_size=12, image_size=32, processes=2) as loader:
    for batch in loader:
        print(len(batch.keys))
"""


def test_a_program_without_the_guard_ends_with_one_error_that_names_it(dataset, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(UNGUARDED_MAIN_GUARD.format(url=str(dataset("webdataset"))))
    found = run(script)
    assert found.returncode == 1
    assert found.stderr.count("Traceback") == 1
    assert found.stderr.splitlines()[-1] == (
        "dataprep.errors.UsageError: processes=2: each worker process imports the program, and opened its loader "
        'again; put the code that uses the loader under `if __name__ == "__main__":`, or leave `processes` out'
    )
    assert found.stdout == ""


def test_a_program_from_a_pipe_is_refused(dataset):
    found = run("-", program=UNGUARDED_MAIN_GUARD.format(url=str(dataset("webdataset"))))
    assert found.stderr.count("Traceback") == 1
    assert "must be a file, got <stdin>; write it to a file" in found.stderr.splitlines()[-1]


def test_the_documented_program_runs(dataset, tmp_path):
    (text,) = (block.text for block in blocks("docs/loaders.md") if "processes=12" in block.text)
    for shown, small in (
        ('"gs://bucket/imagenet"', repr(str(dataset("webdataset")))),
        ("batch_size=1024", "batch_size=12, image_size=32"),
        ("processes=12", "processes=2"),
        ("step(batch.images, batch.labels)", "print(batch.images.shape[0])"),
    ):
        assert shown in text
        text = text.replace(shown, small)
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(text))
    found = run(script)
    assert found.stderr == ""
    assert set(found.stdout.split()) == {"12"}
