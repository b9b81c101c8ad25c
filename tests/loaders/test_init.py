"""The door of `loaders`: what it exports, and what importing it loads."""

from __future__ import annotations

import ast
import pydoc
import re
import subprocess
import sys

import pytest

import loaders
from dataprep.errors import UsageError
from loaders.config import MAX_THREADS, LoaderConfig, LoaderSettings
from tests.support.markdown import ROOT

ADAPTERS = ("grain", "jax", "tf", "torch", "xla")
PAGE_LINES = 66
MAX_MODULES = 35
"""Modules of dataprep that `from loaders import open_loader` may load."""
ABOVE = ("adopt", "build", "cli", "commands", "demo", "fetched", "inspection", "pages", "sources", "verify", "web")
"""Rooms of dataprep that loading never needs."""
LOADED = (
    "import sys; {}; rooms = sorted(name for name in sys.modules if name.split('.')[0] == 'dataprep'); print(*rooms)"
)

WRONG = [
    (
        {"procesess": 3},
        'Unexpected keyword argument "procesess" for "open_loader"; did you mean "processes"?',
        "no setting procesess; did you mean processes? There are augment, ",
    ),
    (
        {"image_size": "big"},
        'Argument "image_size" to "open_loader" has incompatible type "str"; expected "int"',
        "image_size must be a whole number, got 'big'",
    ),
    (
        {"scale": 7},
        'Argument "scale" to "open_loader" has incompatible type "int"; expected "tuple[float, float]',
        "scale must be a pair of numbers, got 7",
    ),
    (
        {"decoder": "extensoin"},
        'Argument "decoder" to "open_loader" has incompatible type "Literal[\'extensoin\']"; expected',
        "decoder must be one of auto, extension, library, got 'extensoin'; did you mean extension?",
    ),
    (
        {"fields": "caption"},
        'Argument "fields" to "open_loader" has incompatible type "str"; expected "tuple[str, ...]',
        "fields must be a tuple of names, got 'caption'",
    ),
    (
        {"shuffle": "no"},
        'Argument "shuffle" to "open_loader" has incompatible type "str"; expected "bool | None"',
        "shuffle must be True or False, got 'no'",
    ),
]
"""Settings, what mypy says of them, and what `open_loader` says."""


def modules_after(statements: str) -> list[str]:
    """Modules of dataprep that a fresh process has loaded after some statements."""
    program = LOADED.format(statements)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


def body_of(name: str) -> list[ast.stmt]:
    """Statements of an adapter."""
    return ast.parse((ROOT / f"loaders/{name}.py").read_text()).body


def public_names(name: str) -> list[str]:
    """What `__all__` of an adapter lists."""
    lists = {ast.unparse(node.targets[0]): node.value for node in body_of(name) if isinstance(node, ast.Assign)}
    found: list[str] = ast.literal_eval(lists["__all__"])
    return found


def test_every_public_name_is_exported_and_documented():
    assert list(loaders.__all__) == sorted(loaders.__all__)
    for name in loaders.__all__:
        assert getattr(loaders, name).__doc__, name
    lines = re.findall(r"^(\w+(?:, \w+)*) {2,}\S", loaders.__doc__, re.MULTILINE)
    assert sorted(name for line in lines for name in line.split(", ")) == loaders.__all__
    with pytest.raises(AttributeError, match=r"module 'loaders' has no attribute 'open_loadr'"):
        loaders.open_loadr  # noqa: B018


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_lists_the_public_names_that_it_defines(name):
    """Adapters are read and not imported, as they import their frameworks."""
    defined = [node.name for node in body_of(name) if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
    assert public_names(name) == sorted(each for each in defined if not each.startswith("_"))


def test_defaults_in_the_guide_are_those_of_the_settings():
    guide, config = " ".join((ROOT / "docs/loaders.md").read_text().split()), LoaderConfig(batch_size=1)
    for shown in (
        f"blocks of about {config.block_bytes >> 20} MiB, distributes them over {config.num_streams} streams",
        f"divides {config.num_streams} evenly, no two",
        f"`prefetch_bytes` ({config.prefetch_bytes >> 30} GiB)",
        f"one thread per core, up to {MAX_THREADS}",
    ):
        assert shown in guide
    assert config.window == 2, "mixes two blocks"


def test_help_fits_on_a_page():
    page = pydoc.plain(pydoc.render_doc(loaders))
    assert len(page.splitlines()) <= PAGE_LINES
    assert all(name in page for name in loaders.__all__)


def test_importing_open_loader_loads_few_modules():
    loaded = modules_after("from loaders import open_loader")
    assert len(loaded) <= MAX_MODULES, loaded
    assert [name for name in loaded if name.split(".")[1:2] in [[room] for room in (*ABOVE, "cloud", "storage")]] == []


def test_loading_from_a_disk_imports_no_package_of_a_higher_layer(dataset):
    load = f"from loaders import open_loader; next(iter(open_loader({str(dataset('webdataset'))!r}, batch_size=4)))"
    loaded = modules_after(load)
    assert [name for name in loaded if name.split(".")[1:2] in [[room] for room in (*ABOVE, "cloud")]] == []
    assert [name for name in loaded if "gcs" in name] == []


def test_settings_of_open_loader_are_those_of_the_config():
    wider = {
        **dict.fromkeys(("shuffle", "augment"), "bool | None"),
        **dict.fromkeys(("scale", "ratio"), "tuple[float, float] | list[float]"),
        "fields": "tuple[str, ...] | list[str]",
        "cache_dir": "str | PathLike[str] | None",
        "index": "str | PathLike[str] | None",
    }
    fields = LoaderConfig.__dataclass_fields__
    config = {name: field.type for name, field in fields.items() if name not in ("batch_size", "packs", "view_groups")}
    settings = {name: kind.__forward_arg__ for name, kind in LoaderSettings.__annotations__.items()}
    assert settings == config | wider


@pytest.mark.parametrize(("settings", "message"), [(settings, said) for settings, _, said in WRONG], ids=str)
def test_a_wrong_setting_is_a_usage_error(settings, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        loaders.open_loader("shards", batch_size=8, **settings)
