"""numpy and pyarrow, imported when they are first used: help texts and the start of a build need neither.

from dataprep.arrays import np, pa
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["NDArray", "np", "pa", "pc", "pq"]


class _OnFirstUse(ModuleType):
    """A module that becomes a copy of the one with its name, and as fast, when an attribute is first asked for."""

    def __getattr__(self, name: str) -> Any:
        vars(self).update(vars(import_module(self.__name__)))
        self.__class__ = ModuleType  # type: ignore[assignment]
        return getattr(self, name)


if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from numpy.typing import NDArray
else:
    np, pa, pc, pq = map(_OnFirstUse, ("numpy", "pyarrow", "pyarrow.compute", "pyarrow.parquet"))
    NDArray = "numpy.typing.NDArray"  # for annotations, which nothing evaluates
