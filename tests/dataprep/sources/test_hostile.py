"""Every hostile original is refused in one line, or taken as what it is; quickly, and in little memory."""

import json
import re
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path

from dataprep.errors import SourceError
from dataprep.sources import dataset_named
from dataprep.storage import open_storage
from tests.support.hostile import HOSTILE
from tests.support.memory_growth import MemoryGrowth

MAX_READS = 50
"""Reads of a bucket for one case; an image of 200 MiB takes 14, in blocks, and all others fewer."""
MAX_MEMORY_BYTES = 256 * 2**20
MAX_ADDRESS_SPACE_BYTES = 2 * 2**30


def test_hostile_cases_are_many_and_have_unique_names():
    assert len(HOSTILE) >= 300
    assert max(Counter(case.name for case in HOSTILE).values()) == 1
    assert {case.outcome for case in HOSTILE} == {"refused", "rejected", "harmless"}
    assert {(case.dataset, case.split) for case in HOSTILE} == {
        ("coco-dup5", "train"),
        ("imagenet", "train"),
        ("imagenet", "val"),
    }


def test_hostile_originals_are_refused_or_harmless_in_few_reads_and_little_memory(tmp_path):
    """In a process of its own, whose memory is limited; a bucket is played by a disk that is read like one."""
    command = [sys.executable, "-m", "tests.dataprep.sources.test_hostile", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    report = json.loads(run.stdout)
    assert report["wrong"] == []
    assert report["most_reads"][0] < MAX_READS, report["most_reads"]
    assert report["memory_bytes"] < MAX_MEMORY_BYTES


def enumerate_all(folder):
    """Enumerate every case; what went wrong, the most reads, and what memory was needed beyond that of starting."""
    from tests.support.slow_storage import SlowStorage

    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE_BYTES, MAX_ADDRESS_SPACE_BYTES))
    growth = MemoryGrowth()
    wrong, most_reads = [], (0, "")
    for case in HOSTILE:
        root = folder / case.name
        root.mkdir()
        case.write(root)
        on_disk = case.name.startswith("folder-")  # links and pipes: only a disk has them
        storage = open_storage(str(root)) if on_disk else SlowStorage(root)
        if problem := judged(case, storage):
            wrong.append(f"{case.name}: {problem}")
        if not on_disk:
            most_reads = max(most_reads, (len(storage.requests), case.name))
    return {"wrong": wrong, "most_reads": most_reads, "memory_bytes": growth.bytes()}


def judged(case, storage):
    """What is wrong with what became of a case; nothing when it is as it should be."""
    try:
        found = dataset_named(case.dataset).enumerate(storage, case.split, allow_partial=True)
    except SourceError as error:
        text = str(error)
        if case.outcome != "refused" or not re.search(case.words, text):
            return f"expected {case.outcome} {case.words!r}, got: {text}"
        if "\n" in text or len(text) > 800 or not text.isprintable() or storage.url not in text:
            return f"not one readable line that names the place: {text!r}"
        return ""
    except Exception as error:  # noqa: BLE001  whatever else it raises is what is looked for
        return f"{type(error).__name__}: {error}"
    if case.outcome == "refused":
        return f"expected to be refused ({case.words}), got {len(found.refs)} images"
    if len(found.refs) != case.samples:
        return f"expected {case.samples} images, got {len(found.refs)}"
    if case.key and case.key not in {ref.key for ref in found.refs}:
        return f"no image has the key {case.key}"
    for ref in found.refs:
        storage.read_range(ref.source, ref.offset, ref.num_bytes)
    return ""


if __name__ == "__main__":
    print(json.dumps(enumerate_all(Path(sys.argv[1]))))
