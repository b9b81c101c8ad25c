"""Tars of samples: their bytes, who reads them, and what becomes of damaged ones."""

import hashlib
import io
import json
import re
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset.features import Feature, annotations_json
from dataprep.dataset.records import NO_LABEL, Sample
from dataprep.errors import FormatError, UsageError
from dataprep.formats.base import MAX_IMAGE_BYTES
from dataprep.formats.webdataset import WebDatasetFormat
from tests.support.interop import read_with_hf_datasets, read_with_webdataset
from tests.support.samples import CLASSES, accepted, any_shards, examples, keys, mutations, read_samples, write_shard

FORMAT = WebDatasetFormat()
LABELLED = Sample("n01440764/n01440764_10026", b"\xff\xd8" + b"jpeg" * 200 + b"\xff\xd9", 3, CLASSES[3], 375, 500, 6)
PLAIN = Sample("train2017/000000000009", b"\xff\xd8one\xff\xd9", NO_LABEL, "", 0, 0, 1)
LONG = Sample("a" * 120, b"\xff\xd8two\xff\xd9", NO_LABEL, "", 480, 640, 1)


def write(*shard, has_classes=False):
    return write_shard(FORMAT, shard, has_classes=has_classes)[0]


def test_a_shard_is_named_by_dataset_split_and_number():
    assert FORMAT.shard_file("coco-dup5", "train", 3, 256) == "train/coco-dup5-train-00003-of-00256.tar"
    assert FORMAT.shard_file("laion", "train", 3, 123456) == "train/laion-train-000003-of-123456.tar"


@pytest.mark.parametrize(
    ("shard", "has_classes", "num_bytes", "sha256"),
    [
        ([], False, 1024, "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"),
        ([LABELLED], True, 4608, "a6cb303f4a45b835f6f0cfe5e07b1710988a3ca59ef21299d4dd9c1ba34f005a"),
        ([PLAIN, LONG], False, 7168, "02e5a5046e09c9085917d0d3a1b7c095738a065c685a41fe5d48bd22955b39f5"),
    ],
)
def test_shards_equal_their_golden_digests(shard, has_classes, num_bytes, sha256):
    data = write(*shard, has_classes=has_classes)
    assert (len(data), hashlib.sha256(data).hexdigest()) == (num_bytes, sha256)


def test_members_equal_their_golden_bytes():
    data = write(LABELLED, has_classes=True)
    label, text = data[2048:2560], data[3072:3584]
    assert data[1536:1568] == b"n01440764/n01440764_10026.cls\0\0\0"
    assert label.rstrip(b"\0") == b"3"
    assert text.rstrip(b"\0") == (b'{"class_name":"back\\\\slash","height":375,"label":3,"orientation":6,"width":500}')
    assert data[3584:] == bytes(1024)
    assert write(PLAIN)[1536:2048].rstrip(b"\0") == b'{"height":0,"orientation":1,"width":0}'


def tarred(features, values):
    sample = Sample("a", b"jpeg", NO_LABEL, "", 1, 1, 1, annotations_json(features, values))
    stream = io.BytesIO()
    writer = FORMAT.open_writer(stream, has_classes=False, features=features)
    writer.write(sample)
    writer.close()
    return stream.getvalue()


CAPTIONED = {
    "caption": Feature("text", member="txt"),
    "mask": Feature("bytes", member="mask.png"),
    "score": Feature("float64", member="score"),
    "year": Feature("int64"),
}
KNOWN = {"caption": "Ein Grünfink\n", "mask": b"\x89PNG\0\xff", "score": 0.25, "year": 1999}


def test_features_with_a_suffix_are_members_and_the_json_has_the_others():
    with tarfile.open(fileobj=io.BytesIO(tarred(CAPTIONED, KNOWN))) as tar:
        members = [(member.name, tar.extractfile(member).read()) for member in tar]
    assert members == [
        ("a.jpg", b"jpeg"),
        ("a.json", b'{"height":1,"orientation":1,"width":1,"year":1999}'),
        ("a.mask.png", b"\x89PNG\0\xff"),
        ("a.score", b"0.25"),
        ("a.txt", "Ein Grünfink\n".encode()),
    ]


@pytest.mark.parametrize(
    ("got", "put", "fault"),
    [
        (b"0.25", b"0.30", "offset 0: b'0.30' as a.score, expected the fields"),
        (b"0.25", b"1e-1", "offset 0: b'1e-1' as a.score, expected the fields"),
        (b"0.25", b"true", "offset 0: b'true' as a.score, expected the fields"),
        ("ü".encode(), b"\xff\xff", "offset 0: b'Ein Gr\\xff\\xffnfink\\n' as a.txt, expected the fields"),
        (b'"year":1999', b'"year":"999', "offset 0: b'{"),
        (b'"year":1999', b'"year":01.0', "offset 0: b'{"),
    ],
)
def test_members_of_features_that_the_writer_would_not_write_are_named(got, put, fault):
    data = tarred(CAPTIONED, KNOWN)
    assert data.count(got) == 1
    with pytest.raises(FormatError) as caught:
        list(FORMAT.read_shard(io.BytesIO(data.replace(got, put)), classes=(), features=CAPTIONED))
    assert str(caught.value).startswith(fault)


def test_members_of_a_sample_have_one_bound_together():
    features = {name: Feature("bytes", member=name) for name in ("one", "two")}
    data = tarred(features, {"one": b"1" * 500_000, "two": b"2"})
    grown = data.replace(header("a.two", 1), header("a.two", 600_000))
    with pytest.raises(FormatError, match=r"a\.two of 600,000 bytes, expected at most 548,576"):
        list(FORMAT.read_shard(io.BytesIO(grown), classes=(), features=features))


@pytest.mark.parametrize(
    ("features", "members", "placed"),
    [
        ({"caption": Feature("text"), "title": Feature("text")}, {}, {"caption": "txt", "title": ""}),
        ({"TEXT": Feature("text")}, {}, {"TEXT": "txt"}),
        ({"caption": Feature("text"), "text": Feature("text")}, {}, {"caption": "txt", "text": ""}),
        ({"caption": Feature("text"), "text": Feature("text")}, {"text": "txt"}, {"caption": "", "text": "txt"}),
        ({"caption": Feature("text", (None,)), "text": Feature("int64")}, {}, {"caption": "", "text": ""}),
        ({"caption": Feature("text")}, {"caption": "json"}, {"caption": ""}),
        ({"mask": Feature("bytes"), "A b": Feature("bytes")}, {}, {"mask": "mask", "A b": "a_b"}),
        ({"mask": Feature("bytes"), "Mask": Feature("bytes")}, {}, {"Mask": "mask", "mask": ""}),
        ({"masks": Feature("bytes", (None,)), "a..b": Feature("bytes")}, {}, {"masks": "", "a..b": ""}),
        ({"mask": Feature("bytes", member="mask.png")}, {}, {"mask": "mask.png"}),
        ({"mask": Feature("bytes", member="mask.png")}, {"mask": "m"}, {"mask": "m"}),
        ({"score": Feature("float64"), "o": Feature("records")}, {"score": "score"}, {"score": "score", "o": ""}),
    ],
)
def test_each_feature_has_one_place(features, members, placed):
    assert {name: each.member for name, each in FORMAT.placed(features, members).items()} == placed


@pytest.mark.parametrize(
    ("members", "fault"),
    [
        ({"captoin": "txt"}, "`members` 'captoin', expected one of caption, title; did you mean caption?"),
        ({"caption": "jpg"}, "`members`: the suffix 'jpg', expected 1 to 100 of a-z"),
        ({"caption": "t", "title": "t"}, "`members`: 2 features with the suffix 't', expected one"),
    ],
)
def test_places_that_no_feature_can_have_are_refused(members, fault):
    with pytest.raises(UsageError) as caught:
        FORMAT.placed({"caption": Feature("text"), "title": Feature("text")}, members)
    assert str(caught.value).startswith(fault)


@examples
@given(any_shards)
def test_tarfile_reads_the_same_from_a_stream(case):
    shard, classes = case
    found = []
    with tarfile.open(fileobj=io.BytesIO(write(*shard, has_classes=bool(classes))), mode="r|") as archive:
        for member in archive:
            assert (member.isreg(), member.mode, member.mtime) == (True, 0o644, 0)
            assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
            found.append((member.name, archive.extractfile(member).read()))
    assert found == [member for sample in shard for member in members_of(sample)]


def members_of(sample):
    fields = {"height": sample.height, "width": sample.width, "orientation": sample.orientation}
    members = [(f"{sample.key}.jpg", sample.image)]
    if sample.class_name:
        members.append((f"{sample.key}.cls", str(sample.label).encode()))
        fields |= {"label": sample.label, "class_name": sample.class_name}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return [*members, (f"{sample.key}.json", text.encode())]


@examples
@given(keys, st.integers(1, 5000))
def test_a_header_is_the_one_of_the_posix_standard(key, num_bytes):
    sample = Sample(key, bytes(num_bytes), NO_LABEL, "", 1, 1, 1)
    member = tarfile.TarInfo(f"{key}.jpg")
    member.size = num_bytes
    try:
        header = member.tobuf(tarfile.USTAR_FORMAT)
    except ValueError:  # the name fits no ustar header
        assert write(sample)[:1536][156:157] == b"x"
        return
    assert write(sample)[:512] == header


@pytest.fixture(scope="module")
def archive_of_long_keys(tmp_path_factory):
    """Keys of 90 to 200 bytes, with no folder, a short one, a long one and many."""
    long_keys = []
    for size in range(90, 201):
        body = f"k{size:03d}" + "abcdefghij" * 20
        long_keys += [
            body[:size],
            ("f/" + body)[:size],
            (body[:70] + "/" + body)[:size],
            (body[: size - 8] + "/" + body[:7]),
            re.sub(r"(\w{11})\w", r"\1/", body + "p")[:size].rstrip("/"),
        ]
    path = tmp_path_factory.mktemp("long") / "long-keys.tar"
    unique = sorted(set(long_keys))
    path.write_bytes(write(*(Sample(key, key.encode(), NO_LABEL, "", 1, 1, 1) for key in unique)))
    return path, unique


def test_long_keys_are_read_by_gnu_tar(archive_of_long_keys):
    path, long_keys = archive_of_long_keys
    listing = subprocess.run(["tar", "-tf", path], capture_output=True, text=True, check=True)
    assert listing.stderr == ""
    assert listing.stdout.splitlines() == [key + suffix for key in long_keys for suffix in (".jpg", ".json")]


def test_long_keys_are_read_by_the_libraries(archive_of_long_keys):
    path, long_keys = archive_of_long_keys
    expected = [(key, NO_LABEL, hashlib.sha256(key.encode()).hexdigest()) for key in long_keys]
    assert read_samples(FORMAT, path.read_bytes(), classes=()) == [
        Sample(key, key.encode(), NO_LABEL, "", 1, 1, 1) for key in long_keys
    ]
    assert read_with_webdataset([str(path)]) == expected
    assert read_with_hf_datasets([str(path)]) == expected


def test_gnu_tar_lists_an_empty_shard_without_a_warning(tmp_path):
    path = tmp_path / "empty.tar"
    path.write_bytes(write())
    listing = subprocess.run(["tar", "-tf", path], capture_output=True, text=True, check=True)
    assert (listing.stdout, listing.stderr) == ("", "")


SMALL_LABELLED = write(LABELLED, LABELLED, has_classes=True)
SMALL_PLAIN = write(PLAIN, LONG, PLAIN)


@examples
@given(mutations(SMALL_LABELLED))
def test_damage_to_a_labelled_shard_is_an_error_or_leaves_keys_and_labels(data):
    found = accepted(FORMAT, data, classes=CLASSES)
    # A run that is cut out or doubled may be a whole sample.
    assert found is None or {(s.key, s.label, s.class_name) for s in found} <= {(LABELLED.key, 3, CLASSES[3])}


@examples
@given(mutations(SMALL_PLAIN))
def test_damage_to_a_plain_shard_is_an_error_or_leaves_whole_samples(data):
    found = accepted(FORMAT, data, classes=())
    assert found is None or {s.key for s in found} <= {PLAIN.key, LONG.key}


@examples
@given(st.binary(max_size=3000))
def test_any_bytes_are_an_error_or_a_shard(data):
    accepted(FORMAT, data, classes=())


def test_every_flipped_bit_outside_the_contents_is_detected():
    data = write(PLAIN)
    image, text = range(512, 512 + len(PLAIN.image)), range(1536, 1536 + len('{"height":0,"orientation":1,"width":0}'))
    for position in set(range(len(data))) - set(image) - set(text):
        for bit in (0, 7):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            assert accepted(FORMAT, bytes(changed), classes=()) is None, (position, bit)


def test_every_truncation_is_detected():
    for end in range(len(SMALL_PLAIN)):
        assert accepted(FORMAT, SMALL_PLAIN[:end], classes=()) is None, end


def header(name, num_bytes):
    member = tarfile.TarInfo(name)
    member.size = num_bytes
    return member.tobuf(tarfile.USTAR_FORMAT)


def member(name, data):
    return header(name, len(data)) + data + bytes(-len(data) % 512)


JPG, JSON = member("a.jpg", b"jpeg"), member("a.json", b'{"height":1,"orientation":1,"width":1}')
LABELLED_JSON = member("a.json", b'{"class_name":"n01440764","height":1,"label":0,"orientation":1,"width":1}')
END = bytes(1024)


@pytest.mark.parametrize(
    ("data", "classes", "fault"),
    [
        (b"", (), "offset 0: the end of the file, expected 512 more bytes"),
        (JPG + JSON, (), "offset 2,048: the end of the file, expected 512 more bytes"),
        (JPG + JSON + bytes(512), (), "offset 2,560: the end of the file, expected 512 more bytes"),
        (JPG + JSON + bytes(512) + JPG, (), "offset 2,560: other bytes, expected a second zero block"),
        (END + b"x", (), "offset 1,024: more bytes, expected the end of the file"),
        (member("a.png", b"png") + JSON, (), "offset 0: a header of b'a.png', expected the header of a sample's .jpg"),
        (member("../a.jpg", b"jpeg"), (), "offset 0: a header of b'../a.jpg', expected the header of a sample's .jpg"),
        (JSON + END, (), "offset 0: a header of b'a.json', expected the header of a sample's .jpg"),
        (JPG + JPG, (), "offset 1,027: another name in the header, expected the one of a.json"),
        (JPG + JSON, CLASSES, "offset 1,026: another name in the header, expected the one of a.cls"),
        (
            JPG + JSON[:156] + b"5" + JSON[157:],
            (),
            "offset 1,180: another type in the header, expected the one of a.json",
        ),
        (
            JPG + JSON[:148] + b"000000" + JSON[154:],
            (),
            "offset 1,174: another checksum in the header, expected the one of a.json",
        ),
        (JPG[:-1] + b"x" + JSON, (), "offset 516: other bytes, expected zeros up to the next block"),
        (member("a.jpg", b"") + JSON, (), 'offset 0: b\'{"height":1,"orientation":1,"width":1}\' as a.json, expected '),
        (
            JPG + member("a.json", b'{"height":1, "orientation":1, "width":1}'),
            (),
            'offset 0: b\'{"height":1, "orientation":1, "width":1}\' as a.json, expected the fields',
        ),
        (
            JPG + member("a.json", b'{"height":01,"orientation":1,"width":1}'),
            (),
            'offset 0: b\'{"height":01,"orientation":1,"width":1}\' as a.json, expected the fields',
        ),
        (JPG + member("a.json", b"[" * 60_000), (), "offset 0: b'[[["),
        (JPG + member("a.cls", b"4") + LABELLED_JSON, CLASSES, "offset 0: b'4' as the label of a, expected 0 to 3"),
        (JPG + member("a.cls", b"03") + LABELLED_JSON, CLASSES, "offset 0: b'03' as the label of a, expected 0 to 3"),
        (JPG + member("a.cls", b"1") + LABELLED_JSON, CLASSES, 'offset 0: b\'{"class_name":"n01440764"'),
        (JPG + header("a.json", 65_537), (), "offset 1,024: a.json of 65,537 bytes, expected at most 65,536"),
        (
            header("a.jpg", MAX_IMAGE_BYTES + 1),
            (),
            "offset 0: a.jpg of 268,435,457 bytes, expected at most 268,435,456",
        ),
    ],
)
def test_members_that_the_writer_would_not_write_are_named(data, classes, fault):
    with pytest.raises(FormatError) as caught:
        read_samples(FORMAT, data, classes=classes)
    text = str(caught.value)
    assert text.startswith(fault)
    assert text.endswith("; the shard is damaged or was not written by a build: build it again")
    assert "\n" not in text
