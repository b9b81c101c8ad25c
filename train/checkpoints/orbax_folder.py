"""Checkpoints by Orbax: every process of JAX writes its own part of each array, on a disk or gs://.

    checkpoint-000000400.orbax/     a folder: `arrays`, which Orbax shards, and `document`, JSON, with everything else

Orbax writes into a folder with another name, which gets this one when all processes are done. The document lists the
arrays' shapes, so that a checkpoint of another model is recognised before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.arrays import np
from dataprep.errors import FormatError, UsageError, needing
from train.checkpoints.checkpoint import CheckpointFolder
from train.checkpoints.files import ARRAYS, DOCUMENT, NUMPY, ORBAX, Checkpoint, State

if TYPE_CHECKING:
    import jax

_SHAPES = "shapes"


class OrbaxFolder(CheckpointFolder):
    """Writes, finds and reads checkpoints of all processes together.

    Args:
        url: A folder or gs://bucket/prefix that all processes see.
        keep: Number of newest checkpoints to keep, 1 or more.
        like: Arrays by their names, as the run has them: arrays of an Orbax checkpoint are read with the same
            shardings, whatever the number of processes that wrote them. None: all values are read into this host's
            memory.
    """

    takes_parts = True

    def __init__(self, url: str, *, keep: int = 3, like: Mapping[str, jax.Array] | None = None) -> None:
        super().__init__(url, keep=keep, codec=NUMPY)
        self._like = like

    def save(self, step: int, state: State) -> Checkpoint | None:
        """Write a state; all processes call this.

        Args:
            step: Number of steps that were done.
            state: JSON values, and arrays of JAX by their names.

        Returns:
            The checkpoint in the first process, None in the others.
        """
        import jax
        import orbax.checkpoint as ocp

        arrays = state[ARRAYS]
        document = {name: value for name, value in state.items() if name != ARRAYS}
        document[_SHAPES] = {name: list(each.shape) for name, each in arrays.items()}
        target = _path(self.url) / _name_of(step)
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            checkpointer.save(
                target,
                ocp.args.Composite(
                    **{ARRAYS: ocp.args.StandardSave(_nested(arrays)), DOCUMENT: ocp.args.JsonSave(document)}
                ),
                force=True,
            )
        if jax.process_index():
            return None
        saved = Checkpoint(_name_of(step), step, "")
        self._forget_older(saved)
        return saved

    def load(self, checkpoint: Checkpoint) -> State:
        """Read a state. If Orbax wrote it, every process reads its own part of the arrays, or without `like` all.

        Raises:
            UsageError: The arrays are of another model, or the library that reads them is not installed.
            FormatError: The checkpoint is damaged.
        """
        if checkpoint.name.endswith(ORBAX):
            return load_orbax(f"{self.url}/{checkpoint.name}", self._like)
        return super().load(checkpoint)


def load_orbax(url: str, like: Mapping[str, jax.Array] | None = None) -> State:
    """Read the state of one checkpoint.

    Args:
        url: Path or URL of its folder.
        like: Arrays by their names, whose shardings are taken; None: all values are read into this host's memory.

    Raises:
        UsageError: JAX is not installed, or the arrays are of another model.
        FormatError: The checkpoint is damaged.
    """
    with needing("jax", url):
        import orbax.checkpoint as ocp

    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            wanted = ocp.args.Composite(**{DOCUMENT: ocp.args.JsonRestore()})
            document = checkpointer.restore(_path(url), wanted)[DOCUMENT]
            targets = _targets(url, document.pop(_SHAPES), like)
            wanted = ocp.args.Composite(**{ARRAYS: ocp.args.StandardRestore(_nested(targets))})
            arrays = checkpointer.restore(_path(url), wanted)[ARRAYS]
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise FormatError(f"{url}: damaged ({str(error).splitlines()[0]})") from None
    found: State = {**document, ARRAYS: dict(_flat(arrays))}
    return found


def remove_orbax(url: str) -> None:
    """Remove the folder of one checkpoint."""
    _path(url).rmtree()


def _targets(url: str, shapes: Mapping[str, list[int]], like: Mapping[str, jax.Array] | None) -> dict[str, Any]:
    """Return the target of each array for Orbax: an array on the devices, as `like` has it, or else a NumPy array.

    Without a target Orbax lays an array out for the devices that wrote it, and fails if the devices differ.
    """
    import jax

    targets: dict[str, Any] = {}
    for name, shape in shapes.items():
        own = (like or {}).get(name)
        if own is not None and tuple(shape) != own.shape:
            raise UsageError(f"{url}: {name}: {tuple(shape)}, in this model {own.shape}; use the flags of its run")
        dtype = np.int32 if name.endswith("/count") else np.float32
        if own is None:
            targets[name] = np.broadcast_to(dtype(0), tuple(shape))  # takes no memory
        else:
            targets[name] = jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=own.sharding)
    return targets


def _nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, each in arrays.items():
        *folders, last = name.split("/")
        inner = tree
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[last] = each
    return tree


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in tree.items():
        if isinstance(each, Mapping):
            yield from _flat(each, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", each


def _name_of(step: int) -> str:
    return f"checkpoint-{step:09d}{ORBAX}"


def _path(url: str) -> Any:
    from etils import epath

    return epath.Path(url if "://" in url else Path(url).absolute())
