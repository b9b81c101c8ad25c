"""Deterministic, elastic, resumable loaders over datasets that `dataprep build` made or `dataprep adopt` indexed."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loaders.config import LoaderConfig
    from loaders.loader import Batch, Loader, open_loader

__all__ = ["Batch", "Loader", "LoaderConfig", "open_loader"]


def __getattr__(name: str) -> Any:
    if name == "LoaderConfig":
        from loaders.config import LoaderConfig

        return LoaderConfig
    if name in __all__:
        from loaders import loader

        return getattr(loader, name)
    raise AttributeError(f"module 'loaders' has no attribute {name!r}")
