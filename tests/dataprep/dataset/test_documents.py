"""Typed reading of JSON documents: each error says where, what was expected and what was got."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.dataset.documents import MAX_CHARACTERS, MAX_COUNT, Count, convert, decode, differences
from dataprep.errors import FormatError, SourceError
from tests.support.markdown import ROOT


class Entry(TypedDict):
    file: str
    bytes: Count


@dataclass(frozen=True, slots=True)
class Split:
    name: str
    shards: tuple[Entry, ...]
    rejected: dict[str, Count] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Document:
    splits: tuple[Split, ...]
    options: dict[str, Any]
    size: int | None = None


GOOD = {"splits": [{"name": "train", "shards": [{"file": "a", "bytes": 1}, {"file": "b", "bytes": 2}]}], "options": {}}


def read(document, kind=Document, **settings):
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return decode(data, kind, where="gs://b/dataset.json", advice="build it again", **settings)


def changed(path, value):
    """Return GOOD with another value at a path; None for the value removes the field."""
    document = json.loads(json.dumps(GOOD))
    parent = document
    for step in path[:-1]:
        parent = parent[step]
    if value is KeyError:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return document


def test_document_is_read_into_its_type():
    expected = Document(splits=(Split("train", ({"file": "a", "bytes": 1}, {"file": "b", "bytes": 2})),), options={})
    assert read(GOOD) == expected
    assert read(GOOD | {"later": 1}) == expected
    assert convert(GOOD, Document, where="x", advice="y") == expected


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("splits", 0, "shards", 1, "bytes"), "x", '$.splits[0].shards[1].bytes: expected int, got "x"'),
        (("splits", 0, "shards", 1, "bytes"), -1, "$.splits[0].shards[1].bytes: expected int >= 0, got -1"),
        (("splits", 0, "shards", 1, "bytes"), True, "$.splits[0].shards[1].bytes: expected int, got true"),
        (("splits", 0, "shards", 0, "file"), KeyError, "$.splits[0].shards[0]: the field file is missing"),
        (("splits", 0, "shards", 0), "x", '$.splits[0].shards[0]: expected object, got "x"'),
        (("splits", 0, "rejected"), {"cmyk": "y"}, '$.splits[0].rejected[...]: expected int, got "y"'),
        (
            ("splits", 0, "rejected"),
            {"a": 1, "b": "y"},
            '$.splits[0].rejected[...]: expected int, in {"a": 1, "b": "y"}',
        ),
        (("splits",), None, "$.splits: expected array, got null"),
        (("size",), "\x1b[2J", '$.size: expected int | null, got "\\u001b[2J"'),
        (("options",), KeyError, "$: the field options is missing"),
        (("options",), ["x" * 100], f'$.options: expected object, got ["{"x" * 75}...'),
    ],
)
def test_error_names_the_place_and_the_value(path, value, fault):
    with pytest.raises(FormatError) as caught:
        read(changed(path, value))
    assert str(caught.value).startswith("gs://b/dataset.json: $")
    assert str(caught.value).endswith(f"{fault}; build it again")
    with pytest.raises(FormatError) as caught:
        convert(changed(path, value), Document, where="here", at="$.part", advice="mend it")
    assert str(caught.value).startswith("here: $.part")
    assert str(caught.value).endswith(f"{fault.removeprefix('$')}; mend it")


@pytest.mark.parametrize("count", [MAX_COUNT, 10**30])
def test_count_that_json_does_not_carry_exactly_is_refused(count):
    with pytest.raises(FormatError, match=rf"expected int <= {MAX_COUNT - 1}, got {count}; build"):
        read(changed(("splits", 0, "shards", 1, "bytes"), count))


NOT_DOCUMENTS = [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"options": "\\ud800"}', b"{} x"]
NOT_UTF_8 = b'{"name": "\xe9"}'


@pytest.mark.parametrize("data", [*NOT_DOCUMENTS, NOT_UTF_8])
def test_bytes_of_another_shape_are_one_line_of_error(data):
    with pytest.raises(FormatError, match=r"^gs://b/dataset\.json: [^\n]+; build it again$"):
        read(data)
    with pytest.raises(SourceError, match=r"^gs://b/dataset\.json: [^\n]+; build it again$"):
        read(data, error=SourceError)


def test_numbers_as_texts_are_accepted_only_in_lax_mode():
    document = changed(("splits", 0, "shards", 1, "bytes"), "12")
    assert read(document, lax=True).splits[0].shards[1]["bytes"] == 12
    with pytest.raises(FormatError, match="expected int"):
        read(document)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["splits", "options", "name", "shards", "file", "bytes"]), inner)
        ),
        max_leaves=12,
    )
)
def test_any_json_is_read_or_refused_in_one_line(document):
    try:
        read(document)
    except FormatError as error:
        text = str(error)
    else:
        text = ""
    assert "\n" not in text
    assert text.isascii()


def test_half_a_surrogate_pair_is_one_line():
    """JSON may escape one; Python has it as a text that is no UTF-8."""
    with pytest.raises(FormatError, match="surrogates not allowed; build it again"):
        convert({"name": "\udcff"}, dict[str, int], where="x.json", advice="build it again")


AT_ONCE = """
import sys, threading
from dataclasses import make_dataclass
import msgspec
from dataprep.dataset.documents import decode
sys.setswitchinterval(1e-6)
for _ in range(30):
    part = make_dataclass("Part", [(f"a{number}", int) for number in range(20)])
    whole = make_dataclass("Whole", [("parts", list[part]), *((f"b{number}", str) for number in range(20))])
    parts = [{f"a{number}": number for number in range(20)}] * 3
    data = msgspec.json.encode({"parts": parts, **{f"b{number}": "" for number in range(20)}})
    together = threading.Barrier(8)
    def read():
        together.wait()
        decode(data, whole, where="here", advice="try again")
    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def test_threads_may_read_the_first_documents_of_a_type_at_the_same_time():
    """msgspec itself crashes then; a driver that read its first receipts in threads did."""
    run = subprocess.run([sys.executable, "-c", AT_ONCE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-1000:]


def test_documents_are_decoded_by_decoders_that_one_thread_makes():
    files = [
        path for package in ("dataprep", "loaders", "pipelines", "train") for path in (ROOT / package).rglob("*.py")
    ]
    assert [path for path in files if "msgspec.json.decode(" in path.read_text()] == []
    assert [path.name for path in files if "msgspec.convert(" in path.read_text()] == ["documents.py"]


PLAN = {"options": {"seed": 1}, "splits": [{"name": "train", "source_bytes": 8}], "plan_hash": "x"}


def test_differences_are_named_by_their_path():
    theirs = {"options": {"seed": 0}, "splits": [{"name": "train", "source_bytes": 9}], "plan_hash": "y"}
    assert differences(PLAN, theirs) == [
        "options.seed is 0 there, 1 here",
        "splits.train.source_bytes is 9 there, 8 here",
    ]


def test_the_place_of_the_other_document_is_named_and_values_are_unchanged():
    assert differences({"a": "b there"}, {"a": 1}, where="in the state") == ['a is 1 in the state, "b there" here']


def test_split_that_only_one_document_has_is_abbreviated():
    more = PLAN | {"splits": [*PLAN["splits"], {"name": "val", "shard_samples": list(range(100))}]}
    (line,) = differences(more, PLAN)
    assert line.startswith("splits.val is null there, {")
    assert len(line) <= len("splits.val is null there,  here") + MAX_CHARACTERS


JSON = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2),
    max_leaves=3,
)


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON))
def test_equal_documents_do_not_differ(document):
    assert differences(document, document) == []
    assert len(differences(document | {"d": 1}, document)) == 1
