"""S3, Azure and web servers as places to read: S3 by moto's server, the web by Python's."""

import os
import subprocess

import pytest

from dataprep.errors import AccessError, CredentialsError, StorageError, UnansweredError, UsageError
from dataprep.storage import open_storage
from dataprep.storage.base import Browsable, ChangedError, OtherSizeError, TooLargeError
from dataprep.storage.gcs_client import Deadlines
from dataprep.storage.remote import LIST_COMMAND, AzureStorage, S3Storage
from tests.support.file_server import file_server
from tests.support.own_data import write_files
from tests.support.s3_server import KEYS, s3_server
from tests.support.storages import run_python

ODD = ("a b%41.jpg", "ä/x#y?z.jpg", "train.txt", "train/1.jpg", "Train/1.jpg", "~t+p&amp.jpg")
FILES = {f"pics/{name}": name.encode() * 9 for name in ODD} | {"pics2/x": b"x", "top.txt": b"t"}
SOON = Deadlines(1.0, refused_s=1.0)


@pytest.fixture(scope="module")
def server():
    with s3_server() as found:
        found.put("bucket", FILES)
        yield found


@pytest.fixture
def s3(server, monkeypatch):
    clear(monkeypatch)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


def clear(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)


def test_objects_are_listed_in_order_and_read_whatever_their_names(s3):
    storage = open_storage("s3://bucket/pics/")
    found = list(storage.list())
    assert [(info.name, info.num_bytes) for info in found] == [(name, len(name.encode()) * 9) for name in sorted(ODD)]
    for info in found:
        data = FILES[f"pics/{info.name}"]
        assert storage.stat(info.name) == info
        assert storage.stat(info.name).version == info.version
        assert storage.read(info.name) == storage.open(info.name).read() == data
        assert storage.read_range(info.name, 3, 7, info.version, len(data)) == data[3:10]
    assert [info.name for info in storage.list("train/")] == ["train/1.jpg"]
    assert [info.name for info in storage.list(first="train/")] == [name for name in sorted(ODD) if name >= "train/"]
    assert [info.name for info in open_storage("s3://bucket").list()] == sorted(FILES)
    assert storage.url_of("x") == "s3://bucket/pics/x"
    assert [info and info.name for info in storage.stats(["train.txt", "no"])] == ["train.txt", None]


def test_a_level_and_a_beginning_are_listed_alone(s3):
    assert open_storage("s3://bucket").folders() == ["pics", "pics2"]
    storage = open_storage("s3://bucket/pics")
    assert isinstance(storage, Browsable)
    assert storage.folders() == ["Train", "train", "ä"]
    assert storage.folders("ä") == []
    assert list(storage.first("", 3)) == list(storage.list())[:3]
    assert list(storage.first("train", 3)) == list(storage.list("train"))


def test_marks_of_folders_are_left_out(s3):
    s3.put("marked", {"pics/": b"", "pics/a/": b"", "pics/a/1.jpg": b"1", "pics/empty/": b"", "pics/zero.txt": b""})
    assert [info.name for info in open_storage("s3://marked/pics").list()] == ["a/1.jpg", "zero.txt"]


def test_a_listing_of_several_pages_goes_on_after_a_fault(s3, monkeypatch):
    monkeypatch.setattr("dataprep.storage.remote.PAGE_OBJECTS", 2)
    s3.put("long", {f"{number:03}": b"x" for number in range(7)})
    listing = open_storage("s3://long").list()
    found = [next(listing).name]
    s3.faults = 1
    assert found + [info.name for info in listing] == [f"{number:03}" for number in range(7)]


def test_threads_that_begin_at_once_share_one_client(s3):
    """In a process whose first reads they are, as in a worker."""
    script = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from dataprep.storage import open_storage\n"
        "storage = open_storage('s3://bucket/pics')\n"
        "with ThreadPoolExecutor(64) as threads:\n"
        "    print(len(set(map(id, threads.map(lambda _: storage._store, range(64))))))"
    )
    done = run_python(script)
    assert done.stdout == "1\n", done


def test_what_is_not_there(s3):
    storage = open_storage("s3://bucket/pics")
    assert storage.stat("absent") is None
    assert list(open_storage("s3://bucket/absent").list()) == []
    for read in (storage.read, storage.open, lambda name: storage.read_range(name, 0, 1)):
        with pytest.raises(FileNotFoundError):
            read("absent")
    for offset in (80, 800):
        with pytest.raises(StorageError, match="it ends at 81"):
            storage.read_range("train.txt", offset, 30)
    with pytest.raises(UsageError, match="must not be negative"):
        storage.read_range("train.txt", -1, 2)
    with pytest.raises(TooLargeError, match="81 bytes, expected at most 10"):
        storage.read("train.txt", 10)
    assert storage.read_range("train.txt", 5, 0) == b""
    for read in (lambda: list(open_storage("s3://nowhere/x").list()), lambda: open_storage("s3://nowhere").read("x")):
        with pytest.raises((AccessError, FileNotFoundError), match=r"s3://nowhere(: s3://nowhere does not exist|/x)"):
            read()


def test_an_object_that_is_replaced_while_it_is_read_is_refused(s3):
    storage = open_storage("s3://bucket")
    s3.put("bucket", {"moving": b"before"})
    version = storage.stat("moving").version
    s3.put("bucket", {"moving": b"after!"})
    with pytest.raises(ChangedError, match="moving: written again, replaced"):
        storage.read_range("moving", 0, 3, version)
    with pytest.raises(OtherSizeError, match="6 bytes, the index says 5"):
        storage.read_range("moving", 0, 3, file_bytes=5)
    s3.client().delete_object(Bucket="bucket", Key="moving")


def test_faults_are_tried_again_for_as_long_as_the_reader_waits(s3):
    storage = S3Storage("s3://bucket/pics", SOON)
    s3.faults = 2
    assert storage.read("train.txt") == FILES["pics/train.txt"]
    s3.faults = 1000
    with pytest.raises(UnansweredError, match=r"503.*; run the command again"):
        storage.read_range("train.txt", 0, 5)
    s3.faults = 0


def test_an_endpoint_that_does_not_answer_is_one_line(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(UnansweredError, match="S3 cannot be reached, check the network and the endpoint") as raised:
        list(S3Storage("s3://bucket", SOON).list())
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    "answer",
    [
        ("301 Moved Permanently", b""),
        ("400 Bad Request", b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"),
    ],
)
def test_a_bucket_of_another_region_is_named_at_once(s3, answer, monkeypatch):
    monkeypatch.setattr(s3, "answer", answer)
    requests = len(s3.requests)
    with pytest.raises(AccessError, match=r"s3://bucket is in another region; set AWS_REGION \("):
        open_storage("s3://bucket").read_range("top.txt", 0, 1)
    assert len(s3.requests) == requests + 1


def test_an_object_whose_name_no_disk_can_have_is_named_at_once(s3):
    s3.put("doubled", {"a//b.jpg": b"1", "c.jpg": b"2"})
    with pytest.raises(StorageError, match=r's3://doubled: Path "a//b.jpg" .* give this object another name'):
        list(open_storage("s3://doubled").list())


def test_without_credentials_the_error_says_what_to_set(s3, monkeypatch, tmp_path):
    s3.put("open", {"x": b"anyone"}, public=True)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    with pytest.raises(UsageError, match="s3://open: Generic S3 error: Missing AccessKeyId; set AWS_ACCESS_KEY_ID and"):
        open_storage("s3://open").read("x")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_SKIP_SIGNATURE")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    with pytest.raises(CredentialsError, match="s3://open: no credentials were found; set AWS_ACCESS_KEY_ID and"):
        open_storage("s3://open").stat("x")
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = {AWS_ACCESS_KEY_ID}\naws_secret_access_key = {AWS_SECRET_ACCESS_KEY}".format(
            **KEYS
        )
    )
    assert open_storage("s3://open").read("x") == b"anyone"
    (tmp_path / "credentials").unlink()
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert open_storage("s3://open").read("x") == b"anyone"
    with pytest.raises(AccessError, match="reading or listing it is denied; set AWS_ACCESS_KEY_ID") as raised:
        open_storage("s3://bucket").read("top.txt")
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in str(raised.value)


def test_a_listing_that_is_denied_is_one_line(s3):
    from moto.core import set_initial_no_auth_action_count

    @set_initial_no_auth_action_count(0)
    def refused():
        with pytest.raises(AccessError, match="s3://bucket/pics: reading or listing it is denied") as raised:
            list(open_storage("s3://bucket/pics").list())
        assert len(str(raised.value).splitlines()) == 1

    refused()


def test_files_of_a_web_server_are_listed_by_their_list_and_read(tmp_path):
    write_files(tmp_path, {name: data for name, data in FILES.items() if "?" not in name})
    with file_server(tmp_path) as url:
        storage = open_storage(f"{url}/pics")
        with pytest.raises(
            StorageError, match=r"a web server does not list its files, and there is no listing.txt; put"
        ):
            list(storage.list())
        subprocess.run(["bash", "-c", LIST_COMMAND], cwd=tmp_path / "pics", check=True)
        names = sorted(name for name in ODD if "?" not in name)
        found = list(storage.list())
        assert [info.name for info in found] == names
        for info in found:
            data = FILES[f"pics/{info.name}"]
            assert storage.stat(info.name) == info
            assert storage.read_range(info.name, 3, 7, info.version, len(data)) == data[3:10]
        assert [info.name for info in storage.list("train/")] == ["train/1.jpg"]
        assert storage.stat("absent") is None
        (tmp_path / "pics/train.txt").write_bytes(b"another")
        with pytest.raises(ChangedError):
            storage.read_range("train.txt", 0, 7, next(info for info in found if info.name == "train.txt").version)
        (tmp_path / "pics/train.txt").unlink()
        with pytest.raises(StorageError, match=r"train.txt: listing.txt names it, but it does not exist"):
            list(storage.list())
    with (
        file_server(tmp_path, ranges=False) as url,
        pytest.raises(StorageError, match="the web server sends no ranges"),
    ):
        open_storage(url).read("top.txt")


def test_a_forked_process_is_told_to_be_started_otherwise(tmp_path):
    script = f"""
import os, warnings
from dataprep.storage import open_storage
from tests.support.file_server import file_server
from pathlib import Path
warnings.simplefilter("ignore")
Path({str(tmp_path)!r}, "x").write_bytes(b"x")
with file_server(Path({str(tmp_path)!r})) as url:
    storage = open_storage(url)
    assert storage.read("x") == b"x"
    if os.fork() == 0:
        try:
            storage.read("x")
        except Exception as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()
"""
    done = run_python(script)
    assert (
        'this process cannot read from the web server, because its parent did before the fork; start workers with "'
        in (done.stdout)
    ), done


def test_containers_of_azure_need_credentials_and_read_from_an_endpoint(monkeypatch):
    clear(monkeypatch)
    storage = AzureStorage("az://container/pics", SOON)
    with pytest.raises(CredentialsError, match="az://container/pics: no credentials were found; set AZURE_STORAGE_ACC"):
        storage.stat("x")
    for name, value in (("ACCOUNT_NAME", "me"), ("SAS_TOKEN", "sig=secret"), ("ENDPOINT", "http://127.0.0.1:9/me")):
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    with pytest.raises(UnansweredError, match="Azure cannot be reached") as raised:
        storage.stat("x")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("s3://", "does not name a place; expected s3://bucket/prefix"),
        ("s3:///x", "does not name a place"),
        ("az://a b/x", "does not name a place; expected az://container/prefix"),
        ("https://me:password@host/x", "does not name a place; expected https://host/prefix, without"),
        ("https://host/x?sig=1", "does not name a folder"),
        ("s3://bucket/a/../b", "must be relative"),
    ],
)
def test_urls_that_name_no_place(url, wanted):
    with pytest.raises(UsageError, match=wanted):
        open_storage(url)
