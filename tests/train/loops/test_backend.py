"""Backends: each answers all that the loop asks, and no import of one brings the other's framework."""

import ast
import subprocess
import sys

import pytest

from tests.support.markdown import ROOT


def class_of(module, name):
    tree = ast.parse((ROOT / "train/loops" / f"{module}.py").read_text())
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


@pytest.mark.parametrize(("module", "name"), [("torch", "TorchBackend"), ("jax", "JaxBackend")])
def test_a_backend_has_every_member_of_the_protocol(module, name):
    members = [node for node in class_of("backend", "Backend").body if isinstance(node, ast.FunctionDef)]
    without_default = {node.name for node in members if not isinstance(node.body[-1], ast.Return)}
    kind = class_of(module, name)
    methods = {node.name for node in kind.body if isinstance(node, ast.FunctionDef)}
    assigned = {target.id for node in kind.body if isinstance(node, ast.Assign) for target in node.targets}
    assert len(without_default) > 10
    assert without_default - methods - assigned == set()


@pytest.mark.parametrize(
    ("imported", "absent"), [("train.loops.jax, train.train_resnet_jax", "torch"), ("train.loops.torch", "jax")]
)
def test_no_backend_imports_the_framework_of_another(imported, absent):
    program = f"import sys, {imported}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=800).returncode == 0
