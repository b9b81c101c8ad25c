"""docs/bottleneck.md is true of a loop of one's own: its programs run as they stand, and print what it shows."""

import itertools
import re

import pytest

from tests.support.libraries import in_process, output_of
from tests.support.markdown import blocks, shows

DOCUMENT = "docs/bottleneck.md"


@pytest.fixture
def printed(dataset, tmp_path):
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards/imagenet").symlink_to(dataset("webdataset"))
    outputs = []
    for block, after in itertools.pairwise(blocks(DOCUMENT)):
        if block.info == "python":
            assert after.info == "text"
            path = tmp_path / f"line_{block.line}.py"
            path.write_text(block.text)
            outputs.append(in_process("torch", output_of, path))
            assert shows(after.text, outputs[-1]), outputs[-1]
    return outputs


def test_programs_print_a_device_and_the_shares_that_the_document_explains(printed):
    device, loop, stats = printed
    assert float(re.fullmatch(r"--device simulated:(\d+)\n", device)[1]) > 0
    assert 0 <= int(re.search(r"(\d+) %", loop)[1]) <= 100
    waiting, decoding, transforming, cores = map(int, re.findall(r"(\d+) %", stats))
    assert min(waiting, decoding, transforming, cores) >= 0, "how much depends on what else the machine computes"
