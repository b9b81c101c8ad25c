"""Log lines: on stdout, in log.txt and for TensorBoard, also in a bucket; a resumed run takes back later ones."""

import contextlib
import io
import itertools
import json
import math
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dataprep.errors import ConflictError, UsageError
from dataprep.formats.example import checksum, frame_head
from dataprep.storage import open_storage
from dataprep.watching import PROFILE_REQUEST
from tests.support.training import flags_of, start
from tests.support.virtual_time import RetryClock
from train.telemetry import logs
from train.telemetry.logs import (
    RUN_FILE,
    BucketCopy,
    EventFile,
    Logs,
    StepProfile,
    complete_bytes,
    open_wandb,
    parse_steps,
)


def test_evaluation_lines_are_logged_with_prefixed_names(tmp_path, capsys):
    with opened(tmp_path) as logs:
        logs.evaluation(2, 1.0, {"accuracy": 0.25})
    assert json.loads(capsys.readouterr().out) == {"step": 2, "epoch": 1.0, "val_accuracy": 0.25}
    assert json.loads((tmp_path / "log.txt").read_text()) == {"step": 2, "epoch": 1.0, "val_accuracy": 0.25}


@contextlib.contextmanager
def opened(folder: object, *, step: int = 0, **settings: object) -> Iterator[Logs]:
    logs = Logs(str(folder), **settings)
    logs.open(step=step, total_steps=9)
    yield logs
    logs.close()


def line(step: int) -> dict:
    return {"step": step, "epoch": step / 10, "loss": 0.5}


def test_a_resumed_run_removes_log_lines_of_later_steps(tmp_path):
    with opened(tmp_path) as logs:
        for step in (1, 2, 3):
            logs.scalars(line(step))
    with (tmp_path / "log.txt").open("a") as file:
        file.write('{"step": 4, "lo')  # a kill cut it
    with opened(tmp_path, step=2) as again:
        again.scalars(line(3))
    assert [json.loads(each)["step"] for each in (tmp_path / "log.txt").read_text().splitlines()] == [1, 2, 3]


def test_the_last_line_says_that_the_run_has_ended_until_it_goes_on(tmp_path, capsys):
    with opened(tmp_path) as logs:
        logs.scalars(line(1))
        logs.ended(1, 0.1)
    last = {"step": 1, "epoch": 0.1, "ended": True}
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == last
    assert json.loads((tmp_path / "log.txt").read_text().splitlines()[-1]) == last
    with opened(tmp_path, step=1):
        pass
    assert [json.loads(each) for each in (tmp_path / "log.txt").read_text().splitlines()] == [line(1)]


def test_ranks_other_than_the_first_log_nothing(tmp_path, capsys):
    with opened(tmp_path / "logs", enabled=False) as logs:
        logs.scalars(line(1))
        logs.tell("hello")
    assert capsys.readouterr() == ("", "")
    assert not (tmp_path / "logs").exists()


def test_numbers_are_logged_over_steps_and_over_epochs(tmp_path):
    with opened(tmp_path, by_epochs=True) as logs:
        logs.scalars(line(1))
        logs.evaluation(1, 0.1, {"accuracy": 0.25})
    for folder, tags in ((tmp_path, (b"train/loss", b"val/accuracy")), (tmp_path / "epochs", (b"ep_train", b"ep_val"))):
        (events,) = folder.glob("events.out.tfevents.*")
        assert all(tag in events.read_bytes() for tag in tags)


def test_curves_over_epochs_do_not_overlap_after_a_resume_with_other_batches(tmp_path, monkeypatch):
    """TensorBoard forgets the points from the first step of a later file on, in each folder by itself."""
    starts, begin = [], EventFile.__init__

    def noted(self, folder, start):
        starts.append((folder.name, start))
        begin(self, folder, start)

    monkeypatch.setattr(EventFile, "__init__", noted)
    logs = Logs(str(tmp_path / "run"), by_epochs=True)
    logs.open(step=3, total_steps=9, epoch=2.25)
    logs.close()
    assert starts == [("run", 4), ("epochs", 2251)]


def test_a_resumed_run_passes_over_lines_that_no_training_logged(tmp_path, capsys):
    lines = [json.dumps(line(1)), "saved runs/mae/checkpoint", "\0\0", json.dumps(line(2)), json.dumps(line(3)), "[1]"]
    (tmp_path / "log.txt").write_text("".join(f"{each}\n" for each in lines))
    with opened(tmp_path, step=2):
        pass
    assert (tmp_path / "log.txt").read_text().splitlines() == [*lines[:4], lines[5]]
    assert f"{tmp_path}/log.txt: 3 lines that no training logged; passed over" in capsys.readouterr().err


def test_a_run_that_resumes_elsewhere_continues_its_log_in_the_bucket(bucket_url, capsys):
    storage = open_storage(bucket_url)
    for first, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        with opened(bucket_url, step=first) as logs:
            for step in steps:
                logs.scalars(line(step))
            logs.picture(steps[-1], "painted", b"%d" % first, height=1, width=1)
        assert not logs.folder.exists()
    assert [json.loads(each) for each in storage.read("log.txt").splitlines()] == [line(step) for step in (1, 2, 3, 4)]
    assert storage.read("painted.png") == b"2"
    assert not capsys.readouterr().err
    assert {info.name.split(".")[0] for info in storage.list()} == {"log", "painted", "events"}


def test_a_file_that_grows_is_appended_to_up_to_its_last_complete_line(bucket_url, tmp_path):
    storage, log = open_storage(bucket_url), tmp_path / "log.txt"
    copy = BucketCopy(storage, tmp_path)
    for text, expected in (("a\nb", "a\n"), ("a\nbc\n", "a\nbc\n"), ("a\nbc\nd\n", "a\nbc\nd\n")):
        log.write_text(text)
        copy.publish()
        assert storage.read("log.txt").decode() == expected
    storage.delete("log.txt")
    log.write_text("a\nbc\nd\ne\n")
    copy.publish()
    assert storage.read("log.txt") == b"a\nbc\nd\ne\n"


def test_a_log_that_another_program_writes_is_left_to_it(bucket_url, tmp_path):
    storage, log = open_storage(bucket_url), tmp_path / "log.txt"
    copy = BucketCopy(storage, tmp_path)
    log.write_text("a\n")
    copy.publish()
    storage.put("log.txt", b"b\n")
    log.write_text("a\nc\n")
    with pytest.raises(ConflictError, match=r"log\.txt: another program writes it"):
        copy.publish()
    log.write_text("a\nc\nd\n")
    copy.publish()
    assert storage.read("log.txt") == b"b\n"


def test_a_file_that_does_not_grow_is_written_once_it_is_finished(bucket_url, tmp_path):
    storage, trace = open_storage(bucket_url), tmp_path / "plugins/profile/now/host.trace"
    copy = BucketCopy(storage, tmp_path)
    trace.parent.mkdir(parents=True)
    (trace.parent / "link").symlink_to("trace")
    for content, published in ((b"1", False), (b"12", False), (b"12", True)):
        trace.write_bytes(content)
        os.utime(trace, ns=(0, len(content)))
        copy.publish()
        assert (storage.stat("plugins/profile/now/host.trace") is not None) == published
    assert [info.name for info in storage.list()] == ["plugins/profile/now/host.trace"]


def test_logs_go_to_a_disk_or_to_cloud_storage_alone():
    with pytest.raises(UsageError, match="expected a folder on a disk or gs://"):
        Logs("s3://bucket/logs")


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(0, 400))
def test_complete_events_are_found_at_every_cut(events, cut):
    frames = [frame_head(len(event)) + event + checksum(event) for event in events]
    ends = [len(b"".join(frames[:count])) for count in range(len(frames) + 1)]
    data = b"".join(frames)[:cut]
    assert complete_bytes(data, is_log=False) == max(end for end in ends if end <= len(data))


def test_every_rank_has_a_folder_of_its_own_for_traces(tmp_path):
    first, second = (Logs(str(tmp_path), enabled=rank == 0).trace_folder(rank) for rank in (0, 1))
    assert (first, second) == (tmp_path, tmp_path / "rank-01")
    assert Logs(None).trace_folder(1) is None


READ = """
import glob, json, sys
from tensorflow.compat.v1.train import summary_iterator
found = []
for event in summary_iterator(glob.glob(sys.argv[1] + "/events.out.tfevents.*")[0]):
    found.append([event.step, event.file_version, event.session_log.status])
    for value in event.summary.value:
        image = value.image
        found.append([event.step, value.tag, value.simple_value, image.height, image.width, image.colorspace,
                      image.encoded_image_string.hex()])
print(json.dumps(found))
"""


def test_values_beyond_float32_are_written_as_infinite(tmp_path):
    """A rate of 1e41 ends a run for its loss, and not for the file that says so."""
    events = EventFile(tmp_path)
    events.scalars(1, {"train/lr": 1e41, "train/loss": -1e300})
    events.close()
    written = next(tmp_path.iterdir()).read_bytes()
    assert [written.count(struct.pack("<Bf", 0x15, value)) for value in (math.inf, -math.inf)] == [1, 1]


@pytest.mark.long
def test_tensorflow_reads_what_was_written(tmp_path):
    png = io.BytesIO()
    Image.new("RGB", (300, 200), (1, 2, 3)).save(png, "PNG")
    events = EventFile(tmp_path / "new" / "folder", restarts_at=3)
    events.scalars(3, {"train/loss": 0.5, "train/lr": 1e-4})
    events.image(1_000_000, "reconstruction", png.getvalue(), height=200, width=300)
    events.close()
    run = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "new" / "folder")], capture_output=True, text=True, check=True
    )
    version, start, at_3, loss, lr, at_million, image = json.loads(run.stdout)
    assert (version, start) == ([0, "brain.Event:2", 0], [3, "", 1])  # SessionLog.START
    assert (at_3, at_million) == ([3, "", 0], [1_000_000, "", 0])
    assert loss[:3] == [3, "train/loss", 0.5]
    assert lr[:2] == [3, "train/lr"]
    assert abs(lr[2] - 1e-4) < 1e-10
    assert image == [1_000_000, "reconstruction", 0.0, 200, 300, 3, png.getvalue().hex()]


def test_malformed_profile_steps_are_refused():
    for text in ("1", "2:1", "a:b", "-1:2", "1:2:3", "1:" + "9" * 5000, "٣:٤"):
        with pytest.raises(UsageError, match="expected A:B"):
            parse_steps(text)


@pytest.mark.parametrize(("steps", "expected"), [((2, 4), [2, 3]), ((0, 1), [0]), ((3, 9), [3, 4]), (None, [])])
def test_a_trace_covers_the_given_steps(tmp_path, steps, expected):
    traced, running = [], []

    @contextlib.contextmanager
    def trace(folder):
        assert folder == tmp_path
        running.append(True)
        yield
        running.clear()

    with contextlib.closing(StepProfile(steps, tmp_path, trace)) as profile:
        for step in range(5):
            profile.before(step)
            if running:
                traced.append(step)
    assert traced == expected
    assert not running


def test_a_trace_that_was_asked_for_lasts_to_the_first_update_after_its_time(tmp_path, monkeypatch):
    clock, traces = RetryClock(), []
    monkeypatch.setattr("train.telemetry.logs.time", clock)

    @contextlib.contextmanager
    def trace(folder):
        traces.append([])
        yield

    asked = itertools.chain([0.0, 2.5], itertools.repeat(0.0))
    with contextlib.closing(StepProfile(None, tmp_path, trace, lambda: next(asked))) as profile:
        for step in range(9):
            profile.before(step)
            if traces and profile._until_s is not None:
                traces[-1].append(step)
            clock.sleep(1)
    assert traces == [[1, 2, 3]]


def test_a_running_training_notices_new_requests(bucket_url, tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "LOOK_S", 0.01)
    monkeypatch.setattr(logs, "LOOK_ON_DISK_S", 0.01)
    for url in (str(tmp_path), bucket_url):
        storage = open_storage(url)
        storage.replace(PROFILE_REQUEST, b'{"seconds": 9}', None)  # of an earlier attempt
        run = Logs(url, enabled=False)
        run.open(step=0, total_steps=9)
        storage.replace(PROFILE_REQUEST, b'{"seconds": 5, "asked_s": 1}', b'{"seconds": 9}')
        while not (asked_s := run.asked_s()):
            time.sleep(0.01)
        assert (asked_s, run.asked_s()) == (5, 0)
        run.close()


def test_without_a_folder_nothing_is_traced():
    StepProfile((0, 1), None, lambda folder: pytest.fail("traced")).before(0)


def test_profile_steps_are_the_first_and_the_one_after_the_last():
    assert parse_steps("20:25") == (20, 25)
    assert parse_steps("") is None


SMALL = {"model": "mae_vit_micro_patch8", "input_size": 32, "batch_size": 8, "device": "cpu", "wandb": "mae"}


@pytest.mark.long
def test_a_training_and_its_loader_are_logged_to_one_run(dataset, tmp_path):
    """Offline, in two processes, the second of which goes on where the first has ended."""
    variables = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    flags = {**SMALL, "data_path": dataset, "output_dir": tmp_path / "run", "log_interval_steps": 1}
    for more in ({"max_steps": 2}, {"max_steps": 4, "resume": "automatic"}):
        with start("train.pretrain_mae", *flags_of(**flags, **more), **variables) as process:
            _, errors = process.communicate(timeout=800)
        assert process.returncode == 0, errors[-3000:]
    first, second = sorted((tmp_path / "run").rglob("run-*.wandb"), key=lambda path: path.stat().st_mtime)
    for run in (first, second):
        content = run.read_bytes()
        assert all(name in content for name in (b"train/loss", b"loader/wait_p99_s"))
        assert run.name == f"run-{(tmp_path / 'run' / RUN_FILE).read_text().strip()}.wandb"


def test_without_the_package_the_command_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"^`wandb` needs its package \(.*wandb.*\): pip install wandb$"):
        open_wandb("mae", tmp_path, resumed=False)
    assert not (tmp_path / RUN_FILE).exists()


def test_hosts_other_than_the_first_need_no_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with opened(tmp_path, enabled=False, wandb="mae") as logs:
        assert not logs.takes_loader
