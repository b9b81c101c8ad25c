"""Options of a Ray cluster: what is understood, and what is refused before anything is started."""

import socket

import pytest

from dataprep.errors import UsageError
from pipelines.ray.options import ray_options, refuse_local_paths, refuse_silence


def test_without_options_a_process_takes_a_cpu_of_this_nodes_cluster():
    options = ray_options(())
    assert (options.address, options.need, options.processes, options.shared) == (
        "auto", {"CPU": 1.0, "memory": 0.0}, None, False,
    )  # fmt: skip


def test_all_options_are_understood():
    words = (
        "--address=10.0.0.1:6379 --cpus 0.5 --memory=2 --resource=fast=1 --resource=spot=0.5 --processes=64 --shared"
    )
    options = ray_options(words.split())
    assert options.address == "10.0.0.1:6379"
    assert options.need == {"CPU": 0.5, "memory": float(2 << 30), "fast": 1.0, "spot": 0.5}
    assert (options.processes, options.shared) == (64, True)


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("--adress=auto", "no options of this engine: --adress=auto after --; the options are --address=HOST:PORT"),
        ("--cpus=0", "argument --cpus: invalid"),
        ("--memory=much", "argument --memory: invalid"),
        ("--processes=0", "argument --processes: invalid"),
        ("--resource=fast", "argument --resource: invalid"),
        ("--address=ray://head:10001", "run this command on a node of the cluster"),
        ("--address=local", "expected auto, or HOST:PORT of the cluster's head"),
    ],
)
def test_other_options_and_values_are_refused(word, fault):
    with pytest.raises(UsageError) as error:
        ray_options([word])
    assert fault in str(error.value)


def test_an_address_where_nothing_listens_is_refused_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        refuse_silence(address)
    with pytest.raises(UsageError, match=f"nothing answers at --address={address}"):
        refuse_silence(address)
    with pytest.raises(UsageError, match="nothing answers"):
        refuse_silence("127.0.0.1:99999")
    refuse_silence("auto")


@pytest.mark.parametrize("path", ["/data/originals", "file:///data/originals"])
def test_paths_that_other_machines_cannot_see_are_refused(path):
    urls = (path, "gs://bucket/out")
    refuse_local_paths(ray_options(()), urls, ())
    refuse_local_paths(ray_options(()), urls[1:], ("other",))
    refuse_local_paths(ray_options(()), ("hf://datasets/a/b", *urls[1:]), ("other",))
    refuse_local_paths(ray_options(["--shared"]), urls, ("other",))
    with pytest.raises(UsageError, match=f"{path} is on this machine, and other cannot reach it; copy it to a bucket"):
        refuse_local_paths(ray_options(()), urls, ("other",))
