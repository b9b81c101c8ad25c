"""Words that messages share."""

import json
import os
import subprocess

import pytest

from dataprep.messages import (
    counted,
    did_you_mean,
    duration,
    first_line,
    not_one_of,
    one_line,
    printable,
    quoted,
    shell_words,
    shortened,
    sufficient_ratio,
    there_are,
    usd,
    visible,
)


def test_an_error_becomes_one_line_of_at_most_200_characters_or_the_name_of_its_type():
    assert one_line(ValueError("no\n  such\tfile ")) == "no such file"
    assert one_line(ValueError("x" * 300)) == "x" * 200
    assert one_line(ValueError("x" * 300), 10) == "x" * 10
    assert one_line(TimeoutError()) == one_line(TimeoutError(" \n")) == "TimeoutError"


def test_first_line_of_an_error_leaves_its_details_out():
    assert first_line(ValueError("403 Forbidden\n\nDebug source:\nx")) == "403 Forbidden"
    assert first_line(ValueError("x" * 400)) == "x" * 297 + "..."
    assert first_line(ValueError(" ")) == "ValueError"


def test_control_characters_do_not_reach_the_terminal():
    assert printable("a\x1b[2Jb\nc") == "a\N{REPLACEMENT CHARACTER}[2Jb\N{REPLACEMENT CHARACTER}c"
    assert printable("n01440764 Tinca é") == "n01440764 Tinca é"


@pytest.mark.parametrize(
    "word",
    [
        *("plain", "two words", "", "--drop", "日本", "a;id", "$(touch X)", "`id`", "k'\"\\", "a\nid\n", "x'\n'`id`'"),
        *("\x1b]52;c;aWQ=\x07", "\u202egpj.exe", "\x9b2J", os.fsdecode(b"\xff\xfe"), "#x", "~root", "a=b", "!!", "*"),
    ],
)
def test_word_of_a_command_is_the_same_word_when_it_is_pasted(word):
    command = shell_words("printf", "%s.", word)
    assert command.isprintable()
    run = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert run.stdout == os.fsencode(word) + b"."


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_word_of_a_command_runs_nothing_in_any_shell(tmp_path, shell):
    word = "a'\n$(touch X)\n`touch X`;touch X\n"
    subprocess.run([shell, "-c", shell_words("true", word)], cwd=tmp_path, check=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("text", "limit", "expected"), [("12345", 5, "12345"), ("123456", 5, "12...")])
def test_long_text_is_cut_with_dots_inside_the_limit(text, limit, expected):
    assert shortened(text, limit) == expected


def test_value_is_quoted_by_its_repr():
    assert quoted("x") == "'x'"
    assert quoted(["y" * 100]) == "['" + "y" * 75 + "..."


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("tfrecrod", "tfrecord"), ("TFRECORDS", "tfrecord"), ("resnet51", "ResNet50"), ("zzz", ""), (7, ""), (None, "")],
)
def test_nearest_choice_is_suggested(name, nearest):
    choices = ("tfrecord", "webdataset", "ResNet50")
    assert did_you_mean(name, choices) == (f"; did you mean {nearest}?" if nearest else "")
    assert did_you_mean("webdatset", choices, 0.99) == ""


def test_unknown_name_lists_the_choices():
    assert (
        not_one_of("format", "tar", ("tfrecord", "webdataset")) == "format 'tar', expected one of tfrecord, webdataset"
    )
    assert not_one_of("loader", "tochvision", ("dataprep", "torchvision")).endswith("; did you mean torchvision?")


@pytest.mark.parametrize(
    ("count", "noun", "expected"),
    [
        (1, "pass", "1 pass"), (2, "pass", "2 passes"), (0, "shard", "0 shards"), (2, "batch", "2 batches"),
        (2, "epoch", "2 epochs"), (1, "class", "1 class"), (1_000, "class", "1,000 classes"),
    ],
)  # fmt: skip
def test_noun_is_in_the_plural_unless_there_is_one(count, noun, expected):
    assert counted(count, noun) == expected


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "$0.00"), (1234.5, "$1,234.50"), (0.0512, "$0.05"), (0.00999, "$0.01"), (0.00123, "$0.0012"),
        (1e-7, "$0.0000001"), (0.02 / 2**30, "$0.000000000019"), (1e-18, "$0.00"), (-1e-18, "$0.00"),
    ],
)  # fmt: skip
def test_amounts_below_a_cent_have_two_significant_digits(amount, text):
    assert usd(amount) == text


def test_there_are_lists_the_choices_behind_the_nearest():
    assert there_are("image_sizes", ["image_size", "seed"]) == "; did you mean image_size? There are image_size, seed"
    assert there_are("x", ["image_size", "seed"]) == "; there are image_size, seed"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (119, "119 s"), (121, "2 min"), (12_000, "3 h 20 min")])
def test_times_are_written_as_people_write_them(seconds, text):
    assert duration(seconds) == text


def test_the_ratio_that_is_named_allows_what_it_is_named_for():
    assert sufficient_ratio(1, 3) == 0.3334
    assert sufficient_ratio(3, 3) == 1
    for total in range(1, 300):
        for rejected in range(total + 1):
            ratio = sufficient_ratio(rejected, total)
            assert rejected <= float(f"{ratio:g}") * total <= rejected + 2e-4 * total


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b]52;c;aWQ=\x07b", r"a\u001b]52;c;aWQ=\u0007b"),
        ("\x9b2J\x7f\r", r"\u009b2J\u007f\u000d"),
        ("\u202egpj.exe\u2066\u200f", r"\u202egpj.exe\u2066\u200f"),
        ("\U000e0041\udcff\u2028", r"\udb40\udc41\udcff\u2028"),
        ("Tinca é 日本 · \u00a0\u3000👩\u200d🔬\n\tnext", "Tinca é 日本 · \u00a0\u3000👩\u200d🔬\n\tnext"),
    ],
)
def test_only_what_controls_a_terminal_is_escaped(text, shown):
    assert visible(text) == shown


def test_a_document_stays_the_same_when_it_is_shown():
    values = {"a\u202e\x9b": "\x1b\x07\U000e0041\u2029", "b": ["é", "\n"]}
    assert json.loads(visible(json.dumps(values, ensure_ascii=False))) == values
