import hashlib
import os
import subprocess
import sys

import pytest

import dataprep.builder.shard
from dataprep.builder.shard import WritebackFile
from dataprep.storage.checksums import crc32c_of, crc32c_text


@pytest.mark.parametrize("sync_bytes", [1, 1000, 10**9])
def test_written_bytes_are_stored_and_digested(tmp_path, monkeypatch, sync_bytes):
    monkeypatch.setattr(dataprep.builder.shard, "SYNC_BYTES", sync_bytes)
    path = tmp_path / "spool"
    path.touch()
    pieces = [os.urandom(size) for size in (0, 1, 300_000, 7, 512, 2_000_000)]
    lengths = []
    with WritebackFile(path, lengths.append) as file:
        for piece in pieces:
            file.write(piece)
    data = b"".join(pieces)
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(data)
    assert path.read_bytes() == data
    assert file.digests.num_bytes == len(data)
    assert file.digests.sha256 == hashlib.sha256(data).hexdigest()
    assert file.digests.crc32c == crc32c_text(crc32c_of(data))


def test_crc32c_is_formatted_as_cloud_storage_does():
    assert crc32c_text(crc32c_of(b"123456789")) == "4waSgw=="  # 0xE3069283, the check value of CRC-32C


def test_a_disk_that_refuses_is_an_error(tmp_path):
    """A limit on file sizes stands for the full disk: in a process of its own, because it would hold for all."""
    code = (
        "import pathlib, resource, signal, sys\n"
        "from dataprep.builder.shard import WritebackFile\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))\n"
        "path = pathlib.Path(sys.argv[1]); path.touch()\n"
        "try:\n"
        "    with WritebackFile(path, lambda num_bytes: None) as file:\n"
        "        [file.write(bytes(10**5)) for _ in range(20)]\n"
        "except OSError as error:\n"
        "    print(error.errno)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, tmp_path / "f"], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "27"
