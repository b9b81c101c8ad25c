"""Requests as the clients send them, and what the guard takes them for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.guard.requests import Kind, StorageRequest, is_storage_host, parse_request

STORAGE = "storage.googleapis.com"


@pytest.mark.parametrize(
    ("method", "host", "target", "kind", "bucket", "name"),
    [
        ("GET", STORAGE, "/download/storage/v1/b/data/o/a%2Fb.tar?alt=media", Kind.READ, "data", "a/b.tar"),
        ("GET", STORAGE, "/storage/v1/b/data/o/a%2Fb.tar?alt=media&generation=7", Kind.READ, "data", "a/b.tar"),
        ("GET", "www.googleapis.com", "/storage/v1/b/data/o/a?fields=size", Kind.LOOK, "data", "a"),
        ("GET", STORAGE, "/storage/v1/b/data/o?prefix=x&alt=json", Kind.LIST, "data", ""),
        ("GET", STORAGE, "/storage/v1/b?project=p", Kind.LIST, None, ""),
        ("GET", STORAGE, "/storage/v1/b/data", Kind.LOOK, "data", ""),
        ("GET", STORAGE, "/storage/v1/b/data/storageLayout?alt=json", Kind.LOOK, "data", ""),
        ("GET", STORAGE, "/data/a/b.tar", Kind.READ, "data", "a/b.tar"),
        ("GET", "data.storage.googleapis.com", "/a/b.tar", Kind.READ, "data", "a/b.tar"),
        ("GET", "storage.us-east1.rep.googleapis.com", "/data/a", Kind.READ, "data", "a"),
        ("GET", "", "/data/a", Kind.READ, "data", "a"),
        ("HEAD", STORAGE, "/data/a", Kind.LOOK, "data", "a"),
        ("GET", STORAGE, "/data?prefix=a", Kind.LIST, "data", ""),
        ("POST", STORAGE, "/upload/storage/v1/b/data/o?uploadType=multipart", Kind.WRITE, "data", ""),
        ("PUT", STORAGE, "/upload/storage/v1/b/data/o?uploadType=resumable&upload_id=x", Kind.FREE, "data", ""),
        ("PUT", STORAGE, "/resumable/upload/storage/v1/b/data/o?upload_id=x", Kind.FREE, "data", ""),
        ("PUT", STORAGE, "/data/a", Kind.WRITE, "data", "a"),
        ("DELETE", STORAGE, "/storage/v1/b/data/o/a", Kind.FREE, "data", "a"),
        ("POST", STORAGE, "/storage/v1/b/data/o/a/rewriteTo/b/other/o/a", Kind.COPY, "data", "a"),
        ("POST", STORAGE, "/batch/storage/v1", Kind.OTHER, None, ""),
        ("GET", "www.googleapis.com", "/oauth2/v1/certs", Kind.OTHER, None, ""),
        ("GET", STORAGE, "/..%2F..%2Fetc/passwd", Kind.READ, None, "passwd"),
    ],
)  # fmt: skip
def test_requests_of_both_apis_are_told_apart(method, host, target, kind, bucket, name):
    assert parse_request(method, host, target) == StorageRequest(kind, bucket, name)


@pytest.mark.parametrize(
    ("host", "is_storage"),
    [
        (STORAGE, True),
        ("www.googleapis.com", True),
        ("my-data.storage.googleapis.com", True),
        ("storage.mtls.googleapis.com", True),
        ("oauth2.googleapis.com", False),
        ("storage.googleapis.com.example.org", False),
        ("huggingface.co", False),
    ],
)
def test_only_hosts_of_cloud_storage_are_read(host, is_storage):
    assert is_storage_host(host) == is_storage


@given(st.text(max_size=200), st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "X"]))
def test_hostile_targets_give_no_bucket_or_a_well_formed_one(target, method):
    found = parse_request(method, STORAGE, f"/{target}")
    assert found.bucket is None or found.bucket == found.bucket.strip().lower()
