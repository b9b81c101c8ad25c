"""Libraries that tests import when they first use them: every worker of pytest-xdist collects every file, few run one.

    v2 = on_use("torchvision.transforms.v2")
    open_batches = on_use("loaders.grain:open_batches")

To import torchvision, timm, SciPy's statistics, Beam and the like takes ten seconds of a processor in each worker.
"""

from __future__ import annotations

import importlib
from typing import Any

PRIVATE = ("_", "pytest", "is_hypothesis", "hypothesis")
"""Beginnings of what pytest and its plugins ask of every name of a module that they collect."""


class _OnUse:
    """A module, or what a module holds, that is imported when an attribute of it is read or when it is called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _imported(self) -> Any:
        module, _, attribute = self._name.partition(":")
        found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._imported()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(PRIVATE):
            raise AttributeError(name)
        return getattr(self._imported(), name)


def on_use(name: str) -> Any:
    """Stand for `MODULE` or `MODULE:ATTRIBUTE`, which is imported on its first use."""
    return _OnUse(name)
