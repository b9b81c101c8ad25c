"""All workers are reached, each with its own answer; what did not arrive is not taken for an answer."""

import io
import os
import subprocess
import tarfile
from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep.cloud.tpu import fleet
from dataprep.cloud.tpu.fleet import Answer, arrange, pack, require_all, worker_program
from dataprep.errors import StorageError, UndecidedError, UsageError
from tests.support.tpu import two_workers


def test_a_fresh_worker_gets_the_worker_program(cloud):
    cloud.add_tpu("my-tpu", workers=2)
    require_all(two_workers().call("status"), "list runs")
    assert len(cloud.calls("tpu-vm scp")) == 1
    require_all(two_workers().call("status"), "list runs")
    assert len(cloud.calls("tpu-vm scp")) == 1
    _, name = worker_program()
    (cloud.home(1) / name).unlink()
    assert [answer.reply["runs"] for answer in two_workers().call("status")] == [{}, {}]
    assert len(cloud.calls("tpu-vm scp")) == 2


def test_each_worker_answers_with_its_exit_code_and_its_last_words(fleet):
    answers = fleet.shell('case "$PWD" in */1/home) echo first >&2; echo broken >&2; exit 4;; esac; echo fine')
    assert answers == [Answer(worker=0, code=0, out="fine\n"), Answer(worker=1, code=4, trouble="broken")]


def test_a_worker_that_is_not_reached_has_no_exit_code(pod, fleet):
    pod.drop("true", how="before", worker=1, times=10)
    reached, lost = fleet.shell("true")
    assert (reached.code, lost.code) == (0, None)
    assert lost.trouble.startswith("gcloud compute tpus tpu-vm ssh my-tpu: the worker cannot be reached")
    with pytest.raises(UndecidedError, match=r"^look: worker 1: .*; fix that, and run the same command again$"):
        require_all([reached, lost], "look")
    with pytest.raises(StorageError, match=r"^look: worker 0: broken, and 1 more; fix that"):
        require_all([Answer(worker=0, code=4, trouble="broken"), lost], "look")


def test_success_without_a_reply_is_an_answer_that_was_lost(pod, fleet):
    (pod.home(1) / worker_program()[1]).write_text("")
    answered, lost = fleet.call("state", "r")
    assert (answered.code, answered.reply["state"]) == (0, "absent")
    assert (lost.code, lost.trouble) == (None, "its response was lost")


def test_the_error_that_the_program_told_is_the_trouble(fleet):
    (answer,) = fleet.call("unpack", "nowhere.tar.gz", "project-0", "0" * 64, workers=[1])
    assert (answer.worker, answer.code, answer.trouble) == (1, 1, "nowhere.tar.gz does not exist; run setup again")


def test_a_malformed_answer_is_an_error_in_one_line(pod, fleet):
    (pod.home(1) / worker_program()[1]).write_text("""print('@dataprep {"files": [1]}')""")
    with pytest.raises(StorageError, match=r"worker 1: its response: \$\.files: expected object, got \[1\]; run"):
        fleet.call("traces", "logs")


NAMES = st.text("abcXYZ09._-é ", min_size=1, max_size=12).filter(lambda name: name.strip(". ") == name)


def members(data: bytes) -> dict[str, bytes | str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {item.name: item.linkname or tar.extractfile(item).read() for item in tar}


@given(files=st.dictionaries(NAMES, st.binary(max_size=2000), min_size=1, max_size=5))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_same_files_make_the_same_archive(tmp_path_factory, files):
    archives = []
    for _ in range(2):
        folder = tmp_path_factory.mktemp("code") / "project"
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
            os.utime(folder / name, ns=(len(archives), len(archives)))
        archives.append(pack(folder))
    assert archives[0] == archives[1]
    assert archives[0].name == f"project-{archives[0].sha256[:12]}"
    assert members(archives[0].data) == files


def test_a_changed_file_gives_the_archive_another_name(tmp_path):
    (tmp_path / "a.py").write_text("1")
    before = pack(tmp_path)
    (tmp_path / "a.py").write_text("2")
    assert pack(tmp_path).name != before.name
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "a.py").chmod(0o755)
    assert pack(tmp_path).name != before.name


def test_what_git_ignores_is_left_out(tmp_path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("data/\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/big.tar").write_text("x")
    (tmp_path / "new.py").write_text("not tracked yet")
    assert set(members(pack(tmp_path).data)) == {".gitignore", "new.py"}


def test_environments_and_caches_are_left_out(tmp_path):
    for name in (".venv/x", "a/__pycache__/x", "a/b.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert set(members(pack(tmp_path).data)) == {"a/b.py"}


def test_links_inside_the_folder_are_packed_and_those_outside_refused(tmp_path):
    (tmp_path / "a.py").write_text("x")
    (tmp_path / "b.py").symlink_to("a.py")
    assert members(pack(tmp_path).data) == {"a.py": b"x", "b.py": "a.py"}
    (tmp_path / "c.py").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="a link to /etc/passwd, outside the folder"):
        pack(tmp_path)


def test_a_folder_that_holds_data_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="no files; expected a folder of code"):
        pack(tmp_path)
    monkeypatch.setattr(fleet, "MAX_BYTES", 1 << 20)
    (tmp_path / "images.tar").write_bytes(bytes(3 << 20))
    with pytest.raises(UsageError, match=r"3 MiB, expected code of at most 1 MiB; the largest is images.tar \(3 MiB\)"):
        pack(tmp_path)


def test_a_file_that_is_gone_before_it_is_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("print()")
    monkeypatch.setattr(fleet, "_in_folder", lambda folder: ["train.py", "train.py.swp"])
    with pytest.raises(UsageError, match=r"train\.py\.swp: No such file or directory while packing .*; .*: run again"):
        pack(tmp_path)


def test_pipes_and_sockets_are_left_out(tmp_path):
    (tmp_path / "train.py").write_text("print()")
    os.mkfifo(tmp_path / "pipe")
    assert pack(tmp_path).files == 1


BEGIN = datetime(2026, 11, 21, 12)


def folder(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).strftime("%Y_%m_%d_%H_%M_%S")


def test_hosts_that_begin_together_are_one_run():
    traces = [(0, f"plugins/profile/{folder(2)}/a.xplane.pb"), (1, f"plugins/profile/{folder(0)}/b.xplane.pb")]
    traces += [(0, f"{folder(600)}/a.xplane.pb")]  # another run, of a tool that leaves out plugins/profile
    assert arrange(traces) == {
        traces[0]: f"plugins/profile/{folder(0)}/a.xplane.pb",
        traces[1]: f"plugins/profile/{folder(0)}/b.xplane.pb",
        traces[2]: f"plugins/profile/{folder(600)}/a.xplane.pb",
    }


def test_hosts_of_the_same_name_stay_apart():
    traces = [(0, f"{folder(0)}/localhost.xplane.pb"), (1, f"{folder(1)}/localhost.xplane.pb")]
    run = f"plugins/profile/{folder(0)}"
    assert list(arrange(traces).values()) == [
        f"{run}/worker-00.{folder(0)}.localhost.xplane.pb",
        f"{run}/worker-01.{folder(1)}.localhost.xplane.pb",
    ]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000), st.sampled_from("ab")), unique=True))
def test_every_trace_has_a_place_of_its_own(found):
    traces = [(worker, f"logs/{folder(seconds)}/{host}.xplane.pb") for worker, seconds, host in found]
    placed = arrange(traces)
    assert set(placed) == set(traces)
    assert len(set(placed.values())) == len(traces)


def test_a_trace_outside_a_folder_named_by_a_time_is_refused():
    with pytest.raises(UsageError, match=r"x/a.xplane.pb: expected a trace in a folder such as"):
        arrange([(0, "x/a.xplane.pb")])


def test_no_traces_give_no_run():
    assert arrange([]) == {}


@pytest.mark.parametrize("path", [f"../../{folder(0)}/a.xplane.pb", f"/etc/{folder(0)}/a", f"{folder(0)}/..", "a\n"])
def test_a_path_that_leaves_the_folder_of_logs_is_refused(path):
    with pytest.raises(UsageError, match="object name"):
        arrange([(0, path)])
