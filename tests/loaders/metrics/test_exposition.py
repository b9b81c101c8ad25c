"""Metrics for Prometheus: valid OpenMetrics while a loader runs, counters that agree, and ports that are free again."""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import closing

import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families_of

from dataprep.errors import UsageError
from loaders import open_loader
from loaders.metrics.exposition import LOADER_LABELS, METRICS, PREFIX
from tests.support.markdown import ROOT

SMALL = {"batch_size": 12, "image_size": 32, "threads": 1}
FREE_S = 60.0
"""Longest wait for something that a thread of its own does."""


def scraped(url: str) -> str:
    request = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    with urllib.request.urlopen(request, timeout=100) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        return answer.read().decode()


def samples_of(url: str) -> dict[tuple[str, ...], float]:
    """Values by the metric's name without prefix, the split, and the values of its own labels."""
    found = {}
    for family in families_of(scraped(url)):
        for sample in family.samples:
            own = [value for name, value in sample.labels.items() if name not in ("split", "rank", "loader")]
            found[sample.name.removeprefix(PREFIX), sample.labels["split"], *own] = sample.value
    return found


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        return found.getsockname()[1]


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("processes", [0, 2])
def test_a_scrape_of_a_running_loader_agrees_with_what_was_loaded(dataset, processes):
    with open_loader(dataset("webdataset"), **SMALL, processes=processes, metrics_port=0) as loader:
        images = sum(int(batch.mask.sum()) for batch in itertools.islice(loader, 5))
        found = samples_of(loader.metrics_url)  # the loader works on the batches ahead meanwhile
        stages = loader.stats()["stages"]
        assert found["batches_total", "train"] == found["batch", "train"] == stages["batch"]["items"] == 5
        assert found["images_total", "train"] == images == 60
        assert found["batch_wait_seconds_count", "train"] == 5
        assert found["batch_wait_seconds_sum", "train"] == pytest.approx(stages["batch"]["get_wait_s"])
        assert found["stage_seconds_sum", "train", "busy", "decode"] > 0
        assert stages["decode"]["items"] >= found["stage_items_total", "train", "decode"] >= 60
        assert found["fetch_requests_total", "train"] >= 60
        assert found["prefetch_batches", "train"] == 3
        assert 0 <= found["ready_batches", "train"] <= 3
        assert {p for stage in stages.values() for p in stage["percentiles"]} == {"busy_s", "get_wait_s", "put_wait_s"}
    assert loader.metrics_url is None


def test_every_scrape_during_loading_is_whole_and_no_counter_falls(dataset):
    scrapes, taken = [], threading.Event()
    with open_loader(dataset("webdataset"), **SMALL, metrics_port=0) as loader:

        def scrape():
            while not taken.is_set():
                scrapes.append(samples_of(loader.metrics_url))

        scraper = threading.Thread(target=scrape)
        scraper.start()
        for _ in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), 40):
            pass
        taken.set()
        scraper.join()
        scrapes.append(samples_of(loader.metrics_url))
    assert scrapes[-1]["batches_total", "train"] == 40
    assert scrapes[-1]["images_total", "train"] == 480
    counters = [key for key in scrapes[-1] if key[0].endswith(("_total", "_count", "_sum", "_bucket"))]
    for before, after in itertools.pairwise(scrapes):
        assert [key for key in counters if after.get(key, 0) < before.get(key, 0)] == []


def test_no_label_has_a_path_or_key(dataset):
    url = dataset("webdataset")
    with open_loader(url, **SMALL, metrics_port=0) as loader:
        keys = next(iter(loader)).keys
        text = scraped(loader.metrics_url)
        labels = {name for family in families_of(text) for sample in family.samples for name in sample.labels}
    assert labels == {"split", "rank", "loader", "stage", "activity", "le"}
    assert not any(word in text for word in (str(url), url.name, *keys))


def test_ready_batches_are_those_that_are_finished(dataset):
    with open_loader(dataset("webdataset"), **SMALL, metrics_port=0) as loader:
        next(iter(loader))
        until_s = time.monotonic() + FREE_S
        while samples_of(loader.metrics_url)["ready_batches", "train"] < 3 and time.monotonic() < until_s:
            time.sleep(0.01)
        assert samples_of(loader.metrics_url)["ready_batches", "train"] == 3


def test_loaders_of_a_process_share_a_port_until_the_last_is_closed(dataset):
    port, url = free_port(), dataset("webdataset")
    training = open_loader(url, **SMALL, metrics_port=port)
    validation = open_loader(url, "val", **SMALL, metrics_port=port)
    assert training.metrics_url == validation.metrics_url == f"http://127.0.0.1:{port}/metrics"
    next(iter(training))
    found = samples_of(training.metrics_url)
    assert (found["batches_total", "train"], found["batches_total", "val"]) == (1, 0)
    again = open_loader(url, **SMALL, metrics_port=port)
    text = scraped(again.metrics_url)
    assert {f'loader="{number}"' in text for number in range(3)} == {True}
    for loader in (training, again):
        loader.close()
    assert {key[1] for key in samples_of(validation.metrics_url)} == {"val"}
    assert not is_free(port)
    validation.close()
    validation.close()
    assert is_free(port)


def test_a_closed_loader_that_is_used_again_is_served_again(dataset):
    with open_loader(dataset("webdataset"), **SMALL, metrics_port=0) as loader:
        next(iter(loader))
        loader.close()
        next(iter(loader))
        assert samples_of(loader.metrics_url)["batches_total", "train"] == 2


def test_counters_of_an_evaluation_go_on_where_it_starts_again(dataset):
    with open_loader(dataset("webdataset"), "val", **SMALL, metrics_port=0) as loader:
        requests = []
        for _ in range(2):
            for _batch in loader:
                pass
            requests.append(samples_of(loader.metrics_url)["fetch_requests_total", "val"])
        assert requests == [loader.order.num_samples, 2 * loader.order.num_samples]
    assert loader.stats()["fetch"]["requests"] == 2 * loader.order.num_samples


def test_a_port_in_use_is_an_error_that_says_what_to_do(dataset):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        said = f"metrics_port {port} on 127.0.0.1: in use by another process, expected a free port; each process"
        with pytest.raises(UsageError, match=f"^{said}"):
            open_loader(dataset("webdataset"), **SMALL, metrics_port=port)


@pytest.mark.parametrize("address", ["192.0.2.1", "no.such.host.invalid", "x" * 70 + ".y"])
def test_an_address_of_another_machine_is_an_error(dataset, address):
    with pytest.raises(UsageError, match=f"^metrics_port 0 on {address}: .*; give a free port and an address of this"):
        open_loader(dataset("webdataset"), **SMALL, metrics_port=0, metrics_address=address)


def test_without_the_package_the_error_says_how_to_install_it(dataset, monkeypatch):
    monkeypatch.setattr("loaders.metrics.exposition.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"prometheus_client, which is not installed: pip install '.*\[metrics\]'$"):
        open_loader(dataset("webdataset"), **SMALL, metrics_port=9464)


def test_worker_processes_do_not_serve(dataset):
    others = psutil.Process().children(recursive=True)  # an emulator of other tests, for one
    with open_loader(dataset("webdataset"), **SMALL, processes=2, metrics_port=0) as loader:
        next(iter(loader))
        children = [child for child in psutil.Process().children(recursive=True) if child not in others]
        assert len(children) >= 2
        listening = [each for child in children for each in child.net_connections("inet") if each.status == "LISTEN"]
        assert listening == []


FORKED = """
import os, signal, sys
from loaders import open_loader
settings = {"batch_size": 12, "image_size": 32, "metrics_port": int(sys.argv[2])}
loader = open_loader(sys.argv[1], **settings)
child = os.fork()
if child == 0:
    os.close(1)
    signal.pause()
loader.close()
open_loader(sys.argv[1], **settings)
print(child, flush=True)
os._exit(0)
"""


def test_a_forked_process_does_not_keep_the_port(dataset):
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(dataset("webdataset")), str(free_port())]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=800)
    os.kill(int(run.stdout), signal.SIGKILL)


def test_a_loader_that_is_forgotten_frees_its_port(dataset):
    port = free_port()
    loader = open_loader(dataset("webdataset"), **SMALL, metrics_port=port)
    assert not is_free(port)
    del loader
    until_s = time.monotonic() + FREE_S
    while not is_free(port) and time.monotonic() < until_s:
        gc.collect()
        time.sleep(0.01)
    assert is_free(port)


DOCUMENT = (ROOT / "docs/metrics.md").read_text()


def test_names_follow_the_conventions_of_prometheus():
    names = [metric.shown_name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"dataprep_loader_[a-z]+(_[a-z]+)*", metric.shown_name)
        assert metric.shown_name.endswith("_total") == (metric.kind == "counter")
        assert metric.shown_name.endswith("_seconds") == (metric.kind == "histogram")
        assert not set(metric.labels) & set(LOADER_LABELS)


def test_the_document_queries_metrics_that_exist():
    """Queries add `_sum` and `_bucket` to the names of histograms."""
    kinds = {metric.shown_name: metric.kind for metric in METRICS}
    names = set(re.findall(r"dataprep_loader_\w+", DOCUMENT))
    assert len(names) > 3
    for name in names:
        parts = re.fullmatch(r"(\w+?)(_sum|_bucket)?", name)
        assert kinds[parts[1]] == ("histogram" if parts[2] else "counter"), name
    labels = {metric.shown_name + "_sum": metric.labels for metric in METRICS}
    for name, given in re.findall(r"(dataprep_loader_\w+)\{(.*?)\}", DOCUMENT):
        assert set(re.findall(r"(\w+)=", given)) <= set(labels[name])
