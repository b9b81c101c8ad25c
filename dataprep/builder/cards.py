"""The cards of a dataset: `README.md` with the front matter that the Hugging Face Hub reads, `croissant.json`, and for
tars `_info.json`, where timm finds their names and counts.

All are pure functions of the manifest and not part of any digest: users may edit them (docs/decisions/0013-cards.md).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import TypeAlias

from dataprep.dataset.adopted import is_adopted
from dataprep.dataset.features import BOXES, Features, described_with_place
from dataprep.dataset.index import index_files
from dataprep.dataset.manifest import MANIFEST, built_as
from dataprep.dataset.paths import BUILD, CROISSANT, README, WDS_INFO
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.errors import ConflictError
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import image_suffix, metadata_file
from dataprep.messages import human_bytes, printable, shortened
from dataprep.sources import BUILT
from dataprep.sources.base import UNSTATED
from dataprep.storage import Storage
from dataprep.storage.base import TooLargeError

Json: TypeAlias = "str | int | bool | list[Json] | dict[str, Json]"
Node: TypeAlias = "dict[str, Json]"

PARQUET, TAR, JSON = "application/x-parquet", "application/x-tar", "application/json"
JSON_LINES = "application/jsonlines"
_INDEX_COLUMNS = {"key": "sc:Text", "label": "sc:Integer", "height": "sc:Integer", "width": "sc:Integer"}
_TYPES = {"bool": "sc:Boolean", "float32": "sc:Float", "float64": "sc:Float", "int64": "sc:Integer"}


RESPONSIBLE = {
    "data_limitations": "rai:dataLimitations",
    "data_biases": "rai:dataBiases",
    "personal_sensitive_information": "rai:personalSensitiveInformation",
    "data_use_cases": "rai:dataUseCases",
    "data_social_impact": "rai:dataSocialImpact",
    "has_synthetic_data": "rai:hasSyntheticData",
}
"""Properties of Croissant RAI 1.0 that only a person knows, by the name of the fact. With the two of provenance, which
are known here, they are those that NeurIPS 2026 requires."""
PUBLISHED = {"creator": "creator", "date_published": "datePublished", "url": "url"}
"""Properties that Croissant 1.1 requires and a manifest does not have, by the name of the fact."""


def _stated(facts: Mapping[str, Json]) -> Node:
    names = RESPONSIBLE | PUBLISHED
    found: Node = {names[name]: value for name, value in facts.items() if name in names}
    if isinstance(creator := found.get("creator"), str):
        found["creator"] = {"@type": "sc:Organization", "name": creator}
    return found


def _document(manifest: Manifest) -> Node:
    """Return the content of `croissant.json`, without what only a person knows."""
    name = printable(manifest.name)
    return _provenance(manifest) | {
        "@context": json.loads(_data("croissant_context.json")),  # the one that Croissant 1.1 recommends, and PROV
        "@type": "sc:Dataset",
        "conformsTo": ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"],
        "description": f"{name}: {sum(split.samples for split in manifest.splits):,} images. "
        f"Origin: {printable(manifest.origin) or 'unknown'}",
        "distribution": list(_distribution(manifest)),
        "license": printable(stated_licence(manifest)) or "unknown, not stated",
        "name": name,
        "recordSet": [each for split in manifest.splits for each in _record_sets(manifest, split)],
        "url": MANIFEST,
        "version": f"1.0.{manifest.revision}",
    }


def _provenance(manifest: Manifest) -> Node:
    """Describe where the images come from and what was done with them, in the words of PROV and RAI."""
    origin, of = printable(manifest.origin), printable(manifest.converted_from) or printable(manifest.name)
    source: Node = {"@type": "prov:Entity", "prov:label": f"{of}: {origin or UNSTATED}"}
    if re.match("https?://", origin):
        source["@id"] = origin
    counts = Counter[str]()
    for split in manifest.splits:
        counts.update(split.reasons or split.rejected)
    left_out = {reason: count for reason, count in sorted(counts.items()) if count and reason != "success"}
    how = {"decode": "every image was decoded", "header": "image headers were read", "none": "images were not checked"}
    steps = [f"{manifest.format}, plan {manifest.plan_hash}", how.get(manifest.checked, manifest.checked)]
    steps += [f"{count:,} left out: {printable(reason)}" for reason, count in left_out.items()]
    activities: list[Json] = [_activity("adoption" if is_adopted(manifest) else "build", "; ".join(steps))]
    for change in manifest.changes:
        activities.append(_activity(change.kind, f"revision {change.revision}, {printable(change.split)}"))
    found: Node = {"prov:wasDerivedFrom": source, "prov:wasGeneratedBy": activities}
    if any(split.statuses for split in manifest.splits):
        found["rai:dataCollectionType"] = "Web Scraping"
    dataset = BUILT.get(built_as(manifest))
    if dataset is not None and dataset.generated:
        found["rai:hasSyntheticData"] = True
    if dataset is not None and dataset.citation and dataset.licence == manifest.licence:
        found["citeAs"] = dataset.citation
    return found


def _activity(label: str, description: str) -> Node:
    return {"@type": "prov:Activity", "prov:label": f"dataprep {label}", "description": description}


# Files


def _distribution(manifest: Manifest) -> Iterator[Json]:
    digests = {entry["file"]: entry for entry in manifest.files}
    for split in manifest.splits:
        yield from (_file(each["file"], PARQUET, each["bytes"], each["sha256"]) for each in index_files(split))
        if "parts" in split.index:
            yield _file_set(split.index["file"], PARQUET, split.index["file"])
        packed = [shard for shard in split.shards if FORMATS[manifest.format].stored_files(shard["file"])]
        encoding = TAR if manifest.format == "webdataset" else "application/octet-stream"
        for shard in packed if all(shard["sha256"] for shard in packed) else ():
            yield _file(shard["file"], encoding, shard["bytes"], shard["sha256"])
        if _is_open(manifest):
            within: list[Json] = [{"@id": shard["file"]} for shard in packed]
            yield _file_set(f"{split.name}-files", "image/jpeg", "*.jpg") | {"containedIn": within}
            yield _file_set(f"{split.name}-json", JSON, "*.json") | {"containedIn": within}
            for suffix, is_text in _members(manifest):
                encoding = "text/plain" if is_text else "application/octet-stream"
                yield _file_set(f"{split.name}/*.{suffix}", encoding, f"*.{suffix}") | {"containedIn": within}
        elif FORMATS[manifest.format].one_file_per_image and not is_adopted(manifest):
            root = FORMATS[manifest.format].image_root(split.name, split.repeats["stored"])
            yield _file_set(f"{split.name}-files", "image/jpeg", f"{root}/*{image_suffix(built_as(manifest))}")
            entry = digests.get(metadata_file(split.name))
            if entry is not None:
                yield _file(entry["file"], JSON_LINES, entry["bytes"], entry["sha256"])


def _is_open(manifest: Manifest) -> bool:
    """Return whether readers of Croissant can open the shards: they are tars with known digests."""
    shards = [shard for split in manifest.splits for shard in split.shards]
    return manifest.format == "webdataset" and all(shard["sha256"] for shard in shards)


def _file(name: str, encoding: str, num_bytes: int, sha256: str) -> Node:
    return {
        "@id": name,
        "@type": "cr:FileObject",
        "contentSize": f"{num_bytes} B",
        "contentUrl": name,
        "encodingFormat": encoding,
        "name": name,
        "sha256": sha256,
    }


def _file_set(name: str, encoding: str, includes: str) -> Node:
    return {"@id": name, "@type": "cr:FileSet", "encodingFormat": encoding, "includes": includes, "name": name}


# Records


def _record_sets(manifest: Manifest, split: SplitManifest) -> Iterator[Json]:
    index = f"{split.name}-index"
    columns = {
        name: kind
        for name, kind in _INDEX_COLUMNS.items()
        if manifest.checked != "none" or name not in ("height", "width")
    }
    files = "fileSet" if "parts" in split.index else "fileObject"
    fields: list[Json] = [
        _field(index, name, kind, {"extract": {"column": name}, files: {"@id": split.index["file"]}})
        for name, kind in columns.items()
    ]
    yield _record_set(index, "location and label of each sample", fields)
    single = FORMATS[manifest.format].one_file_per_image and not is_adopted(manifest)
    if _is_open(manifest) or single:
        images, labels = ("image", "sc:ImageObject"), _labels(manifest, split) if manifest.classes else []
        yield _contents(f"{split.name}-images", f"{split.name}-files", "the images", images, labels)
    if _is_open(manifest):  # readers of Croissant return the JSON next to each image as one text
        description = "JSON stored with each image"
        yield _contents(f"{split.name}-annotations", f"{split.name}-json", description, ("json", "sc:Text"))
        for suffix in (suffix for suffix, is_text in _members(manifest) if is_text):
            yield _contents(f"{split.name}.{suffix}", f"{split.name}/*.{suffix}", "a feature", (suffix, "sc:Text"))
    elif single and manifest.features:
        yield _listed_annotations(manifest, split)


def _members(manifest: Manifest) -> Iterator[tuple[str, bool]]:
    """Yield the suffix of each member of a feature, and whether it is text."""
    yield from ((each.member, each.kind != "bytes") for _, each in sorted(manifest.features.items()) if each.member)


def _contents(name: str, files: str, description: str, column: tuple[str, str], more: Sequence[Json] = ()) -> Node:
    """Describe a file set: each file's path, its content as a column with a type, and more fields."""
    path = _field(name, "file", "sc:Text", _property(files, "fullpath"))
    return _record_set(name, description, [path, _field(name, *column, _property(files, "content")), *more])


def _labels(manifest: Manifest, split: SplitManifest) -> list[Json]:
    """Describe the labels of images: in an image folder the name of the file's folder, in tars the number that the
    index has for the file's key."""
    name, index, path = f"{split.name}-images", f"{split.name}-index", _property(f"{split.name}-files", "fullpath")
    if not _is_open(manifest):
        return [_field(name, "label", "sc:Text", path | {"transform": {"regex": "(?:.*/)?([^/]+)/[^/]+$"}})]
    key = _field(name, "key", "sc:Text", path | {"transform": {"regex": r"(.*)\.jpg$"}})
    label = _field(name, "label", "sc:Integer", {"field": {"@id": f"{index}/label"}})
    return [key | {"references": {"field": {"@id": f"{index}/key"}}}, label]


def _listed_annotations(manifest: Manifest, split: SplitManifest) -> Node:
    name = f"{split.name}-annotations"
    file: Node = {"@id": metadata_file(split.name)}
    fields: list[Json] = [
        _field(name, "file_name", "sc:Text", {"extract": {"column": "file_name"}, "fileObject": file})
    ]
    for feature, kind, repeated in _features(manifest.features):
        source: Node = {"extract": {"column": feature}, "fileObject": file}
        fields.append(_field(name, feature, kind, source, repeated=repeated))
    return _record_set(name, "annotations of each image", fields)


def _features(features: Features) -> Iterator[tuple[str, str, bool]]:
    """Yield name, type and whether it is a list, for each feature that Croissant can describe."""
    for name, feature in sorted(features.items()):
        if name.isascii() and name.isidentifier() and feature.kind != "records" and len(feature.shape) < 2:
            yield name, _TYPES.get(feature.kind, "sc:Text"), bool(feature.shape)


def _property(file_set: str, name: str) -> Node:
    return {"extract": {"fileProperty": name}, "fileSet": {"@id": file_set}}


def _field(records: str, name: str, kind: str, source: Node, *, repeated: bool = False) -> Node:
    field: Node = {
        "@id": f"{records}/{name}",
        "@type": "cr:Field",
        "dataType": kind,
        "description": name,
        "name": f"{records}/{name}",
        "source": source,
    }
    return field | ({"repeated": True} if repeated else {})


def _record_set(name: str, description: str, fields: list[Json]) -> Node:
    return {"@id": name, "@type": "cr:RecordSet", "description": description, "field": fields, "name": name}


MAX_CARD_BYTES = 1 << 28
"""Maximum size of a card that is compared; `croissant.json` has 300 bytes for each shard."""
PLAN_LINE = r"^- Plan: `([0-9a-f]{64})`, revision \d+$"
"""Pattern of the line of `README.md` that names the plan of its dataset."""
CODECS_LINE = r"^- Codecs: `([^`]*)`$"
"""Pattern of the line of `README.md` that names the versions of the codecs, as `pillow 13.0.0, pyarrow 26.0.0`."""
_TEXT_CHARACTERS = 500
_SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
    (100_000_000, "10M<n<100M"),
    (1_000_000_000, "100M<n<1B"),
    (10_000_000_000, "1B<n<10B"),
)
"""The Hub's categories of sizes, each with the number of samples where the next one begins."""


def cards_of(manifest: Manifest, facts: Mapping[str, Json] | None = None) -> dict[str, bytes]:
    """Return the cards of a dataset by their names: the same manifest and facts give the same bytes.

    Args:
        facts: What only a person knows, by the names in RESPONSIBLE and PUBLISHED.
    """
    document = _document(manifest) | _stated(facts or {})
    croissant = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True).encode() + b"\n"
    cards = {README: readme(manifest).encode(), CROISSANT: croissant}
    if manifest.format == "webdataset" and not is_adopted(manifest):
        cards[WDS_INFO] = wds_info(manifest)
    return cards


def write_cards(storage: Storage, manifest: Manifest, facts: Mapping[str, Json] | None = None) -> list[str]:
    def write(name: str, data: bytes) -> str:
        try:
            return name if storage.create(name, data) else ""
        except ConflictError:
            return ""  # written or edited by the user

    cards = cards_of(manifest, facts)
    with ThreadPoolExecutor(2, thread_name_prefix="dataprep-cards") as threads:
        written = list(filter(None, threads.map(write, cards.keys(), cards.values())))
    _tidy(storage)
    return written


def replace_cards(
    storage: Storage,
    manifest: Manifest,
    only: Mapping[str, str] | None = None,
    facts: Mapping[str, Json] | None = None,
) -> list[str]:
    """Replace the cards that differ, and return their names.

    Args:
        only: Replace only the cards with these SHA-256 digests, and add none; None replaces and adds all.
    """
    written = []
    for name, data in cards_of(manifest, facts).items():
        found = read_card(storage, name)
        if found == data or (only is not None and (found is None or _sha256(found) != only.get(name))):
            continue
        if storage.replace(name, data, found):
            written.append(name)
    _tidy(storage)
    return written


def _tidy(storage: Storage) -> None:
    """Remove empty folders of files that were being written on disk."""
    storage.prune([BUILD, f"{BUILD}/tmp"])


def own_cards(storage: Storage, manifest: Manifest) -> dict[str, str]:
    """Return the SHA-256 digests of the unedited cards of this manifest, by name."""
    return {name: _sha256(data) for name, data in cards_of(manifest).items() if read_card(storage, name) == data}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_card(storage: Storage, name: str) -> bytes | None:
    """Return an existing card; None if there is none, and empty bytes if it is far too large."""
    try:
        return storage.read(name, MAX_CARD_BYTES)
    except FileNotFoundError:
        return None
    except TooLargeError:
        return b""


def stated_licence(manifest: Manifest) -> str:
    """Return the licence of a dataset; empty if none is stated."""
    return "" if manifest.licence in ("", UNSTATED) else manifest.licence


def hub_licence(licence: str) -> str:
    """Return the Hub's identifier of a licence: `unknown` if none is stated, `other` if the Hub has none for it."""
    if not licence:
        return "unknown"
    name = re.sub(r"[\s_]+", "-", licence.strip().lower())
    return name if name in _data("hub_licences.txt").splitlines() else "other"


def _data(name: str) -> str:
    return resources.files("dataprep").joinpath(f"data/{name}").read_text()


def readme(manifest: Manifest) -> str:
    head = "".join(f"{line}\n" for line in _head(manifest))
    body = "".join(f"{line}\n" for line in _body(manifest))
    return f"---\n{head}---\n\n{body}"


def wds_info(manifest: Manifest) -> bytes:
    """Return `_info.json`, which timm's reader of tars needs (timm/data/readers/reader_wds.py)."""
    splits = {
        split.name: {
            "name": split.name,
            "filenames": [shard["file"] for shard in split.shards],
            "shard_lengths": [shard["samples"] for shard in split.shards],
            "num_samples": split.samples,
        }
        for split in manifest.splits
    }
    return json.dumps({"splits": splits}, indent=1).encode() + b"\n"


# The front matter. Texts in it are JSON, which is valid YAML.


def _head(manifest: Manifest) -> Iterator[str]:
    licence = stated_licence(manifest)
    yield f"license: {hub_licence(licence)}"
    if hub_licence(licence) == "other":
        yield f"license_name: {_quoted(licence)}"
    yield f"pretty_name: {_quoted(manifest.name)}"
    tasks = list(_tasks(manifest))
    if tasks:
        yield "task_categories:"
        yield from (f"- {task}" for task in tasks)
    yield "size_categories:"
    yield f"- {_size(sum(split.samples for split in manifest.splits))}"
    patterns = _data_files(manifest)
    if patterns:
        yield "configs:"
        yield "- config_name: default"
        if FORMATS[manifest.format].one_file_per_image and not manifest.classes:
            yield "  drop_labels: true"  # which datasets makes of folders
        yield "  data_files:"
        for split, names in patterns.items():
            yield f"  - split: {split}"
            yield "    path:"
            yield from (f"    - {_quoted(name)}" for name in names)


def _tasks(manifest: Manifest) -> Iterator[str]:
    """Yield the tasks, in the Hub's words, that labels and features allow."""
    names = {name.lower() for name in _leaves(manifest.features)}
    if manifest.classes:
        yield "image-classification"
    if names & BOXES:
        yield "object-detection"
    if names & {"caption", "captions", "txt", "text"}:
        yield "image-to-text"
    if not (manifest.classes or manifest.features):
        yield "image-feature-extraction"


def _leaves(features: Features) -> Iterator[str]:
    for name, feature in features.items():
        yield name
        yield from feature.columns


def _size(samples: int) -> str:
    return next((name for bound, name in _SIZES if samples < bound), "10B<n<100B")


def _data_files(manifest: Manifest) -> Mapping[str, list[str]]:
    """Return the patterns of each split's files for `datasets.load_dataset`; empty for adopted data.

    Without patterns datasets would load the index. It does not read TFRecords, and says so; it does not follow the
    links of repeats, so each has the pattern of the folder that the links lead to.
    """
    if is_adopted(manifest):
        return {}
    return {re.sub(r"\W", "_", split.name): _patterns(manifest, split) for split in manifest.splits if split.samples}


def _patterns(manifest: Manifest, split: SplitManifest) -> list[str]:
    shard_format, stored = FORMATS[manifest.format], split.repeats["stored"]
    if shard_format.one_file_per_image:
        return [f"{shard_format.image_root(split.name, stored)}/**"] * stored
    if manifest.format == "webdataset":
        return [f"{split.name}/*.tar"]
    return [f"{split.shards[0]['file'].partition('.tfrecord-')[0]}.tfrecord-*"]


def _quoted(text: str) -> str:
    return json.dumps(shortened(printable(text), _TEXT_CHARACTERS))


# The body, which is Markdown


def _body(manifest: Manifest) -> Iterator[str]:
    yield f"# {_plain(manifest.name)}"
    yield ""
    yield f"- Licence: {_plain(manifest.licence or UNSTATED)}"
    yield f"- Origin: {_plain(manifest.origin or UNSTATED)}"
    yield f"- Format: {manifest.format}, {'shuffled' if manifest.shuffled else 'in the order of the originals'}"
    if manifest.classes:
        yield f"- Classes: {len(manifest.classes):,}"
    if manifest.converted_from:
        yield f"- Converted from: {_plain(manifest.converted_from)}"
    yield f"- Plan: `{_plain(manifest.plan_hash)}`, revision {manifest.revision}"
    if manifest.codecs:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(manifest.codecs.items()))
        yield f"- Codecs: `{shortened(printable(versions), _TEXT_CHARACTERS).replace('`', '')}`"
    yield ""
    yield "| split | samples | shards | size | rejected |"
    yield "|---|---|---|---|---|"
    for split in manifest.splits:
        rejected = sum(split.rejected.values())
        size = human_bytes(split.num_bytes)
        yield f"| {split.name} | {split.samples:,} | {len(split.shards):,} | {size} | {rejected:,} |"
    if manifest.features:
        yield ""
        yield "| feature | type |"
        yield "|---|---|"
        for name, feature in sorted(manifest.features.items()):
            yield f"| {_plain(name)} | {_plain(described_with_place(feature))} |"
    yield ""
    yield "`dataset.json` lists every file with its digest, and `index/` has each sample's location."
    yield "`dataprep verify` checks every file; `loaders.open_loader` reads the dataset."


def _plain(text: str) -> str:
    """Return a text as one line, with Markdown and HTML escaped."""
    return re.sub(r"([\\`*_{}\[\]<>()#|!])", r"\\\1", shortened(printable(text), _TEXT_CHARACTERS))
