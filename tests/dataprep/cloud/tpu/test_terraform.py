"""The example in terraform/, as far as it can be checked without a cloud."""

import json
import re
import shutil
import subprocess

import pytest

from dataprep.cloud.accelerators import generations, parse_accelerator
from dataprep.cloud.tpu.command_lines import IMAGE_FAMILIES, IMAGE_FAMILY, IMAGE_PROJECT, LABEL
from tests.support.markdown import ROOT

FOLDER = ROOT / "terraform"
TPU_METRICS = {  # Google's page on monitoring Cloud TPU
    "cpu/utilization",
    "memory/usage",
    "network/received_bytes_count",
    "network/sent_bytes_count",
    "tpu/mxu/utilization",
    "tpu/tensorcore/idle_duration",
}


def test_the_dashboard_is_json_with_known_metrics():
    text = (FOLDER / "dashboard.json").read_text()
    assert set(re.findall(r"\$\{(\w+)\}", text)) == {"name", "bucket"}
    dashboard = json.loads(re.sub(r"\$\{\w+\}", "x", text))
    assert len(dashboard["gridLayout"]["widgets"]) >= 6
    assert set(re.findall(r"tpu\.googleapis\.com/([a-z_/]+)", text)) <= TPU_METRICS


def test_the_runtime_version_is_the_one_of_the_example():
    text = (FOLDER / "main.tf").read_text()
    (version,) = re.findall(r'"(tpu-ubuntu\S+|v2-alpha\S+)"', text)
    assert generations()["v4"].runtime_version == version
    assert "accelerator_type=v4-32" in text


def test_machines_of_compute_engine_have_the_images_of_the_commands():
    text = (FOLDER / "compute-engine/main.tf").read_text()
    assert f"image_family={IMAGE_FAMILIES['7x']}" in text
    assert f'default = "{IMAGE_FAMILY}"' in text
    assert f"projects/{IMAGE_PROJECT}/global" in text
    assert f"{LABEL} = var.name" in text
    found = parse_accelerator("tpu7x-2x2x4")
    assert f"machine_type={found.machine.machine_type}" in text
    assert f"topology={found.topology} -var machines={found.hosts}" in text


@pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed")
def test_terraform_files_are_formatted():
    command = ["terraform", f"-chdir={FOLDER}", "fmt", "-check", "-diff", "-recursive"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
