"""The cache on a real disk: bounded, shared, atomic, and never in the way."""

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from dataprep.errors import UsageError
from loaders.fetch.cache import HEADER, STALE_S, DiskCache


def stored_bytes(folder):
    return sum(path.stat().st_size for path in folder.iterdir() if path.name != "total")


def entries(folder):
    return sorted(folder.glob("*.piece"))


def test_an_entry_is_found_by_another_cache_on_the_folder(tmp_path):
    cache = DiskCache(tmp_path / "a/b", 1 << 20)
    assert cache.get("k") is None
    cache.put("k", b"data" * 1000)
    cache.put("empty", b"")
    for each in (cache, DiskCache(tmp_path / "a/b", 1 << 20)):
        assert each.get("k") == b"data" * 1000
        assert each.get("empty") == b""
        assert each.get("other") is None


@pytest.mark.parametrize("where", [0, 5, HEADER.size, -1])
def test_a_damaged_entry_is_a_miss_and_is_removed(tmp_path, where):
    cache = DiskCache(tmp_path, 1 << 20)
    cache.put("k", b"x" * 5000)
    (path,) = entries(tmp_path)
    data = bytearray(path.read_bytes())
    data[where] ^= 4
    path.write_bytes(data)
    assert cache.get("k") is None
    assert entries(tmp_path) == []
    cache.put("k", b"again")
    assert cache.get("k") == b"again"


def test_the_bound_is_kept_by_removing_least_recently_used_entries(tmp_path):
    cache = DiskCache(tmp_path, 10_000)
    for number in range(9):
        cache.put(str(number), bytes(1000))
        time.sleep(0.005)  # times of change must differ
    assert cache.get("0") is not None
    for number in range(9, 100):
        cache.put(str(number), bytes(1000))
        assert stored_bytes(tmp_path) <= 10_000
        assert cache.get("0") is not None  # used all the time
        time.sleep(0.002)
    assert cache.get("1") is None
    assert cache.get("99") is not None
    assert len(entries(tmp_path)) >= 7


@pytest.mark.parametrize("content", [b"", b"nonsense", b"-5"])
def test_a_damaged_total_is_counted_anew(tmp_path, content):
    cache = DiskCache(tmp_path, 10_000)
    for number in range(5):
        cache.put(str(number), bytes(1000))
    (tmp_path / "total").write_bytes(content)
    for number in range(5, 30):
        cache.put(str(number), bytes(1000))
        assert stored_bytes(tmp_path) <= 10_000
    assert cache.get("29") is not None


def test_files_of_dead_writers_are_removed(tmp_path):
    cache = DiskCache(tmp_path, 5000)
    old, new = tmp_path / f"{'a' * 32}.tmp", tmp_path / f"{'b' * 32}.tmp"
    for path in (old, new):
        path.write_bytes(bytes(1000))
    os.utime(old, (time.time() - 2 * STALE_S,) * 2)
    for number in range(10):
        cache.put(str(number), bytes(1000))
    assert not old.exists() and new.exists()
    assert stored_bytes(tmp_path) <= 5000


def _use(folder, number):
    cache = DiskCache(folder, 60_000)
    for turn in range(150):
        name = (number * 7 + turn) % 40
        found = cache.get(str(name))
        if found not in (None, bytes([name]) * (500 + 50 * name)):
            os._exit(3)
        cache.put(str(name), bytes([name]) * (500 + 50 * name))


def test_other_files_in_the_folder_stay(tmp_path):
    """As in a folder such as /tmp."""
    digits = "0123456789abcdef"
    others = [tmp_path / name for name in ("thesis.tmp", "chess.piece", f"{digits * 4}.piece.bak", f"{digits}.tmp")]
    for path in others:
        path.write_bytes(bytes(3000))
        os.utime(path, (time.time() - 2 * STALE_S,) * 2)
    (tmp_path / f"{digits * 4}.piece").symlink_to(others[0])
    cache = DiskCache(tmp_path, 5000)
    for number in range(10):
        cache.put(str(number), bytes(1000))
    assert all(path.read_bytes() == bytes(3000) for path in others)
    assert (tmp_path / f"{digits * 4}.piece").is_symlink()
    assert cache.get("9") == bytes(1000)


def test_processes_share_a_cache(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_use, args=(tmp_path, number)) for number in range(2)]
    for worker in workers:
        worker.start()
    most = 0
    while any(worker.is_alive() for worker in workers):
        sizes = []
        for path in tmp_path.iterdir():
            try:
                sizes.append(path.stat().st_size if path.name != "total" else 0)
            except FileNotFoundError:
                continue
        most = max(most, sum(sizes))
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert 0 < most <= 60_000 + 2 * 2500  # while one is listed, another may take its place
    assert stored_bytes(tmp_path) <= 60_000
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_writer_that_is_killed_leaves_a_cache_that_works(tmp_path):
    script = (
        "import sys\nfrom pathlib import Path\nfrom loaders.fetch.cache import DiskCache\n"
        "cache = DiskCache(Path(sys.argv[1]), 300_000)\nprint(flush=True)\n"
        "for number in range(10**9):\n    cache.put(str(number), bytes(20_000))\n"
    )
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE) as writer:
            writer.stdout.readline()
            time.sleep(0.1)
            writer.kill()
    cache = DiskCache(tmp_path, 300_000)
    for number in range(40):
        cache.put(f"mine {number}", bytes(20_000))
        assert stored_bytes(tmp_path) <= 300_000
    assert cache.get("mine 39") == bytes(20_000)


def test_the_reserved_bytes_of_a_dead_writer_are_counted(tmp_path):
    """The writer is killed when its file has its final size, which the total must include by then."""
    script = (
        "import io, os, signal, sys\nfrom pathlib import Path\nfrom loaders.fetch.cache import DiskCache\n"
        "class Reserved(io.FileIO):\n"
        "    def truncate(self, size):\n"
        "        super().truncate(size)\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "class Dying(DiskCache):\n"
        "    def _opened(self, name, flags):\n"
        "        file = super()._opened(name, flags)\n"
        "        return Reserved(os.dup(file.fileno()), 'wb') if flags & os.O_EXCL else file\n"
        "Dying(Path(sys.argv[1]), 30_000).put('k', bytes(20_000))\n"
    )
    assert subprocess.run([sys.executable, "-c", script, tmp_path]).returncode == -signal.SIGKILL
    taken_bytes = HEADER.size + 20_000
    assert stored_bytes(tmp_path) == taken_bytes == int((tmp_path / "total").read_bytes())


def test_a_full_disk_means_no_caching(tmp_path):
    """A limit on the size of files fails a write just as a full disk does, half-way."""
    script = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom loaders.fetch.cache import DiskCache\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\ncache = DiskCache(Path(sys.argv[1]), 10**6)\n"
        "cache.put('before', bytes(5000))\nresource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "cache.put('k', bytes(5000))\ncache.put('little', bytes(1000))\n"
        "print([cache.get(name) is not None for name in ('before', 'k', 'little')])"
    )
    run = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True)
    assert run.stdout.strip() == "[True, False, True]", run.stderr
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match=r"file/c: cannot hold a cache \(Not a directory\); choose another"):
        DiskCache(tmp_path / "file/c", 10_000)


def test_links_in_the_folder_are_not_followed(tmp_path):
    private, other = tmp_path / "cache", tmp_path / "other"
    other.write_bytes(b"keep")
    cache = DiskCache(private, 10_000)
    cache.put("k", b"1" * 100)
    for path in private.iterdir():
        path.unlink()
        path.symlink_to(other)
    cache.put("k", b"2" * 100)
    cache.put("l", b"3" * 100)
    assert (cache.get("k"), cache.get("l")) == (None, None)
    assert other.read_bytes() == b"keep"


@pytest.mark.parametrize("mode", [0o1777, 0o755, 0o770])
def test_a_folder_that_others_may_use_gets_a_private_one(tmp_path, mode):
    """As /tmp: whoever was there first could have put a link in the place of a file."""
    shared, other = tmp_path / "shared", tmp_path / "other"
    shared.mkdir()
    shared.chmod(mode)
    other.write_bytes(b"keep")
    (shared / "total").symlink_to(other)
    cache = DiskCache(shared, 10_000)
    cache.put("k", b"1")
    assert DiskCache(shared, 10_000).get("k") == b"1"
    assert cache.folder == shared / f"dataprep-{os.geteuid()}"
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert other.read_bytes() == b"keep"


@pytest.mark.parametrize("taken", ["another user's", "a link", "open to others"])
def test_a_private_folder_that_is_not_ours_is_refused(tmp_path, monkeypatch, taken):
    tmp_path.chmod(0o755)
    private = tmp_path / f"dataprep-{os.geteuid()}"
    if taken == "a link":
        (tmp_path / "elsewhere").mkdir(0o700)
        private.symlink_to(tmp_path / "elsewhere")
    else:
        private.mkdir(0o777 if taken == "open to others" else 0o700)
        private.chmod(0o777 if taken == "open to others" else 0o700)
    if taken == "another user's":
        monkeypatch.setattr("os.geteuid", lambda: 4321)
        private.rename(tmp_path / "dataprep-4321")
    with pytest.raises(UsageError, match=r"cannot hold a cache .*; choose another folder"):
        DiskCache(tmp_path, 10_000)


def test_a_lock_that_is_not_given_back_means_no_caching(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path, 10_000)
    cache.put("k", b"1")
    monkeypatch.setattr("loaders.fetch.cache.LOCK_S", 0.05)
    with (tmp_path / "total").open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.warns(UserWarning, match="total: another process has held its lock for .*without the cache"):
            cache.put("l", b"2")
        cache.put("m", b"3")  # said once
    assert [cache.get(key) for key in "klm"] == [None, None, None]
    assert DiskCache(tmp_path, 10_000).get("k") == b"1"
