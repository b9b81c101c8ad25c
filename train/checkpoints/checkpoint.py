"""Folders or buckets of checkpoints: each is complete or absent, and read only after its digest was compared.

Creating the name commits a checkpoint: it is created, never replaced, from a complete file, and it holds
the digest of the file's bytes.

    evaluated/checkpoint-000000020-….pth    empty: the run has evaluated it after saving it
    branches/000001.json    {"version": 1, "after": "checkpoint-000000020-….pth", "left": ["checkpoint-000000040-…"]}

A run that goes back to an earlier checkpoint begins a branch, which such a file records: the checkpoints that are not
before it are left. They stay in the folder, but the run neither goes on with them nor counts them. The newest file
holds.

    checkpoint-000000400.orbax/     a folder: `arrays`, which Orbax shards, and `document`, JSON, with everything else

By Orbax every process of JAX writes its own part of each array, into a folder with another name, which gets this one
when all processes are done. The document lists the arrays' shapes, so that a checkpoint of another model is recognised
before anything is read.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from dataprep.arrays import np
from dataprep.dataset.adopted import open_linked
from dataprep.dataset.documents import decode
from dataprep.errors import FormatError, UsageError, needing
from dataprep.storage import disk_errors, open_storage
from dataprep.storage.base import read_bounded
from dataprep.storage.checksums import crc32c_of_file
from train.checkpoints import files

if TYPE_CHECKING:
    import jax

PARENTS = "parents"
"""Entry of a state with the names of the checkpoints before it in its branch that were kept, the newest first."""
_BRANCHES, _BRANCH_NAME = "branches/", re.compile(r"branches/\d{6}\.json")
_MAX_BRANCH_BYTES = 1 << 20
_EVALUATED = "evaluated/"
_DAMAGED = "damaged"
"""Folder of checkpoints that were found damaged."""
_SHAPES = "shapes"


class _Branch(TypedDict):
    version: Literal[1]
    after: str
    left: list[str]


class CheckpointFolder:
    """Writes, finds and reads checkpoints.

    Args:
        url: A folder or gs://bucket/prefix.
        keep: Number of newest checkpoints to keep, 1 or more.
        codec: File format of the framework that trains.
    """

    takes_parts = False
    """Whether every host saves its part of a state; otherwise the first one saves all of it."""
    is_own = False
    """Whether every host has a folder of its own, on its own disk."""

    def __init__(self, url: str, *, keep: int = 3, codec: files.Codec = files.TORCH) -> None:
        self._storage = open_storage(url)
        self._keep, self._codec = keep, codec

    @property
    def url(self) -> str:
        """URL of the folder."""
        return self._storage.url

    def list(self) -> list[files.Checkpoint]:
        """List the checkpoints of every kind by step, the newest first; whether they are valid is not known yet."""
        found = (files.find_checkpoint(info.name) for info in self._storage.list())
        checkpoints = {each for each in found if each is not None}
        return sorted(checkpoints, key=lambda each: (each.step, each.digest), reverse=True)

    def current(self) -> Sequence[files.Checkpoint]:
        """List the checkpoints of the branch in use, the newest first."""
        left = self._left()
        return [each for each in self.list() if each.name not in left]

    def at_step(self, step: int) -> str:
        """Return the URL of the checkpoint of a step, of the branch in use if it has one. Raises UsageError if there is
        none, or only several of branches that were left."""
        found = [each for each in self.current() if each.step == step][:1]
        found = found or [each for each in self.list() if each.step == step]
        if len(found) != 1:
            what = "several checkpoints" if found else "no checkpoint"
            names = ", ".join(each.name for each in found or self.list()) or "none"
            raise UsageError(
                f"{self.url}: {what} of step {step:,} among {names}; give `resume` the path of one, or `automatic`"
            )
        return f"{self.url}/{found[0].name}"

    def begin_branch(self, after: str, parents: Sequence[str] | None) -> None:
        """Go on after a checkpoint, and leave those that are neither it nor before it.

        Args:
            parents: Names of those before it, as its state has them; None: all of an earlier step.
        """
        listed = self.list()
        if parents is None:
            step = next((each.step for each in listed if each.name == after), 0)
            parents = [each.name for each in self.current() if each.step < step]
        self._leave(after, {each.name for each in listed} - {after, *parents})

    def _leave(self, after: str, left: set[str]) -> None:
        if left == self._left():
            return
        number = max((int(Path(name).stem) for name in self._branches()), default=0) + 1
        document = _Branch(version=1, after=after, left=sorted(left))
        self._storage.create(f"{_BRANCHES}{number:06d}.json", (json.dumps(document, indent=1) + "\n").encode())

    def _branches(self) -> Sequence[str]:
        return sorted(info.name for info in self._storage.list(_BRANCHES) if _BRANCH_NAME.fullmatch(info.name))

    def _left(self) -> set[str]:
        """Return the names of the checkpoints that the branch in use has left."""
        for name in self._branches()[-1:]:
            where, advice = self._storage.url_of(name), "remove it to go on with the newest checkpoint of all"
            data = read_bounded(self._storage, name, _MAX_BRANCH_BYTES, advice=advice)
            if data is not None:
                return set(decode(data, _Branch, where=where, advice=advice)["left"])
        return set()

    def note_evaluated(self, step: int) -> None:
        """Record that the checkpoint of a step was evaluated after it was saved, so that it is not evaluated again."""
        for each in self.current():
            if each.step == step:
                self._storage.create(f"{_EVALUATED}{each.name}", b"")

    def is_evaluated(self, name: str) -> bool:
        """Return whether a checkpoint was evaluated after it was saved."""
        return any(info.name == f"{_EVALUATED}{name}" for info in self._storage.list(_EVALUATED))

    def remove_unfinished(self) -> None:
        """Remove the remains of interrupted saves. Raises UsageError for a place that is only read."""
        self._storage.remove_stale_spools()

    def save(self, step: int, state: files.State) -> files.Checkpoint | None:
        """Write a state, then remove the checkpoints that are too old. If it is killed, older checkpoints are intact.

        Args:
            step: Number of steps that were done.
            state: Dictionaries, lists, numbers, text, and tensors or arrays on the host.

        Returns:
            The checkpoint; None if another host writes it.
        """
        storage = self._storage
        storage.remove_stale_spools()
        spool = storage.spool_path(f"checkpoint.{self._codec.suffix}")
        with disk_errors(spool):
            self._codec.write(state, spool)
            digest = files.digest_of(spool)
        checkpoint = files.Checkpoint(f"checkpoint-{step:09d}-{digest}.{self._codec.suffix}", step, digest)
        storage.publish(spool, checkpoint.name, crc32c_of_file(spool))
        storage.remove_stale_spools()  # and the folder of spool files, which is empty now
        self._forget_older(checkpoint)
        return checkpoint

    def load(self, checkpoint: files.Checkpoint) -> files.State:
        """Read a state as it was saved, tensors on the host.

        Raises:
            FormatError: The bytes do not have the digest in the name, or are not a state.
            UsageError: The library that reads it is not installed.
        """
        if checkpoint.name.endswith(files.ORBAX):
            return load_orbax(f"{self.url}/{checkpoint.name}")
        if checkpoint.is_list:
            with needing("torch", self._storage.url_of(checkpoint.name)):
                from train.checkpoints.parts import load_parts  # needs torch, which JAX's checkpoints do without

            return load_parts(self._storage, checkpoint)
        with files.on_disk(self._storage, checkpoint.name) as path:
            return files.load_file(path, checkpoint.digest, files.NUMPY if checkpoint.is_jax else files.TORCH)

    def newest_valid(
        self, tell: Callable[[str], None], *, move_damaged: bool = False
    ) -> tuple[files.Checkpoint, files.State] | None:
        """Return the newest checkpoint of the branch in use that is not damaged, and its state; None if there is none.

        Args:
            tell: Called with a line for each damaged checkpoint, which is skipped, with the reason.
            move_damaged: Move the damaged ones into the folder `damaged/`, if there is an older one to continue: they
                neither count as kept checkpoints, nor take names that the run writes again. Orbax checkpoints stay,
                because a run replaces them.

        Raises:
            UsageError: The newest one is of a kind that cannot be read or continued here.
        """
        damaged: list[files.Checkpoint] = []
        for checkpoint in self.current():
            if checkpoint.is_jax and self._codec is files.TORCH:
                raise UsageError(
                    f"{self.url}/{checkpoint.name}: the newest checkpoint here is of JAX; continue it with "
                    "`framework` jax, give `resume` the path of one of PyTorch, or choose another `output_dir`"
                )
            try:
                state = self.load(checkpoint)
            except (FormatError, FileNotFoundError) as error:
                tell(f"{error}; skipped")
                damaged.append(checkpoint)
                continue
            for each in damaged if move_damaged else ():
                self._move_aside(each, tell)
            return checkpoint, state
        return None

    def _move_aside(self, checkpoint: files.Checkpoint, tell: Callable[[str], None]) -> None:
        name, aside = checkpoint.name, f"{_DAMAGED}/{checkpoint.name}"
        if name.endswith(files.ORBAX):
            return
        self._storage.delete(aside)
        with contextlib.suppress(FileNotFoundError), files.on_disk(self._storage, name) as path:
            spool = self._storage.spool_path(name)
            with disk_errors(spool):
                shutil.copyfile(path, spool)
            self._storage.publish(spool, aside, crc32c_of_file(spool))
            self._storage.delete(name)
            tell(f"moved to {self._storage.url_of(aside)}")
        self._storage.remove_stale_spools()

    def _forget_older(self, saved: files.Checkpoint) -> None:
        if saved.name in (left := self._left()):  # this branch has come to the same bytes
            self._leave(saved.name, left - {saved.name})
        # The other framework's checkpoints stay, too: it may continue them if this framework's cannot be continued.
        own = [each for each in self.current() if each.is_jax == (self._codec is files.NUMPY)]
        older = [each for each in own if each.step <= saved.step][self._keep :]
        for each in older:
            self._remove(each)
        if any(each.is_list for each in older):
            from train.checkpoints.parts import remove_unlisted_parts

            remove_unlisted_parts(self._storage, self.list())

    def _remove(self, checkpoint: files.Checkpoint) -> None:
        self._storage.delete(f"{_EVALUATED}{checkpoint.name}")
        if checkpoint.name.endswith(files.ORBAX):
            _epath(f"{self.url}/{checkpoint.name}").rmtree()
        else:
            self._storage.delete(checkpoint.name)


def load_any(url: str, own: CheckpointFolder | None = None) -> files.State:
    """Read the complete state at a path or gs:// URL of one checkpoint; compare the digest if the name holds one.

    Args:
        url: Path or URL.
        own: Folder of the run, which reads the checkpoints that are in it; None: there is no run.

    Raises:
        UsageError: There is no such file.
        FormatError: The file is damaged, or is not a state.
    """
    folder, _, name = url.rpartition("/")
    if name.endswith(files.ORBAX):
        return load_orbax(url)
    if not name or Path(url).is_dir():
        raise UsageError(f"{url}: a folder, expected a file, e.g. {url.rstrip('/')}/checkpoint-000000400-….pth")
    codec = files.NUMPY if name.endswith(f".{files.NUMPY.suffix}") else files.TORCH
    named = codec.parse(name)
    try:
        if named is not None:
            place = CheckpointFolder(folder or ".", codec=codec)
            return (own if own is not None and own.url == place.url else place).load(named)
        with files.on_disk(open_linked(folder or "."), name) as path:
            return files.load_file(path, None, codec)
    except FileNotFoundError:
        raise UsageError(f"{url}: no checkpoint found; give the path or URL of one") from None


class OrbaxFolder(CheckpointFolder):
    """Writes, finds and reads checkpoints of all processes together.

    Args:
        like: Arrays by their names, as the run has them: arrays of an Orbax checkpoint are read with the same
            shardings, whatever the number of processes that wrote them. None: all values are read into this host's
            memory.
    """

    takes_parts = True

    def __init__(self, url: str, *, keep: int = 3, like: Mapping[str, jax.Array] | None = None) -> None:
        super().__init__(url, keep=keep, codec=files.NUMPY)
        self._like = like

    def save(self, step: int, state: files.State) -> files.Checkpoint | None:
        """Write a state of JSON values and JAX's arrays; all processes call this, the first gets the checkpoint."""
        import jax
        import orbax.checkpoint as ocp

        arrays = state[files.ARRAYS]
        document = {name: value for name, value in state.items() if name != files.ARRAYS}
        document[_SHAPES] = {name: list(each.shape) for name, each in arrays.items()}
        target = _epath(self.url) / _name_of(step)
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            saved_arrays = ocp.args.StandardSave(_nested(arrays))
            entries = {files.ARRAYS: saved_arrays, files.DOCUMENT: ocp.args.JsonSave(document)}
            checkpointer.save(target, ocp.args.Composite(**entries), force=True)
        if jax.process_index():
            return None
        saved = files.Checkpoint(_name_of(step), step, "")
        self._forget_older(saved)
        return saved

    def load(self, checkpoint: files.Checkpoint) -> files.State:
        """Read a state. If Orbax wrote it, every process reads its own part of the arrays, or without `like` all.

        Raises:
            UsageError: The arrays are of another model, or the library that reads them is not installed.
            FormatError: The checkpoint is damaged.
        """
        if checkpoint.name.endswith(files.ORBAX):
            return load_orbax(f"{self.url}/{checkpoint.name}", self._like)
        return super().load(checkpoint)


def load_orbax(url: str, like: Mapping[str, jax.Array] | None = None) -> files.State:
    """Read the state of one checkpoint.

    Args:
        like: Arrays by their names, whose shardings are taken; None: all values are read into this host's memory.

    Raises:
        UsageError: JAX is not installed, or the arrays are of another model.
        FormatError: The checkpoint is damaged.
    """
    with needing("jax", url):
        import orbax.checkpoint as ocp

    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            wanted = ocp.args.Composite(**{files.DOCUMENT: ocp.args.JsonRestore()})
            document = checkpointer.restore(_epath(url), wanted)[files.DOCUMENT]
            targets = _nested(_targets(url, document.pop(_SHAPES), like))
            wanted = ocp.args.Composite(**{files.ARRAYS: ocp.args.StandardRestore(targets)})
            arrays = checkpointer.restore(_epath(url), wanted)[files.ARRAYS]
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise FormatError(f"{url}: damaged ({str(error).splitlines()[0]})") from None
    found: files.State = {**document, files.ARRAYS: dict(named_leaves(arrays))}
    return found


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


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a tree of JAX by their names, e.g. `params/conv_init/kernel`."""
    import jax

    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def _name_of(step: int) -> str:
    return f"checkpoint-{step:09d}{files.ORBAX}"


def _epath(url: str) -> Any:
    from etils import epath

    return epath.Path(url if "://" in url else Path(url).absolute())
