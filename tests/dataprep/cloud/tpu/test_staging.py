"""Archives of code: what is in them, and that their bytes are the same for the same files."""

import io
import os
import subprocess
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep.cloud.tpu import staging
from dataprep.cloud.tpu.staging import pack
from dataprep.errors import UsageError

NAMES = st.text("abcXYZ09._-é ", min_size=1, max_size=12).filter(lambda name: name.strip(". ") == name)


def members(data: bytes) -> dict[str, bytes | str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {item.name: item.linkname or tar.extractfile(item).read() for item in tar}


@given(files=st.dictionaries(NAMES, st.binary(max_size=2000), min_size=1, max_size=5))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
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
    monkeypatch.setattr(staging, "MAX_BYTES", 1 << 20)
    (tmp_path / "images.tar").write_bytes(bytes(3 << 20))
    with pytest.raises(UsageError, match=r"3 MiB, expected code of at most 1 MiB; the largest is images.tar \(3 MiB\)"):
        pack(tmp_path)


def test_a_file_that_is_gone_before_it_is_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("print()")
    monkeypatch.setattr(staging, "_in_folder", lambda folder: ["train.py", "train.py.swp"])
    with pytest.raises(UsageError, match=r"train\.py\.swp: No such file or directory, while .* is packed; .*run it"):
        pack(tmp_path)


def test_pipes_and_sockets_are_left_out(tmp_path):
    (tmp_path / "train.py").write_text("print()")
    os.mkfifo(tmp_path / "pipe")
    assert pack(tmp_path).files == 1
