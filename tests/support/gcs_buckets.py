"""What fake-gcs-server knows nothing of: each bucket's own place and class, permissions, and what is billed.

A bucket that was created with a location is described here, as Cloud Storage would; others are left to the binary.
"""

from __future__ import annotations

import json
from collections import Counter
from http import HTTPStatus
from typing import Any

from tests.support.http_wire import Answer, Request, Upstream, error_answer, path_segments

MULTI_REGIONS = ("US", "EU", "ASIA")
DUAL_REGIONS = ("ASIA1", "EUR4", "EUR5", "EUR7", "EUR8", "NAM4")
KEPT = (
    "storageClass",
    "customPlacementConfig",
    "autoclass",
    "labels",
    "lifecycle",
    "iamConfiguration",
    "softDeletePolicy",
    "hierarchicalNamespace",
)
LAYOUT = ("location", "locationType", "customPlacementConfig", "hierarchicalNamespace")
GET_BUCKET, LIST_OBJECTS = "storage.buckets.get", "storage.objects.list"
GET_OBJECT = "storage.objects.get"
"""Permission for the requests of range reads, whose paths begin with the bucket."""
PERMISSIONS = {
    (): GET_BUCKET,
    ("storageLayout",): LIST_OBJECTS,
    ("o",): LIST_OBJECTS,
    ("anywhereCaches",): "storage.anywhereCaches.list",
}
"""Permissions of GET requests by what follows the bucket's name."""


class Buckets:
    """Descriptions by the name of the bucket, and a count of what was asked for."""

    def __init__(self) -> None:
        self.described: dict[str, dict[str, Any]] = {}
        self.caches: dict[str, list[dict[str, Any]]] = {}
        """Rapid Caches by bucket; a new one runs at once."""
        self.denied: dict[str, list[str]] = {}
        """Permissions that nobody has on a bucket."""
        self.classes: dict[str, str] = {}
        """Storage classes of single objects, by `bucket/name`; others have their bucket's."""
        self.operations: Counter[str] = Counter()
        """Requests that succeeded: `A`, `B` or `free`."""
        self.bytes_served = 0
        """Bytes of objects that were sent."""

    def count(self, request: Request, status: int, body_bytes: int = 0) -> None:
        """Bill a request as Cloud Storage does: not if it failed."""
        if status < HTTPStatus.BAD_REQUEST:
            kind = billing_class(request)
            self.operations[kind] += 1
            if kind == "B" and not _is_metadata(request):
                self.bytes_served += body_bytes

    def stats(self) -> dict[str, Any]:
        """For the control path."""
        return {"operations": self.operations, "bytes_served": self.bytes_served}

    def set(self, settings: dict[str, Any]) -> None:
        """`deny`: permissions by bucket; `storage_class`: classes by `bucket/name`."""
        self.denied.update(settings.get("deny", {}))
        self.classes.update(settings.get("storage_class", {}))

    async def answer(self, request: Request, body: bytes, upstream: Upstream) -> Answer | None:
        """What is asked about a described bucket; None for everything else."""
        segments = path_segments(request.path)
        if request.method == "GET" and GET_OBJECT in self.denied.get("".join(segments[:1]), ()):
            return error_answer(403, f"t@example.com does not have {GET_OBJECT} access to the object.")
        if segments[:3] != ["storage", "v1", "b"]:
            return None
        if request.method == "POST" and len(segments) == 3:
            return await self._create(json.loads(body), upstream)
        name, rest = (segments[3] if len(segments) > 3 else ""), segments[4:]
        if request.method == "POST" and rest == ["anywhereCaches"]:
            cache = {"bucket": name, "state": "running", **json.loads(body)}
            self.caches.setdefault(name, []).append(cache)
            return _json({"kind": "storage#operation", "done": False})
        if request.method != "GET" or name not in self.described:
            return None
        permission = PERMISSIONS.get(tuple(rest), "")
        if permission in self.denied.get(name, ()):
            return error_answer(
                403, f"t@example.com does not have {permission} access to the Google Cloud Storage bucket."
            )
        described = self.described[name]
        if not rest:
            return _json(described)
        if rest == ["storageLayout"]:
            return _json({"bucket": name, **{key: described[key] for key in LAYOUT if key in described}})
        if rest == ["anywhereCaches"]:
            return _json({"kind": "storage#anywhereCaches", "items": self.caches.get(name, [])})
        if rest == ["o"]:
            return await self._listed(name, request, upstream)
        return None

    async def _create(self, asked: dict[str, Any], upstream: Upstream) -> Answer | None:
        name = asked["name"]
        made = await upstream.fetch("POST", "/storage/v1/b", json.dumps({"name": name}).encode())
        if made.status == HTTPStatus.OK and "location" in asked:
            described = {"name": name, "storageClass": "STANDARD", **{key: asked[key] for key in KEPT if key in asked}}
            described |= {"location": asked["location"].upper(), "locationType": location_type(asked)}
            self.described[name] = described
            return _json(described)
        return made

    async def _listed(self, name: str, request: Request, upstream: Upstream) -> Answer:
        found = await upstream.fetch("GET", request.head.start_line.split(" ")[1])
        document = found.json()
        for item in document.get("items", []):
            default = self.described[name]["storageClass"]
            item["storageClass"] = self.classes.get(f"{name}/{item['name']}", default)
        return Answer(found.status, json.dumps(document).encode(), {})


def billing_class(request: Request) -> str:
    """`A` inserts, lists and copies, `B` reads, the rest is free; a resumable upload is one insert."""
    segments = path_segments(request.path)
    if request.method in ("POST", "PUT"):
        return "free" if "upload_id" in request.query else "A"
    if request.method == "DELETE":
        return "free"
    is_list = segments[:3] == ["storage", "v1", "b"] and (len(segments) == 3 or segments[4:] == ["o"])
    return "A" if is_list else "B"


def location_type(asked: dict[str, Any]) -> str:
    """What Cloud Storage would say of a new bucket."""
    stated = asked.get("customPlacementConfig", {}).get("dataLocations", [])
    if asked.get("storageClass") == "RAPID":
        return "zone"
    if len(stated) == 2 or asked["location"].upper() in DUAL_REGIONS:
        return "dual-region"
    return "multi-region" if asked["location"].upper() in MULTI_REGIONS else "region"


def _is_metadata(request: Request) -> bool:
    return path_segments(request.path)[0] == "storage" and request.query.get("alt") != "media"


def _json(document: dict[str, Any]) -> Answer:
    return Answer(HTTPStatus.OK, json.dumps(document).encode(), {})
