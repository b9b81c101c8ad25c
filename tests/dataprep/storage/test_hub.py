"""The Hub as a place of originals: by its own API over HTTP, with faults, tokens and pages."""

import pytest

from dataprep.errors import AccessError, StorageError, UsageError
from dataprep.storage import hub, open_storage
from dataprep.storage.base import ObjectInfo, TooLargeError
from dataprep.storage.hub import HubPlace, is_hub, pinned, place_in
from tests.support.hub_server import TOKEN, hub_server
from tests.support.own_data import write_files

FILES = {"README.md": "---\n", "data/a.csv": "image\n", "data/b.bin": bytes(range(256)) * 20, "data/c.txt": "c"}
COMMIT = "0123456789" * 4


@pytest.fixture
def server(monkeypatch, tmp_path):
    from huggingface_hub import constants

    with hub_server() as found:
        found.add("some/dogs", write_files(tmp_path / "dogs", FILES), card={"license": "mit"})
        monkeypatch.setattr(constants, "ENDPOINT", found.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{found.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub, "RETRY_WAIT_S", 0.0)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield found


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("hf://datasets/some/dogs", HubPlace("some/dogs", "main", "")),
        ("HF://datasets/some/dogs/", HubPlace("some/dogs", "main", "")),
        (f"hf://datasets/some/dogs@{COMMIT}/data/x", HubPlace("some/dogs", COMMIT, "data/x")),
        ("hf://datasets/some/dogs@my%2Fbranch/data", HubPlace("some/dogs", "my/branch", "data")),
        ("hf://datasets/some/dogs@refs/convert/parquet/d", HubPlace("some/dogs", "refs/convert/parquet", "d")),
        ("hf://datasets/some/dogs@refs/pr/7", HubPlace("some/dogs", "refs/pr/7", "")),
    ],
)
def test_urls(url, place):
    assert is_hub(url)
    assert place_in(url) == place == place_in(place.url)


@pytest.mark.parametrize(
    "url",
    ["hf://some/dogs", "hf://datasets/dogs", "hf://datasets/some/dogs@", "hf://datasets/so me/x", "hf://datasets//x/y"],
)
def test_urls_that_name_no_dataset(url):
    with pytest.raises(UsageError, match="is not a dataset of the Hugging Face Hub; expected hf://datasets/OWNER/NAME"):
        place_in(url)


def test_a_path_stays_inside():
    with pytest.raises(UsageError, match="must be relative"):
        place_in("hf://datasets/some/dogs/../cats")


def test_a_branch_is_replaced_by_its_commit(server):
    repository = server.repositories["some/dogs"]
    commit = repository.branches["main"]
    found = pinned("hf://datasets/some/dogs/data")
    assert found.url == f"hf://datasets/some/dogs@{commit}/data"
    assert (found.name, found.licence) == ("dogs", "mit")
    assert found.origin == f"https://huggingface.co/datasets/some/dogs/tree/{commit}"
    repository.commit({"data/a.csv": b"other"})
    assert pinned(found.url) == found
    assert pinned("hf://datasets/some/dogs").url != found.url


@pytest.mark.parametrize(
    ("card", "licence"),
    [({"license": ["mit", "cc0-1.0"]}, "mit, cc0-1.0"), ({}, ""), ([], ""), (None, ""), ({"license": "a\nb"}, "")],
)
def test_the_licence_is_that_of_the_card(server, card, licence):
    server.repositories["some/dogs"].card = card
    assert pinned("hf://datasets/some/dogs").licence == licence


def test_files_are_listed_and_read_by_range(server):
    storage = open_storage("hf://datasets/some/dogs")
    expected = {name: data.encode() if isinstance(data, str) else data for name, data in FILES.items()}
    assert list(storage.list()) == [ObjectInfo(name, len(expected[name]), None) for name in sorted(expected)]
    assert [info.name for info in storage.list("data/")] == ["data/a.csv", "data/b.bin", "data/c.txt"]
    assert storage.stat("data/b.bin") == ObjectInfo("data/b.bin", 5120, None)
    assert storage.stat("data") is None
    assert storage.read_range("data/b.bin", 300, 7) == expected["data/b.bin"][300:307]
    assert storage.read_range("data/b.bin", 300, 0) == b""
    assert storage.read("data/b.bin") == storage.open("data/b.bin").read() == expected["data/b.bin"]
    assert storage.url_of("data/c.txt") == "hf://datasets/some/dogs@main/data/c.txt"
    inner = open_storage("hf://datasets/some/dogs/data")
    assert (inner.read("c.txt"), [info.name for info in inner.list()]) == (b"c", ["a.csv", "b.bin", "c.txt"])
    assert list(open_storage("hf://datasets/some/dogs/absent").list()) == []


def test_a_commit_is_listed_once_by_a_process(server):
    url = pinned("hf://datasets/some/dogs").url
    names = [[info.name for info in open_storage(url).list()] for _ in range(2)]
    assert names == [sorted(FILES)] * 2
    assert sum("/tree/" in request for request in server.requests) == 2  # pages of one listing


def test_what_is_not_there(server):
    storage = open_storage("hf://datasets/some/dogs")
    for read in (storage.read, storage.open, lambda name: storage.read_range(name, 0, 1)):
        with pytest.raises(FileNotFoundError):
            read("absent")
    with pytest.raises(StorageError, match="it ends at 5,120"):
        storage.read_range("data/b.bin", 5000, 200)
    with pytest.raises(StorageError, match="it ends at 5,120"):
        storage.read_range("data/b.bin", 6000, 200)
    with pytest.raises(UsageError, match="must not be negative"):
        storage.read_range("data/b.bin", -1, 2)
    with pytest.raises(TooLargeError, match="5,120 bytes, expected at most 10"):
        storage.read("data/b.bin", 10)


def test_faults_are_tried_again(server):
    storage = open_storage("hf://datasets/some/dogs")
    server.faults = 2
    assert pinned("hf://datasets/some/dogs").name == "dogs"
    server.faults = 2
    assert len(list(storage.list())) == 4
    server.faults, server.cut = 2, 2
    assert storage.read("data/b.bin") == FILES["data/b.bin"]
    server.faults = 100
    with pytest.raises(StorageError, match="the Hub answered 503; run the same command again"):
        storage.read_range("data/b.bin", 0, 5)


def test_a_hub_that_cannot_be_reached_is_one_line(server, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        StorageError, match=r"the Hub cannot be reached \(.*\); check the network and HF_ENDPOINT"
    ) as raised:
        pinned("hf://datasets/some/dogs")
    assert len(str(raised.value).splitlines()) == 1


def test_a_private_dataset_needs_a_token_which_goes_to_the_hub_alone(server, monkeypatch, caplog):
    server.repositories["some/dogs"].is_private = True
    with pytest.raises(AccessError, match=r"no dataset some/dogs is on the Hub, or it is private: .*hf auth login"):
        pinned("hf://datasets/some/dogs")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    storage = open_storage(pinned("hf://datasets/some/dogs").url)
    assert storage.read("data/c.txt") == b"c"
    assert server.tokens_elsewhere == []
    server.faults = 100
    with pytest.raises(StorageError) as raised:
        storage.read("data/a.csv")
    assert TOKEN not in f"{raised.value} {caplog.text}"


def test_a_gated_dataset_needs_the_terms_to_be_accepted(server):
    server.repositories["some/dogs"].is_gated = True
    page = "https://huggingface.co/datasets/some/dogs"
    with pytest.raises(AccessError, match=rf"has terms of access: accept them at {page}, and log in"):
        open_storage("hf://datasets/some/dogs").read("data/c.txt")


def test_a_revision_that_does_not_exist(server):
    for read in (pinned, lambda url: list(open_storage(url).list())):
        with pytest.raises(UsageError, match="some/dogs has no revision 'absent'"):
            read("hf://datasets/some/dogs@absent")


def test_offline_mode_is_respected(server, monkeypatch):
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    close_session()
    with pytest.raises(UsageError, match="HF_HUB_OFFLINE is set"):
        pinned("hf://datasets/some/dogs")
    close_session()


@pytest.mark.parametrize("answer", [{"sha": "x"}, {"sha": 5}, {"id": "x"}, [1]])
def test_an_answer_without_a_commit_is_refused(server, answer):
    server.described = answer
    with pytest.raises(StorageError, match="the Hub's answer "):
        pinned("hf://datasets/some/dogs")
