"""What `dataprep plan-input` prints of a plan: facts, changes, plain lines where stdout is no terminal."""

from __future__ import annotations

import json
import re

import pytest

from dataprep.commands.plan_input import command

RESNET = ("--accelerator", "v4-32", "--model", "resnet50")


@pytest.fixture
def plan_input(capsys, monkeypatch):
    """Run the command: its exit code and what it printed."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> tuple[int, str]:
        code = command.main([str(argument) for argument in arguments], standalone_mode=False)
        return code, capsys.readouterr().out

    return run


def test_what_the_hosts_can_deliver_is_shown(plan_input):
    _, out = plan_input(*RESNET, "--images-per-s", 8000)
    plan = json.loads(plan_input(*RESNET, "--images-per-s", 8000, "--json")[1])["plan"]
    rate = plan["images_per_s"]
    assert rate == pytest.approx(8000 * plan["headroom"])
    assert f"  deliverable  ≥ {rate:,.0f} images/s by all hosts, {rate / 4:,.0f} by each" in out


def test_changes_that_make_no_difference_are_left_out(plan_input):
    _, out = plan_input(*RESNET, "--images-per-s", 8000)
    assert "What if: none of the changes that are known here makes a difference." in out
    _, out = plan_input(*RESNET, "--images-per-s", 60000)
    shares = [
        line.split()[-2] for line in out[out.index("as it is") :].splitlines() if line.rstrip().endswith("network")
    ]
    assert len(shares) > 1
    assert len(set(shares[:1]) & set(shares[1:])) == 0


def test_what_the_verdict_leaves_out_is_said_below_it(plan_input):
    words = ("--accelerator", "v5litepod-16", "--model", "resnet50", "--images-per-s", 16000)
    _, out = plan_input(*words)
    (left_out,) = json.loads(plan_input(*words, "--json")[1])["not_counted"]
    assert re.match(r"the bucket's bandwidth: 14\.7\d Gbit/s are needed of your project's quota", left_out)
    assert left_out.endswith("Quotas: give it as --bucket-gbps")
    assert out.splitlines()[2] == f"  not counted  {left_out}"
    for given in (("--bucket-gbps", 200), ("--cache",)):
        assert "not counted" not in plan_input(*words, *given)[1]
        assert json.loads(plan_input(*words, *given, "--json")[1])["not_counted"] == []


def test_a_single_chip_is_not_a_plural(plan_input):
    _, out = plan_input("--accelerator", "v5litepod-1", "--model", "resnet50", "--images-per-s", 1000)
    assert "v5litepod-1: 1 chip, 1 core, 16 GiB of HBM" in out


def test_without_a_terminal_no_line_is_wrapped_or_ends_with_spaces(plan_input):
    words = ("--images-per-s", 1000, "--bucket-location", "US", "--zone", "europe-west4-a")
    _, out = plan_input(*RESNET, *words)
    assert [line for line in out.splitlines() if line != line.rstrip()] == []
    assert re.search(r"^  from a copy in europe-west4 +\$", out, re.MULTILINE)
    assert re.search(r"^Reading .* once in europe-west4-a: paid, .+\.?$", out, re.MULTILINE)


def test_chips_and_hours_are_priced_by_the_price_that_is_given(plan_input):
    words = (*RESNET, "--images-per-s", 8000, "--epochs", 90, "--chip-hour-usd", 3.22)
    code, out = plan_input(*words)
    found = json.loads(plan_input(*words, "--json")[1])
    assert (code, found["places"]) == (0, None)
    training = found["training"]
    assert training["images"] == 90 * 1_281_167
    assert training["hours"] == pytest.approx(90 * 1_281_167 / 8000 / 3600)
    assert training["chip_hours"] == pytest.approx(16 * training["hours"])
    assert training["usd"] == pytest.approx(3.22 * training["chip_hours"])
    assert "  training     $206.27: 4.0 h for 90 epochs on 16 chips at $3.22 an hour" in out
    assert json.loads(plan_input(*RESNET, "--images-per-s", 8000, "--json")[1])["training"] is None


def test_the_hours_of_epochs_need_neither_a_price_nor_a_bucket(plan_input):
    words = (*RESNET, "--images-per-s", 8000, "--epochs", 90)
    code, out = plan_input(*words)
    found = json.loads(plan_input(*words, "--json")[1])
    assert (code, found["places"]) == (0, None)
    training = found["training"]
    assert training["hours"] == pytest.approx(90 * 1_281_167 / 8000 / 3600)
    assert (training["waiting_hours"], training["usd_per_chip_hour"], training["usd"]) == (0, None, None)
    assert "  training     4.0 h for 90 epochs; no waiting for images" in out


def test_the_hours_say_how_long_the_accelerator_waits_and_for_what(plan_input):
    words = (*RESNET, "--images-per-s", 40_000, "--epochs", 90, "--host-gbps", 10, "--workers", 1)
    code, out = plan_input(*words)
    found = json.loads(plan_input(*words, "--json")[1])
    training, plan = found["training"], found["plan"]
    assert (code, plan["limit"]) == (1, "workers")
    assert training["hours"] == pytest.approx(90 * 1_281_167 / plan["images_per_s"] / 3600)
    alone_hours = 90 * 1_281_167 / 40_000 / 3600
    assert training["waiting_hours"] == pytest.approx(training["hours"] - alone_hours)
    assert re.search(
        r"  training     [\d,.]+ h for 90 epochs; [\d,.]+ h of them waiting for images, limited by the workers", out
    )


def test_chips_that_wait_for_images_are_priced_too(plan_input):
    words = (*RESNET, "--images-per-s", 320_000, "--chip-hour-usd", 3.22, "--dataset-bytes", "1TB")
    code, out = plan_input(*words)
    found = json.loads(plan_input(*words, "--json")[1])
    assert (code, found["plan"]["utilisation"] < 1) == (3, True)  # the network is not published
    training, plan = found["training"], found["plan"]
    assert training["images"] == round(1e12 / found["cost"]["num_bytes"])
    assert training["hours"] * 3600 == pytest.approx(training["images"] / (320_000 * plan["utilisation"]))
    assert "for 1 epoch on 16 chips" in out
    assert "  training     at most $" in out
