"""`croissant.json`: a dataset in the words of MLCommons' Croissant 1.0, so that search engines and loaders know it.

It lists every shard with its SHA-256, and two kinds of records: `images`, where a reader of Croissant can open the
shards, with what is stored beside each image; and `index`, the rows that say where each sample lies, in every format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypeAlias

from dataprep.dataset.adopted import is_adopted
from dataprep.dataset.features import Features
from dataprep.dataset.index import index_files
from dataprep.dataset.manifest import MANIFEST, built_as
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import image_suffix, metadata_file
from dataprep.messages import printable

Json: TypeAlias = "str | int | bool | list[Json] | dict[str, Json]"
Node: TypeAlias = "dict[str, Json]"

CONTEXT: Node = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
"""The context that Croissant 1.0 prescribes."""
PARQUET, TAR, JSON = "application/x-parquet", "application/x-tar", "application/json"
JSON_LINES = "application/jsonlines"
_INDEX_COLUMNS = {"key": "sc:Text", "label": "sc:Integer", "height": "sc:Integer", "width": "sc:Integer"}
_TYPES = {"bool": "sc:Boolean", "float32": "sc:Float", "float64": "sc:Float", "int64": "sc:Integer"}


def croissant_bytes(manifest: Manifest, licence: str) -> bytes:
    """Return the content of `croissant.json`; an empty licence is one that nobody has stated."""
    return json.dumps(_document(manifest, licence), indent=1, sort_keys=True, ensure_ascii=True).encode() + b"\n"


def _document(manifest: Manifest, licence: str) -> Node:
    name = printable(manifest.name)
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "description": f"{name}: {sum(split.samples for split in manifest.splits):,} images. "
        f"Origin: {printable(manifest.origin) or 'unknown'}",
        "distribution": list(_distribution(manifest)),
        "license": printable(licence) or "unknown, not stated",
        "name": name,
        "recordSet": [each for split in manifest.splits for each in _record_sets(manifest, split)],
        "url": MANIFEST,
        "version": f"1.0.{manifest.revision}",
    }


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
        elif FORMATS[manifest.format].one_file_per_image and not is_adopted(manifest):
            root = FORMATS[manifest.format].image_root(split.name, split.repeats["stored"])
            yield _file_set(f"{split.name}-files", "image/jpeg", f"{root}/*{image_suffix(built_as(manifest))}")
            entry = digests.get(metadata_file(split.name))
            if entry is not None:
                yield _file(entry["file"], JSON_LINES, entry["bytes"], entry["sha256"])


def _is_open(manifest: Manifest) -> bool:
    """Return whether a reader of Croissant can open the shards: tars whose digests are known."""
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
    return {
        "@id": name,
        "@type": "cr:FileSet",
        "encodingFormat": encoding,
        "includes": includes,
        "name": name,
    }


# Records


def _record_sets(manifest: Manifest, split: SplitManifest) -> Iterator[Json]:
    index = f"{split.name}-index"
    columns = {name: kind for name, kind in _INDEX_COLUMNS.items() if manifest.checked != "none" or kind == "sc:Text"}
    files = "fileSet" if "parts" in split.index else "fileObject"
    fields: list[Json] = [
        _field(index, name, kind, {"extract": {"column": name}, files: {"@id": split.index["file"]}})
        for name, kind in columns.items()
    ]
    yield _record_set(index, "where each sample lies, with its label", fields)
    if _is_open(manifest):
        yield _images(split)
        yield _packed_annotations(split)
    elif FORMATS[manifest.format].one_file_per_image and not is_adopted(manifest):
        yield _images(split)
        if manifest.features:
            yield _listed_annotations(manifest, split)


def _images(split: SplitManifest) -> Node:
    name, files = f"{split.name}-images", f"{split.name}-files"
    return _record_set(
        name,
        "the images",
        [
            _field(name, "file", "sc:Text", _property(files, "fullpath")),
            _field(name, "image", "sc:ImageObject", _property(files, "content")),
        ],
    )


def _packed_annotations(split: SplitManifest) -> Node:
    """Describe the JSON beside each image of a tar: readers of Croissant return it as one text."""
    name, files = f"{split.name}-annotations", f"{split.name}-json"
    return _record_set(
        name,
        "what is stored beside each image, as JSON",
        [
            _field(name, "file", "sc:Text", _property(files, "fullpath")),
            _field(name, "json", "sc:Text", _property(files, "content")),
        ],
    )


def _listed_annotations(manifest: Manifest, split: SplitManifest) -> Node:
    """Describe the columns of the file of annotations; records and lists of lists have no type in Croissant."""
    name = f"{split.name}-annotations"
    file: Node = {"@id": metadata_file(split.name)}
    fields: list[Json] = [
        _field(name, "file_name", "sc:Text", {"extract": {"column": "file_name"}, "fileObject": file})
    ]
    for feature, kind, repeated in _features(manifest.features):
        source: Node = {"extract": {"column": feature}, "fileObject": file}
        fields.append(_field(name, feature, kind, source, repeated=repeated))
    return _record_set(name, "what is known about each image", fields)


def _features(features: Features) -> Iterator[tuple[str, str, bool]]:
    """Yield the name, the type and whether it is a list, for each feature that Croissant can describe."""
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
