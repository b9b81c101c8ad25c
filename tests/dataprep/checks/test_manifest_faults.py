import json

from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.checks.findings import KINDS
from tests.support.faults import Damaged, linked_copy
from tests.support.finished import details, kinds, verify_here


def test_a_manifest_that_is_none(damaged):
    copy = damaged("imagenet-webdataset")
    for data in (b"", b"[]", b"{}", b"null", b"\xff\xfe", b"[" * 100_000, b'{"schema_version": "9.0"}'):
        copy.write("dataset.json", data)
        report = verify_here(copy.root)
        assert (report.verdict, kinds(report)) == ("differs", {"manifest"})


def test_a_manifest_that_was_reformatted(damaged):
    copy = damaged("imagenet-webdataset")
    copy.write("dataset.json", json.dumps(copy.document).encode())
    assert "manifest dataset.json: other bytes than a build writes" in details(verify_here(copy.root))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data(), name=st.sampled_from(["imagenet-imagefolder", "coco-tfrecord", "coco-links"]))
def test_no_manifest_is_hostile_enough_to_crash_it(finished, tmp_path_factory, data, name):
    copy = Damaged(tmp_path_factory.mktemp("hostile") / "copy")
    linked_copy(finished(name), copy.root)
    document = copy.document
    parent, key = document, data.draw(st.sampled_from(sorted(document)))
    while isinstance(parent[key], dict | list) and parent[key] and data.draw(st.integers(0, 3)):
        parent = parent[key]
        key = data.draw(st.sampled_from(sorted(parent) if isinstance(parent, dict) else range(len(parent))))
    parent[key] = data.draw(VALUES)
    copy.write_document(document)
    assert kinds(verify_here(copy.root)) <= set(KINDS)
