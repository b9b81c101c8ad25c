"""Text files of pictures: each text is found with its picture, wherever they lie; what is odd is one clear error."""

import io
import json
import random
import tarfile
import zipfile

import pytest

from dataprep.dataset.features import Feature, annotation_values
from dataprep.errors import DataprepError, SourceError, UsageError
from dataprep.sources import configured
from dataprep.sources.base import OwnData
from dataprep.sources.folder import MAX_TEXT_BYTES, text_files
from dataprep.storage import open_originals, open_storage
from tests.support.own_data import picture, write_files

JPEG = picture(1)
CAPTION = (("caption", "txt"),)
TEXTS = {
    "a": "a cat\n",
    "a-b": "\ufeffof Windows\r\n",
    "a.b": " 007 ",
    "deep/a": "two\nlines\n\n",
    "deep/Grünfink": "\u2028 🐦 NUL \0",
    "z": "",
}
STORED = {
    "a": "a cat",
    "a-b": "of Windows",
    "a=2Eb": " 007 ",
    "deep/a": "two\nlines",
    "deep/Gr=C3=BCnfink": "\u2028 🐦 NUL \0",
    "z": "",
}
"""The same texts by key: without the mark of UTF-8 in front, and without line ends behind."""


def files(texts=TEXTS, suffix="txt"):
    found: dict[str, bytes | str] = {"README.txt": "about the pictures"}
    for number, (name, text) in enumerate(texts.items()):
        found[f"{name}.{'webp' if number % 2 else 'jpg'}"] = JPEG
        found[f"{name}.{suffix}"] = text
    return found


def in_bytes(content):
    return {name: data.encode() if isinstance(data, str) else data for name, data in content.items()}


def opened(root, **own):
    own = {"text_files": CAPTION, "label_from": "none"} | own
    return configured("folder", own=OwnData(name="pets", **own)).opened(open_originals(str(root)))


def values(dataset, split="train"):
    found = dataset.found[split]
    return {ref.key: annotation_values(found.features, ref.annotations) for ref in found.refs}


def captions(dataset):
    return {key: row["caption"] for key, row in values(dataset).items()}


def test_texts_in_a_folder_and_in_a_bucket(tmp_path, bucket_url):
    write_files(tmp_path, files())
    for name, data in in_bytes(files()).items():
        open_storage(bucket_url).create(name, data)
    for root in (tmp_path, bucket_url):
        dataset = opened(root)
        assert captions(dataset) == STORED
        assert dataset.found["train"].features == {"caption": Feature("text")}
        assert dataset.notes == ("skipped: 1 .txt",)


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize(
    ("top", "alone", "in_folder"), [("", "", "pairs/"), ("pairs/", "pairs/", "pairs/"), ("x/y/", "y/", "pairs/x/y/")]
)
def test_texts_in_an_archive(tmp_path, kind, top, alone, in_folder):
    """The archive is the source itself, or a file in it; a folder that holds everything is removed from the former."""
    content = [(top + name, data) for name, data in reversed(in_bytes(files()).items())]
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "pairs.zip", "w") as archive:
            for name, data in content:
                archive.writestr(name, data)
    else:
        with tarfile.open(tmp_path / "pairs.tar", "w") as packed:
            for name, data in content:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                packed.addfile(member, io.BytesIO(data))
    assert captions(opened(tmp_path, archive=f"pairs.{kind}")) == {alone + key: text for key, text in STORED.items()}
    assert captions(opened(tmp_path)) == {in_folder + key: text for key, text in STORED.items()}


def test_texts_join_the_columns_of_metadata(tmp_path):
    rows = "".join(f"{name}.{'webp' if n % 2 else 'jpg'},{n}\n" for n, name in enumerate(TEXTS))
    write_files(tmp_path, {**files(), "metadata.csv": f"file_name,n\n{rows}"})
    dataset = opened(tmp_path)
    assert values(dataset) == {key: {"caption": text, "n": n} for n, (key, text) in enumerate(STORED.items())}
    assert list(dataset.found["train"].features) == ["caption", "n"]


def test_texts_decide_labels_and_splits_like_a_column(tmp_path):
    content = {f"{n}.jpg": JPEG for n in range(40)} | {f"{n}.cls": f"{('dog', 'cat')[n % 2]}\n" for n in range(40)}
    content |= {f"{n}.txt": f"scene {n // 2}" for n in range(40)}
    dataset = opened(
        write_files(tmp_path, content),
        text_files=(("label", "cls"), ("scene", "txt")),
        label_from=None,
        val_fraction=0.4,
        group_by="scene",
    )
    assert dataset.found["train"].classes == ("cat", "dog")
    assert "classes from the text files .cls" in dataset.notes
    scenes = [{row["scene"] for row in values(dataset, split).values()} for split in ("train", "val")]
    assert scenes[0].isdisjoint(scenes[1])
    assert len(scenes[0] | scenes[1]) == 20


def test_pictures_without_a_text_take_the_default(tmp_path):
    write_files(tmp_path, {"1.jpg": JPEG, "1.caption": "one", "2.jpg": JPEG})
    found = opened(tmp_path, text_files=(("caption", "caption"),), defaults=(("caption", "no words"),))
    assert captions(found) == {"1": "one", "2": "no words"}


def test_texts_that_are_not_asked_for_are_passed_over_with_the_option(tmp_path):
    write_files(tmp_path, {"1.jpg": JPEG, "1.txt": "one", "2.webp": JPEG, "2.txt": "two", "notes.txt": ""})
    assert opened(tmp_path, text_files=()).notes == (
        "skipped: 3 .txt",
        "some of these have the name of an image, as '1.txt' does: `text_files` caption makes their texts a feature",
    )
    write_files(tmp_path / "other", {"2.webp": JPEG, "2.caption": "x"})
    assert "`text_files` caption=caption" in opened(tmp_path / "other", text_files=()).notes[1]


@pytest.mark.parametrize(
    ("content", "own", "text"),
    [
        ({"2.jpg": JPEG}, {}, "no .txt file for 1 of 2 images: '2.jpg'; expected one of the same name"),
        ({"a/1.txt": "x"}, {}, "no image for 1 of 2 text files: 'a/1.txt'; expected one of the same name"),
        ({"1.TXT": "x"}, {}, "are text files of one picture; remove one"),
        ({"1.txt": bytes(MAX_TEXT_BYTES + 1)}, {}, "1,048,577 bytes, expected the text of one image"),
        ({"1.txt": "\x01" * (MAX_TEXT_BYTES // 2)}, {}, "bytes of annotations, expected at most 1,048,576"),
        ({"1.txt": "ä".encode("utf-16")}, {}, "'1.txt': not UTF-8; save the file as UTF-8"),
        ({"1.txt": b"\xed\xa0\x80"}, {}, "'1.txt': not UTF-8"),
        ({"metadata.jsonl": json.dumps({"file_name": "1.jpg", "caption": "x"})}, {}, "a column caption, too; choose"),
        ({"1.png": JPEG}, {}, "two images have the key 1, ignoring case"),
        ({}, {"defaults": (("age", "1"),)}, "`default`: "),
        ({}, {"label_from": "breed"}, "`label_from`: "),
        ({}, {"group_by": "who", "val_fraction": 0.5}, "`group_by`: "),
    ],
)
def test_what_a_newcomer_is_told(tmp_path, content, own, text):
    write_files(tmp_path, {"1.jpg": JPEG, "1.txt": "one", **content})
    options = {"text_files": CAPTION} | own
    with pytest.raises((SourceError, UsageError)) as error:
        configured("folder", own=OwnData(name="pets", **options)).enumerate(
            open_originals(str(tmp_path)), "train", allow_partial=False
        )
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_a_column_of_the_same_name_can_be_left_out(tmp_path):
    row = json.dumps({"file_name": "1.jpg", "caption": "of the row"})
    write_files(tmp_path, {"1.jpg": JPEG, "1.txt": "of the file", "metadata.jsonl": row})
    assert captions(opened(tmp_path, drop=("caption",))) == {"1": "of the file"}


def test_compressed_texts_of_a_zip_are_refused_and_others_passed_over(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("1.jpg", JPEG)
        archive.writestr("1.txt", "x" * 1000, zipfile.ZIP_DEFLATED)
    assert len(opened(tmp_path, archive="x.zip", text_files=()).found["train"].refs) == 1
    with pytest.raises(SourceError, match=r"1\.txt.*compressed"):
        opened(tmp_path, archive="x.zip")


def test_any_bytes_are_a_text_or_refused(tmp_path):
    """Whatever bytes a text file has: the text that Python reads, or one line of error."""
    write_files(tmp_path, {"1.jpg": JPEG})
    draw = random.Random(3)
    refused = []
    for _ in range(200):
        data = draw.choice(["grün 🐦\r\n".encode(), draw.randbytes(draw.randrange(6))])
        data += draw.choice([b"", b"\0", b"\xff", b"\n\n", b"\xc3", b"\xf4\x90\x80\x80"])
        (tmp_path / "1.txt").write_bytes(data)
        try:
            found = captions(opened(tmp_path))
        except DataprepError as error:
            refused.append(str(error))
        else:
            assert found == {"1": data.decode().removeprefix("\ufeff").rstrip("\r\n")}
    assert 50 < len(refused) < 150
    assert all("not UTF-8" in text and "\n" not in text for text in refused)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], ()),
        (["caption"], (("caption", "txt"),)),
        (["tags=.JSON", "caption"], (("caption", "txt"), ("tags", "json"))),
        (["label=cls"], (("label", "cls"),)),
    ],
)
def test_features_and_suffixes(given, expected):
    assert text_files(given) == expected


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["width"], "`text_files` width: the name 'width' is taken"),
        (["a/b"], "expected 1 to 100 characters, no '/'"),
        ([""], "is not allowed"),
        (["caption=jpg"], "no text file has the suffix 'jpg'; expected one such as txt or caption"),
        (["caption=tar.gz"], "no text file has the suffix"),
        (["caption", "caption=caption"], "the same name twice among caption, caption=caption"),
        (["a", "b=txt"], "the same suffix twice among a, b=txt"),
    ],
)
def test_features_and_suffixes_that_are_refused(given, text):
    with pytest.raises(UsageError) as error:
        text_files(given)
    assert text in str(error.value)
