"""User-defined dataset classes: an `ImageDataset` lists where each image is, and dataprep does everything else.

A class is named by `module:NAME`, or by an entry point in the group `dataprep.datasets`. It is imported only to plan a
dataset: workers, `verify` and loaders do not need it. The images that it yields are checked like any other input.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, ClassVar

from dataprep.dataset.features import Feature, Features, annotations_json, feature_faults
from dataprep.dataset.paths import named
from dataprep.dataset.records import ALL_FILES, NO_LABEL, Enumeration, SampleRef, SourceFile
from dataprep.dataset.spill import SpilledReferences
from dataprep.errors import DataprepError, FormatError, SourceError, UsageError
from dataprep.formats.base import is_key
from dataprep.host.processes import find_modules_here
from dataprep.messages import did_you_mean, one_line, quoted, shown
from dataprep.sources import base
from dataprep.sources.archives import ArchiveReader, archive_members
from dataprep.sources.keys import IMAGE_SUFFIXES, is_hidden, key_of, name_parts
from dataprep.sources.pictures import OpenedDataset
from dataprep.storage.base import Storage

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "dataprep.datasets"
"""Group of entry points where an installed package names its dataset classes."""
_TYPES: Mapping[str, Any] = {
    "file": str,
    "key": str,
    "num_bytes": int,
    "offset": int,
    "label": str | None,
    "annotations": Mapping,
}
"""Types of an image's fields."""
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """Place of one image, with its key, label and annotations."""

    file: str
    """File that holds the image, relative to the source: the image itself, or an archive."""
    num_bytes: int
    offset: int = 0
    """First byte of the image in the file."""
    key: str = ""
    """Name of the sample, unique in its split; if empty, it is made from the path of `file` (for an image in an
    archive, the archive's path)."""
    label: str | None = None
    """Name of the image's class; None if the dataset has no classes."""
    annotations: Mapping[str, Any] = field(default_factory=dict)
    """Value of each feature."""


class ImageDataset(ABC):
    """A dataset of images; a subclass sets the attributes and lists the images."""

    name: ClassVar[str]
    """Name of the dataset: lower-case letters, digits and `-`."""
    facts: ClassVar[Mapping[str, base.SplitFacts]]
    """Facts about each split: `SplitFacts(samples=None)` if nothing is known."""
    features: ClassVar[Mapping[str, Feature]] = {}
    """Types of the annotations, which every image has."""
    classes: ClassVar[Sequence[str] | None] = None
    """Names of the classes; None uses the labels that are found."""
    description: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    licence: ClassVar[str] = base.UNSTATED
    origin: ClassVar[str] = base.UNSTATED

    @abstractmethod
    def enumerate(self, root: Storage, split: str) -> Iterable[Image]:
        """Yield the images of a split, without reading them.

        Args:
            root: The source: `root.list(prefix)`, `root.read(name)` and `root.stat(name)` find and read its files.
            split: One of `facts`.
        """


def images_in(root: Storage, place: str) -> Iterator[Image]:
    """Yield the images below a folder, or in a .zip or .tar, in the order of their names or of the archive.

    The key of an image is its path below the source or in the archive, without its suffix. Files without an image's
    suffix are skipped. Raises SourceError if the archive is damaged or hostile, or has compressed images, which cannot
    be read in place.
    """
    if not place.lower().endswith((".zip", ".tar")):
        for info in root.list(place.strip("/")):
            parts = tuple(info.name.split("/"))
            if _is_image(parts):
                yield Image(file=info.name, num_bytes=info.num_bytes, key=key_of(parts))
        return
    with ArchiveReader(root, place) as reader:
        for member in archive_members(reader, place):
            parts = base.member_parts(reader, member)
            if member.is_directory or not _is_image(parts):
                continue
            if member.unreadable:
                raise SourceError(f"{reader.archive}: {shown(member.name)}: {member.unreadable}")
            yield Image(file=place, num_bytes=member.num_bytes, offset=member.offset, key=key_of(parts))


def _is_image(parts: tuple[str, ...]) -> bool:
    return not is_hidden(parts) and parts[-1].rpartition(".")[2].lower() in IMAGE_SUFFIXES


@dataclass(frozen=True, kw_only=True)
class CustomDataset(base.OwnDataset):
    """A user-defined dataset class, as a dataset that can be built."""

    reads_all_files: ClassVar[bool] = True
    place: str
    """Name of the class: `module:NAME`."""
    definition: ImageDataset

    def opened(self, root: Storage, reading: base.Reading = base.READ_ALL) -> OpenedDataset:
        readers = {split: _SplitReader(self, root, split) for split in self.definition.facts}
        for reader in readers.values():
            reader.read()
        labels = set().union(*(reader.labels for reader in readers.values()))
        declared = self.definition.classes
        classes = tuple(sorted(labels if declared is None else declared))
        found = {split: reader.enumeration(classes) for split, reader in readers.items()}
        return OpenedDataset.of(self, found)


class _SplitReader:
    """Reads and checks the images that the user's ImageDataset lists for one split."""

    def __init__(self, dataset: CustomDataset, root: Storage, split: str) -> None:
        self._dataset, self._root, self._split = dataset, root, split
        self._features: Features = dataset.definition.features
        self._refs = SpilledReferences()
        self.labels: dict[str, int] = {}
        """Number of each label, in the order of discovery."""
        self._unlabelled: int | None = None
        """First image without a label."""
        self._sizes: dict[str, int] = {}
        """Size of each file that holds several images."""
        self._loose_bytes = 0

    def read(self) -> None:
        """List the images."""
        with calling(f"{self._dataset.place}: enumerate of {self._split}"):
            for number, image in enumerate(self._dataset.definition.enumerate(self._root, self._split)):
                self._refs.add(self._checked(number, image))

    def enumeration(self, classes: tuple[str, ...]) -> Enumeration:
        """Return the references, with labels as positions in the list of classes."""
        refs = self._refs
        if classes:
            if self._unlabelled is not None:
                what = f"label None, expected one of {len(classes):,} classes, as other images have"
                raise self._error(self._unlabelled, what)
            positions = {name: label for label, name in enumerate(classes)}
            refs = refs.relabelled([positions[name] for name in self.labels])
        sources = [SourceFile(name, num_bytes) for name, num_bytes in sorted(self._sizes.items())]
        if self._loose_bytes:
            sources.append(SourceFile(ALL_FILES, self._loose_bytes))
        return Enumeration(refs, sources, classes, self._features)

    def _checked(self, number: int, image: object) -> SampleRef:
        """Return the reference to an image, with the number of its label."""
        if not isinstance(image, Image):
            raise self._error(number, f"{quoted(image)}, expected an Image of dataprep.sources")
        self._check_types(number, image)
        try:
            parts = name_parts(image.file)
        except SourceError as error:
            raise self._error(number, f"file {shown(image.file)}: {error}") from error
        if "/".join(parts) != image.file or not parts:
            raise self._error(number, f"file {shown(image.file)}, expected a path below the source, as in a/b.jpg")
        key = image.key or key_of(parts)
        if not is_key(key):
            raise self._error(number, f"key {shown(key)}, expected letters, digits, _ and -, in folders separated by /")
        if not 0 < image.num_bytes <= base.MAX_IMAGE_BYTES or image.offset < 0:
            raise self._error(
                number,
                f"{image.num_bytes:,} bytes at {image.offset:,}, expected 1 to {base.MAX_IMAGE_BYTES:,} bytes of an "
                "image",
            )
        self._check_place(number, image)
        try:
            annotations = annotations_json(self._features, image.annotations) if self._features else b""
        except FormatError as error:
            raise self._error(number, f"annotations of {named(key)}: {error}") from error
        if image.annotations and not self._features:
            names = ", ".join(map(str, image.annotations))
            raise self._error(number, f"annotations {shown(names)}, expected none: the class declares no features")
        label = self._label(number, image.label)
        return SampleRef(key, image.file, image.offset, image.num_bytes, label, annotations)

    def _check_types(self, number: int, image: Image) -> None:
        for name, kind in _TYPES.items():
            value = getattr(image, name)
            if not isinstance(value, kind) or isinstance(value, bool):
                expected = "str or None" if name == "label" else kind.__name__
                raise self._error(number, f"{name} {quoted(value)} of type {type(value).__name__}, expected {expected}")

    def _check_place(self, number: int, image: Image) -> None:
        """Compare an image's place with the size of its file, if the file holds several images."""
        if not image.offset and image.file not in self._sizes and not image.file.lower().endswith((".zip", ".tar")):
            self._loose_bytes += image.num_bytes
            return
        if image.file not in self._sizes:
            info = self._root.stat(image.file)
            if info is None:
                raise self._error(number, f"{self._root.url_of(image.file)} does not exist")
            self._sizes[image.file] = info.num_bytes
        if image.offset + image.num_bytes > self._sizes[image.file]:
            raise self._error(
                number,
                f"{image.num_bytes:,} bytes at {image.offset:,} of {image.file}, which has {self._sizes[image.file]:,}",
            )

    def _label(self, number: int, label: str | None) -> int:
        if label is None:
            self._unlabelled = number if self._unlabelled is None else self._unlabelled
            return NO_LABEL
        if label in self.labels:
            return self.labels[label]
        declared = self._dataset.definition.classes
        if declared is not None and label not in declared:
            hint = did_you_mean(label, declared)
            raise self._error(number, f"label {quoted(label)}, expected one of {len(declared):,} classes{hint}")
        if fault := base.class_fault(label):
            raise self._error(number, fault)
        self.labels[label] = len(self.labels)
        return self.labels[label]

    def _error(self, number: int, what: str) -> SourceError:
        return SourceError(f"{self._dataset.place}: image {number:,} of {self._split}: {what}")


# Finding classes


def installed_classes() -> dict[str, EntryPoint]:
    """Return the dataset classes of installed packages, by the names of their entry points."""
    from importlib.metadata import entry_points  # takes 15 ms, and most commands do not need it

    return {found.name: found for found in sorted(entry_points(group=ENTRY_POINTS), key=lambda found: found.name)}


def is_custom(name: str) -> bool:
    """Return whether a name may be a user-defined class; nothing is imported."""
    return base.CLASS_NAME.fullmatch(name) is not None or name in installed_classes()


def place_of(name: str) -> str:
    """Return the `module:NAME` of a class: the name itself, or the value of the entry point with that name."""
    if base.CLASS_NAME.fullmatch(name):
        return name
    found = installed_classes().get(name)
    place = found.value.replace(" ", "") if found is not None else ""
    if not base.CLASS_NAME.fullmatch(place):
        raise UsageError(
            f"{quoted(name)} is not a dataset class: expected module:NAME, or the name of an entry point in the group "
            f"{ENTRY_POINTS} of an installed package"
        )
    return place


def custom_dataset(name: str | type) -> CustomDataset:
    """Import a dataset class from `module:NAME`, where the module may be in the current folder, or by the name of an
    entry point. Raises UsageError if the module or a package that it needs is missing, or the class does not follow
    `ImageDataset`."""
    place = place_of(name if isinstance(name, str) else f"{name.__module__}:{name.__qualname__}")
    module_name, _, attribute = place.partition(":")
    module = imported(place)
    found = getattr(module, attribute, None)
    if found is None:
        known = [each for each, value in vars(module).items() if _is_definition(value)]
        hint = did_you_mean(attribute, known) or (f"; it has {', '.join(known)}" if known else "")
        raise UsageError(f"{place}: the module {module_name} has no {attribute}{hint}")
    definition = _instance(place, found)
    _check_attributes(place, definition)
    return CustomDataset(
        name=definition.name,
        description=definition.description or f"Images that {place} lists.",
        citation=definition.citation,
        licence=definition.licence,
        origin=definition.origin,
        facts=definition.facts,
        default_splits=tuple(definition.facts),
        place=place,
        definition=definition,
        identity=module_digest(module),
    )


def _is_definition(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, ImageDataset) and value is not ImageDataset


def imported(place: str) -> Any:
    """Import the module of `module:NAME`, which may be in the current folder. Raises UsageError if it or a package that
    it needs is missing, and SourceError if it raises."""
    module_name = place.partition(":")[0]
    find_modules_here()
    try:
        with calling(f"{place}: importing {module_name}"):
            return import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise UsageError(
                f"{place}: no module {module_name} is installed or in {Path.cwd()}: install the package that has it, "
                "or run this in its folder"
            ) from error
        raise UsageError(f"{place}: {module_name} needs the package {missing}, which is not installed") from error


def _instance(place: str, found: object) -> ImageDataset:
    if isinstance(found, type) and issubclass(found, ImageDataset):
        if missing := sorted(getattr(found, "__abstractmethods__", ())):
            raise UsageError(f"{place}: it has no method {', '.join(missing)}; expected enumerate(self, root, split)")
        with calling(f"{place}: creating it"):
            return found()
    if isinstance(found, ImageDataset):
        return found
    raise UsageError(f"{place}: {quoted(found)}, expected a subclass of dataprep.sources.ImageDataset")


def _check_attributes(place: str, definition: ImageDataset) -> None:
    """Raise UsageError for an attribute that is missing or malformed."""
    for name in ("name", "facts"):
        if not hasattr(definition, name):
            raise UsageError(f"{place}: it has no attribute {name}; see dataprep.sources.ImageDataset")
    for name in ("name", "description", "citation", "licence", "origin"):
        if not isinstance(getattr(definition, name), str):
            raise UsageError(f"{place}: {name} {quoted(getattr(definition, name))}, expected text")
    if fault := base.name_fault(definition.name, frozenset()):
        raise UsageError(f"{place}: {fault}")
    if not isinstance(definition.facts, Mapping) or not definition.facts:
        raise UsageError(f"{place}: facts {quoted(definition.facts)}, expected SplitFacts by split")
    for split, facts in definition.facts.items():
        if not isinstance(split, str) or not _SPLIT_NAME.fullmatch(split) or not isinstance(facts, base.SplitFacts):
            raise UsageError(
                f"{place}: facts: {quoted(split)}: {quoted(facts)}, expected a name of letters, digits, _ and -, and "
                "SplitFacts"
            )
        if fault := base.split_fault(split):
            raise UsageError(f"{place}: facts: {fault}")
    features = definition.features
    if not isinstance(features, Mapping) or not all(isinstance(each, Feature) for each in features.values()):
        raise UsageError(f"{place}: features {quoted(features)}, expected Feature by name")
    for fault in feature_faults(features):
        raise UsageError(f"{place}: {fault}")
    _check_classes(place, definition)


def _check_classes(place: str, definition: ImageDataset) -> None:
    classes = definition.classes
    if classes is None:
        return
    if isinstance(classes, str) or not isinstance(classes, Sequence) or len(set(classes)) < len(classes):
        raise UsageError(f"{place}: classes {quoted(classes)}, expected a list of names, each once")
    for name in classes:
        fault = base.class_fault(name) if isinstance(name, str) else "expected text"
        if fault:
            raise UsageError(f"{place}: class {quoted(name)}: {fault}")


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Turn an error in user code into one line that says where it was raised. Raises SourceError."""
    try:
        yield
    except (DataprepError, ModuleNotFoundError):
        raise
    except Exception as error:
        frame = extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name} line {frame.lineno}"
        raise SourceError(f"{what}: {type(error).__name__}: {one_line(error)} ({where})") from error


def module_digest(module: Any) -> str:
    """Return a digest of a module's source, so that results of an older version of it are not reused."""
    path = getattr(module, "__file__", None)
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""
    except OSError:
        return ""
