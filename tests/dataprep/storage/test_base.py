"""What every storage promises, run on a folder and on a bucket."""

import os
import pickle
import re
import tarfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep.errors import ConflictError, SourceError, StorageError, UsageError
from dataprep.storage import ObjectInfo, Storage, open_storage
from dataprep.storage.base import FORBIDDEN, OtherSizeError, check_name, check_prefix, read_bounded
from dataprep.storage.checksums import crc32c_of, crc32c_of_bytes
from tests.support.samples import examples
from tests.support.storages import publish

# Resumable uploads begin above 8 MiB; 16 MiB is one chunk of them.
SIZES = [0, 1, 100_000, 8 << 20, (8 << 20) + 1, (16 << 20) + 1]
REFUSED_NAMES = ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../../b", "a/./b", "a\0b", "a\\..\\b", "a\nb"]
few_examples = settings(
    max_examples=25, derandomize=True, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
name_characters = st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], exclude_characters="/\\")
name_parts = st.text(name_characters, min_size=1, max_size=12).filter(lambda part: part not in (".", ".."))
names = st.lists(name_parts, min_size=1, max_size=3).map("/".join)
plain_parts = st.text(st.characters(exclude_characters=f"/{FORBIDDEN}"), min_size=1)
plain_names = st.lists(plain_parts.filter(lambda part: part not in (".", "..")), min_size=1, max_size=4).map("/".join)


def spooled(storage: Storage, name: str, data: bytes) -> Path:
    spool = storage.spool_path(name)
    spool.write_bytes(data)
    return spool


def names_in(storage: Storage, prefix: str = "") -> list[str]:
    return [info.name for info in storage.list(prefix)]


def test_a_small_object_is_created_once(storage: Storage) -> None:
    assert storage.create("a/b.json", b"{}")
    assert not storage.create("a/b.json", b"{}")
    assert storage.read("a/b.json") == b"{}"


def test_create_refuses_to_replace_other_bytes(storage: Storage) -> None:
    storage.create("x", b"abc")
    with pytest.raises(ConflictError) as caught:
        storage.create("x", b"abcd")
    assert str(caught.value) == (
        f"{storage.url_of('x')}: another object exists there already: 3 bytes with CRC32C 364b3fb7, expected 4 bytes "
        "with CRC32C 92c80a31; move it away and run the same command again, or choose another output"
    )
    assert (storage.read("x"), names_in(storage)) == (b"abc", ["x"])


def test_an_object_is_replaced_only_if_it_is_the_expected_one(storage: Storage) -> None:
    assert storage.replace("list.json", b"1", None)
    assert not storage.replace("list.json", b"2", None)
    assert not storage.replace("list.json", b"2", b"0")
    assert not storage.replace("other.json", b"2", b"1")
    assert storage.read("list.json") == b"1"
    assert storage.replace("list.json", b"22", b"1")
    assert storage.read("list.json") == b"22"
    storage.remove_stale_spools()
    assert names_in(storage) == ["list.json"]


def test_each_of_many_concurrent_replacements_knows_whether_it_succeeded(storage: Storage) -> None:
    """A counter that many raise: none of their steps is lost."""
    storage.create("count", b"0")

    def add_one(_: int) -> None:
        while not storage.replace("count", b"%d" % (int(before := storage.read("count")) + 1), before):
            pass

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add_one, range(24)))
    assert storage.read("count") == b"24"


@pytest.mark.parametrize("num_bytes", SIZES)
def test_a_spooled_file_is_published_whole(storage: Storage, num_bytes: int) -> None:
    data = os.urandom(num_bytes)
    spool = spooled(storage, "train/x.tar", data)
    storage.publish(spool, "train/x.tar", crc32c_of_bytes(data))
    info = storage.stat("train/x.tar")
    assert info is not None
    assert (info.name, info.num_bytes) == ("train/x.tar", num_bytes)
    assert info.crc32c in (None, crc32c_of_bytes(data))
    assert storage.read("train/x.tar") == data
    assert not spool.exists()


@pytest.mark.parametrize("num_bytes", [3, 9 << 20])
def test_publishing_the_same_bytes_again_is_success(storage: Storage, num_bytes: int) -> None:
    data = os.urandom(num_bytes)
    publish(storage, "x", data)
    again = spooled(storage, "x", data)
    storage.publish(again, "x", crc32c_of_bytes(data))
    assert not again.exists()
    assert names_in(storage) == ["x"]


@pytest.mark.parametrize("num_bytes", [3, 9 << 20])
def test_publish_refuses_to_replace_other_bytes_of_the_same_size(storage: Storage, num_bytes: int) -> None:
    ours, theirs = os.urandom(num_bytes), os.urandom(num_bytes)
    publish(storage, "x", theirs)
    spool = spooled(storage, "x", ours)
    with pytest.raises(ConflictError, match=f"CRC32C {crc32c_of(theirs):08x}") as caught:
        storage.publish(spool, "x", crc32c_of_bytes(ours))
    assert f"CRC32C {crc32c_of(ours):08x}" in str(caught.value)
    assert (storage.read("x"), names_in(storage), spool.exists()) == (theirs, ["x"], False)


def test_publishing_a_spool_file_that_is_gone_says_why(storage: Storage) -> None:
    spool = storage.spool_path("x")
    spool.unlink()
    with pytest.raises(StorageError, match="is gone, another build has cleared up; run the same command again"):
        storage.publish(spool, "x", crc32c_of_bytes(b""))
    assert storage.stat("x") is None


def test_every_spool_file_is_new_and_empty(storage: Storage) -> None:
    spools = [storage.spool_path("train/x.tar") for _ in range(3)]
    assert len(set(spools)) == 3
    assert [spool.read_bytes() for spool in spools] == [b"", b"", b""]


def test_objects_are_listed_in_the_order_of_their_names(storage: Storage) -> None:
    written = ["b", "a/b", "a-b", "a.b", "a/b-c", "ab", "a/é", "a/z/1", "Z", "a0"]
    for name in written:
        storage.create(name, name.encode())
    listed = list(storage.list())
    assert [info.name for info in listed] == sorted(written, key=str.encode)
    assert [info.num_bytes for info in listed] == [len(info.name.encode()) for info in listed]


def test_a_listing_begins_at_any_name(storage: Storage) -> None:
    written = sorted(["a", "b-", "b/1", "b/1/x", "b/2", "b0", "b/é", "c"], key=str.encode)
    written.remove("b/1")
    for name in written:
        storage.create(name, b"1")
    for first in [*written, "b", "b/10", "b/1.", "b.", "d", "0"]:
        assert [info.name for info in storage.list("", first)] == [name for name in written if name >= first], first
        below = [name for name in written if name.startswith("b/") and name >= first]
        assert [info.name for info in storage.list("b/", first)] == below, first


@pytest.mark.parametrize("prefix", ["train", "train/"])
def test_a_prefix_is_a_whole_component(storage: Storage, prefix: str) -> None:
    for name in ("train", "train2/x", "train-x", "other/train/x"):
        storage.create(name if name != "train" else "train/y/z", b"1")
    assert names_in(storage, prefix) == ["train/y/z"]
    assert names_in(storage, "tra") == []


def test_an_empty_storage_lists_nothing(storage: Storage) -> None:
    assert names_in(storage) == []
    assert names_in(storage, "train/") == []
    assert storage.stat("x") is None


def test_a_missing_object_is_a_file_not_found_error_that_names_it(storage: Storage) -> None:
    storage.create("folder/x", b"1")
    reads: list[Callable[[str], object]] = [
        storage.read,
        storage.open,
        lambda name: storage.read_range(name, 0, 1),
        lambda name: storage.read_range(name, 0, 0),
    ]
    for name in ("nothing", "folder", "folder/x/y"):
        for read in reads:
            with pytest.raises(FileNotFoundError, match=re.escape(storage.url_of(name))):
                read(name)
        assert storage.stat(name) is None


def test_a_small_object_is_read_up_to_a_bound(storage: Storage) -> None:
    storage.create("x", bytes(100_000))
    assert read_bounded(storage, "x", 100_000, advice="remove it") == bytes(100_000)
    assert read_bounded(storage, "y", 100_000, advice="remove it") is None
    with pytest.raises(
        SourceError, match=re.escape(f"{storage.url_of('x')}: 100,000 bytes, expected at most 99,999; ")
    ):
        read_bounded(storage, "x", 99_999, advice="remove it", error=SourceError)


@few_examples
@given(st.data())
def test_a_range_is_that_part_of_the_object(storage: Storage, data: st.DataObject) -> None:
    content = bytes(range(256)) * 40
    storage.create("x", content)
    offset = data.draw(st.integers(0, len(content)))
    num_bytes = data.draw(st.integers(0, len(content) - offset))
    assert storage.read_range("x", offset, num_bytes) == content[offset : offset + num_bytes]


@pytest.mark.parametrize(("offset", "num_bytes"), [(0, 11), (9, 2), (10, 1), (11, 0), (50, 1), (0, 1 << 50)])
def test_a_range_past_the_end_is_an_error_that_says_where_it_ends(storage, offset, num_bytes):
    storage.create("x", b"0123456789")
    with pytest.raises(StorageError, match=r"were requested, but it ends at 10; it is truncated, or not the file"):
        storage.read_range("x", offset, num_bytes)


@pytest.mark.parametrize("size", [9, 11])
def test_a_range_of_an_object_of_another_size_is_refused(storage: Storage, size: int) -> None:
    storage.create("x", b"0123456789")
    assert storage.read_range("x", 2, 3, file_bytes=10) == b"234"
    with pytest.raises(OtherSizeError, match=rf"x: 10 bytes, the index says {size}: it is truncated or was replaced"):
        storage.read_range("x", 2, 3, file_bytes=size)


@pytest.mark.parametrize(("offset", "num_bytes"), [(-1, 1), (0, -1)])
def test_a_negative_range_is_refused(storage: Storage, offset: int, num_bytes: int) -> None:
    storage.create("x", b"0123456789")
    with pytest.raises(UsageError, match="a range must not be negative, got"):
        storage.read_range("x", offset, num_bytes)


def test_ranges_are_read_by_many_threads_at_once(storage: Storage) -> None:
    content = os.urandom(1 << 20)
    storage.create("x", content)
    offsets = range(0, len(content), 4099)
    with ThreadPoolExecutor(64) as threads:
        parts = list(threads.map(lambda at: storage.read_range("x", at, min(4099, len(content) - at)), offsets))
    assert b"".join(parts) == content


@pytest.mark.parametrize("num_bytes", [0, 5, (9 << 20) + 5])
def test_a_stream_gives_the_whole_object(storage: Storage, num_bytes: int) -> None:
    content = os.urandom(num_bytes)
    publish(storage, "x", content)
    with storage.open("x") as stream:
        parts = list(iter(lambda: stream.read(1_000_003), b""))
    assert b"".join(parts) == content


def test_a_stream_may_be_read_as_a_tar_and_left_in_the_middle(storage: Storage, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name in ("a", "b"):
            (tmp_path / name).write_bytes(os.urandom(6 << 20))
            tar.add(tmp_path / name, name)
    publish(storage, "x.tar", (tmp_path / "x.tar").read_bytes())
    with storage.open("x.tar") as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        first = tar.next()
        assert first is not None
        member = tar.extractfile(first)
        assert member is not None
        assert member.read() == (tmp_path / "a").read_bytes()


@few_examples
@given(st.lists(st.tuples(names, st.binary(max_size=50)), max_size=4, unique_by=lambda item: item[0].split("/")[0]))
def test_any_name_holds_any_bytes(storage: Storage, written: list[tuple[str, bytes]]) -> None:
    for name, data in written:
        storage.create(name, data)
    listed = [info.name for info in storage.list() if not info.name.startswith("_build/")]
    assert listed == sorted((name for name, _ in written), key=str.encode)
    for name, data in written:
        assert storage.read(name) == data
        assert storage.read_range(name, 0, len(data)) == data
        storage.delete(name)
        assert storage.stat(name) is None


@pytest.mark.parametrize("name", [*REFUSED_NAMES, "a/" * 50_000 + ".."])
def test_names_that_leave_the_root_are_refused(storage: Storage, name: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: storage.stat(name),
        lambda: storage.read(name),
        lambda: storage.open(name),
        lambda: storage.read_range(name, 0, 1),
        lambda: storage.create(name, b""),
        lambda: storage.spool_path(name),
        lambda: storage.delete(name),
        lambda: storage.delete_tree(f"{name}/x"),
        lambda: list(storage.list(f"{name}/x")),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=r"object name .* must") as caught:
            call()
        assert len(str(caught.value)) < 250
    spool = spooled(storage, "x", b"")
    with pytest.raises(UsageError, match=r"object name .* must"):
        storage.publish(spool, name, crc32c_of_bytes(b""))


def test_the_whole_storage_is_not_a_tree_to_delete(storage: Storage) -> None:
    storage.create("x", b"1")
    with pytest.raises(UsageError, match="object name '' must be relative"):
        storage.delete_tree("")
    assert names_in(storage) == ["x"]


def test_a_name_of_100_000_characters_is_one_short_line(storage: Storage) -> None:
    with pytest.raises((UsageError, StorageError)) as caught:
        storage.create("x" * 100_000, b"1")
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


def test_delete_removes_one_object_and_may_be_repeated(storage: Storage) -> None:
    storage.create("a/x", b"1")
    storage.create("a/y", b"2")
    assert storage.read_range("a/x", 0, 1) == b"1"
    for _ in range(2):
        storage.delete("a/x")
    storage.delete("a/y/z")
    assert names_in(storage) == ["a/y"]
    with pytest.raises(FileNotFoundError):
        storage.read_range("a/x", 0, 1)


def test_delete_tree_removes_a_folder_alone_and_may_be_repeated(storage: Storage) -> None:
    for name in ("_build/a", "_build/b/c", "_build2/d", "e"):
        storage.create(name, b"1")
    for prefix in ("_build", "_build/", "_build"):
        storage.delete_tree(prefix)
    assert names_in(storage) == ["_build2/d", "e"]


def test_two_writers_of_the_same_bytes_both_succeed(storage: Storage) -> None:
    with ThreadPoolExecutor(8) as threads:
        for number in range(10):
            made = list(threads.map(lambda _, name=f"x{number}": storage.create(name, b"same"), range(8)))
            assert made.count(True) == 1


@pytest.mark.parametrize("num_bytes", [100, 9 << 20])
def test_exactly_one_of_the_writers_with_different_bytes_succeeds(storage: Storage, num_bytes: int) -> None:
    contents = [os.urandom(num_bytes) for _ in range(4)]
    start = threading.Barrier(len(contents))

    def write(data: bytes) -> bytes:
        spool = spooled(storage, "x", data)
        start.wait()
        storage.publish(spool, "x", crc32c_of_bytes(data))
        return data

    with ThreadPoolExecutor(len(contents)) as threads:
        futures: list[Future[bytes]] = [threads.submit(write, data) for data in contents]
    errors = [future.exception() for future in futures]
    winners = [future.result() for future, error in zip(futures, errors, strict=True) if error is None]
    assert [type(error) for error in errors if error is not None] == [ConflictError] * (len(contents) - 1)
    assert winners == [storage.read("x")]


def test_a_storage_is_pickled_as_its_url(storage: Storage) -> None:
    storage.create("x", b"from here")
    assert len(pickle.dumps(storage)) < 500
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        assert processes.submit(storage.read_range, "x", 5, 4).result() == b"here"
        assert processes.submit(storage.create, "y", b"from there").result()
    assert storage.read("y") == b"from there"


def test_urls_name_the_storage_and_its_objects(storage: Storage, storage_url: str) -> None:
    assert storage.url == storage_url
    assert open_storage(f"{storage_url}/").url == storage_url
    assert storage.url_of("a/b") == f"{storage_url}/a/b"
    assert storage.is_local == (not storage_url.startswith("gs://"))
    assert storage.reads_in_flight >= (1 if storage.is_local else 32)


def test_a_file_is_replaced_where_exactly_the_expected_one_stands(storage):
    def put(data: bytes, expected: bytes) -> bool:
        spool = storage.spool_path("index.parquet")
        spool.write_bytes(data)
        due = ObjectInfo("index.parquet", len(expected), crc32c_of_bytes(expected))
        replaced = storage.replace_file(spool, "index.parquet", crc32c_of_bytes(data), due)
        assert not spool.exists()
        return replaced

    assert not put(b"new", b"old")  # nothing exists there
    storage.create("index.parquet", b"old")
    assert put(b"new", b"old")
    assert put(b"new", b"old")  # again, as after a lost answer
    assert not put(b"newer", b"old")
    assert storage.read("index.parquet") == b"new"


# Names


@examples
@given(plain_names)
def test_a_path_of_plain_parts_is_a_valid_name(name: str):
    assert check_name(name) == name
    assert check_prefix(f"{name}/") == check_prefix(name) == name
    assert not PurePosixPath(name).is_absolute()


@examples
@given(plain_names, st.sampled_from(["", ".", ".."]), st.integers(0, 4))
def test_a_part_that_is_empty_or_climbs_is_refused(name: str, part: str, at: int):
    components = name.split("/")
    components.insert(at, part)
    with pytest.raises(UsageError, match='must be relative, with parts separated by "/" and none empty'):
        check_name("/".join(components))


@examples
@given(plain_names, st.sampled_from(FORBIDDEN))
def test_forbidden_characters_are_refused(name: str, character: str):
    with pytest.raises(UsageError, match="must hold no backslash, NUL or line end"):
        check_name(f"{name}{character}x")


def test_the_empty_prefix_is_the_root():
    assert check_prefix("") == ""
    with pytest.raises(UsageError, match="must be relative"):
        check_prefix("/")
