"""Sentences with figures in the documents, made from recorded runs, settings of the code and arithmetic.

    python -m scripts.sentences            # writes figures that differ into the documents
    python -m scripts.sentences --check    # names the documents that differ, and exits with 1

A sentence is found by its words, whatever its figures are; other words are written by hand.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.tables import TABLES, arena_verdicts, recorded, recorded_lines, spread
from dataprep.builder.shard import WRITES_BETWEEN_CHECKS, WRITES_IN_FLIGHT
from dataprep.cloud.capacity import measured_here
from dataprep.selection import MORE_BANDS, comparisons

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS, CAPACITY, CLUSTERS = "benchmarks/README.md", "docs/capacity.md", "docs/clusters.md"
FIGURE = r"\d+(?:[.,]\d+)*"


def with_figures(document: str, text: str, sentence: str) -> str:
    """Return a document in which the words of a sentence have its figures.

    Raises:
        ValueError: The words are nowhere, or in several places of which none has these figures.
    """
    sentence = sentence.strip()
    words = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in re.split(FIGURE, sentence)]
    places = list(re.finditer(f"({FIGURE})".join(words), text))
    if any(" ".join(place[0].split()) == " ".join(sentence.split()) for place in places):
        return text
    if len(places) != 1:
        said = f'{len(places)} places say "{sentence}" with any figures, expected one; write it there by hand'
        raise ValueError(f"{document}: {said}")
    (place,), figures = places, re.findall(FIGURE, sentence)
    for number in range(len(figures), 0, -1):
        text = text[: place.start(number)] + figures[number - 1] + text[place.end(number) :]
    return text


def written_anew() -> dict[str, str]:
    """Return the documents of which a sentence has other figures, each as it is to be."""
    found: dict[str, str] = {}
    for document, sentences in SENTENCES:
        text = before = found.get(document) or (ROOT / document).read_text()
        for sentence in sentences():
            text = with_figures(document, text, sentence)
        if text != before:
            found[document] = text
    return found


def only(rows: list[dict[str, Any]], **values: object) -> dict[str, Any]:
    """Return the one row that has these values."""
    (found,) = (row for row in rows if values.items() <= row.items())
    return found


def _kilobytes(document: dict[str, Any]) -> str:
    return f"{document['bytes'] / document['images'] / 1000:.0f} kB"


def _hold(as_it_is_said: bool) -> None:
    """Raise ValueError where a sentence says that a target is met, or missed, and that has changed."""
    if not as_it_is_said:
        raise ValueError("a target is met or missed where the sentence says otherwise; write the sentence by hand")


def sentences_about_builds() -> list[str]:
    document = recorded("build")
    rows = {(row["check"], row["workers"], row["name"]): row for row in document["rows"]}
    shares = [row["ratio"] for (check, _, name), row in rows.items() if check == "none" and name.startswith("dataprep")]
    largest_mb = max(row["result"]["largest_mb"] for row in document["rows"] if "dataprep" in row["name"])
    webdataset, tfrecord = (cpu_ms_of_builds(each) for each in ("webdataset", "tfrecord"))
    two = [rows["decode", 2, f"dataprep {each}"]["ratio"] for each in ("webdataset", "tfrecord")]
    return [
        f"fall short of 0.85 of the plain loops ({two[0]:.2f} for `webdataset` and {two[1]:.2f} for `tfrecord`).",
        f"Without the check, all four rows fall short ({min(shares):.2f} to {max(shares):.2f})",
        f"largest process uses {largest_mb:.0f} MB",
        f"has every round. A row's slowest round takes {spread(document)}.",
        f"one worker needs {webdataset:.2f} ms of processor time per image for `webdataset` and {tfrecord:.2f} ms for "
        f"`tfrecord`, so one core writes {1000 / webdataset:.0f} or {1000 / tfrecord:.0f} images a second.",
    ]


def cpu_ms_of_builds(fmt: str) -> float:
    """Return the processor time of an image for one worker that checks every image."""
    rows = recorded("build")["rows"]
    found: float = only(rows, check="decode", workers=1, name=f"dataprep {fmt}")["result"]["cpu_ms_per_image"]
    return found


def sentences_about_large_builds() -> list[str]:
    document = recorded("build-large")
    _hold({row["target"] for row in document["rows"] if row["name"].startswith("dataprep")} == {0.85})
    _hold(not any("short of" in line for line in TABLES["build-large"](document)))
    size = f"{document['images']:,} images of {_kilobytes(document)}"
    return [f"writes {size} (4,000 files, each four times) to {document['shards']} shards"]


def sentences_about_buckets() -> list[str]:
    document = recorded("build-sources")
    targeted = [row for row in document["rows"] if row["case"]["in_bucket"] and row["loops_images_per_s"]]
    _hold(all(row["of_disk"] < 0.7 for row in targeted))
    checked, unchecked = ([row for row in targeted if row["case"]["check"] == check] for check in ("decode", "none"))
    least, most, least_unchecked, most_unchecked = (
        f"{choose(row['loops_of_disk'] for row in rows):.2f}" for rows in (checked, unchecked) for choose in (min, max)
    )
    shares = (" and ".join(f"{row['of_disk_by_cpu']:.2f}" for row in rows) for rows in (checked, unchecked))
    peak_mb = max(row["peak_mb"] for row in document["rows"])
    return [
        f"The plain loops miss it too: they reach {least} to {most} with the check and {least_unchecked} to "
        f"{most_unchecked} without it.",
        "would reach {} of the rate there with the check, and {} without it.".format(*shares),
        f"In the median round, the largest process uses at most {peak_mb:.0f} MB",
        f"builds {document['images']:,} images with one worker; the figures are medians of three rounds",
        f"responds to each request after {document['latency_ms']:g} ms",
    ]


def sentences_about_scale() -> list[str]:
    found = recorded("scale")
    share = "" if found["share"] == 1 else f" --share {found['share']:g}"
    train, val = (f"{round(found['share'] * found[split]):,}" for split in ("train", "val"))
    return [
        f"`benchmarks/scale.py{share}` uses {train} + {val} pictures of 2 kB",
        "60 s for the build and 20 s to verify.",
    ]


def sentences_about_own_data() -> list[str]:
    document = recorded("own-data")
    fastest = document["to_the_fastest_in_python"]
    slower = " and ".join(f"{1 / row['ratio']:.1f}" for row in fastest if row["check"] == "decode")
    shown = " and ".join(f"{row['ratio']:.2f}" for row in fastest if row["check"] == "none")
    return [
        f"copies files without looking at them, {slower} times as fast as a build that",
        f"A build without the check reaches {shown} times its rate.",
        f"A row's slowest round takes {spread(document)}. ### `laion.py`: building from URLs",
    ]


def costs_of_views() -> dict[str, str]:
    """Return the figures about several views, by what they are called in the sentences."""
    document = recorded("views")
    rows = {(row["contender"], row["views"]): row for row in document["rows"]}
    (one, whole, one_large, two, eight) = dict.fromkeys(views for _, views in rows)
    ours = {views: rows["our loader", views] for views in (one, whole, one_large, two, eight)}
    _hold(ours[whole]["ratio"] <= 1.3 < ours[two]["ratio"])
    pairs = zip(ours[two]["cpu_ms"], ours[one_large]["cpu_ms"], strict=True)
    return {
        "like": f"{median(mine / base for mine, base in pairs):.2f}",
        "whole": f"{ours[whole]['ratio']:.2f}",
        "two": f"{ours[two]['ratio']:.2f}",
        "eight": f"{ours[eight]['ratio']:.2f}",
        "separate": f"{rows['separate decodes', eight]['ratio']:.1f}",
        "shares": " and ".join(f"{100 * document['reducible'][views]:.1f}" for views in (whole, two)),
    }


def sentences_about_views() -> list[str]:
    document, cost = recorded("views"), costs_of_views()
    return [
        f"Eight views cost our loader {cost['eight']} decodes, below the target of 2.5.",
        f"area cost {cost['whole']}, below the target of 1.3. Two views of area 0.4 to 1 cost {cost['two']}, above the "
        f"target, and {cost['like']} times as much as one view of that area",
        f"even for one crop. A row's slowest round takes {spread(document)}.",
        f"`make bench-views` uses {document['images']:,} crops of photographs, {_kilobytes(document)} each",
    ]


def sentences_of_the_decision_on_views() -> list[str]:
    cost = costs_of_views()
    return [
        f"eight views cost as much as {cost['eight']} decodes of one default crop ({cost['separate']} with separate "
        f"decodes), and two views of the default area {cost['whole']}.",
        f"0.4 to 1 cost {cost['two']}, above the target of 1.3, and {cost['like']} times one view",
        f"in {cost['shares']} % of the benchmark's images",
    ]


def ratios_of_restart() -> dict[tuple[str, ...], float]:
    """Return shares of a full decode at 224 pixels, by contender, files and interpolation."""
    rows = recorded("restart")["rows"]
    return {
        (row["contender"], row["files"], row["interpolation"]): row["ratio"] for row in rows if row["image_size"] == 224
    }


def sentences_about_restart_markers() -> list[str]:
    ratios, both = ratios_of_restart(), ("bicubic", "bilinear")
    targets = {row["interpolation"]: row["target"] for row in recorded("restart")["rows"] if row["target"]}
    bicubic, bilinear = (ratios["loader", "restart markers", each] for each in both)
    _hold(bicubic <= targets["bicubic"] and bilinear <= targets["bilinear"])
    speeds = [ratios["decoder, extension", "originals", each] / ratios["decoder, libraries", "originals", each]
              for each in both]  # fmt: skip
    return [
        f"takes {bicubic:.3f} of a full decode with bicubic interpolation and {bilinear:.3f} with bilinear",
        f"which meets the targets of {targets['bicubic']:.3f} and {targets['bilinear']:.3f}.",
        f"reaches {speeds[0]:.2f} of its speed at 224 pixels with bicubic interpolation and {speeds[1]:.2f} with "
        "bilinear",
    ]


def sentences_of_data_on_restart_markers() -> list[str]:
    found, ratios = recorded("restart"), ratios_of_restart()
    share = ratios["loader", "restart markers", "bicubic"] / ratios["loader", "originals", "bicubic"]
    return [
        f"decodes a crop in {100 * share:.0f} % of the time.",
        f"In a test on {found['images']:,} crops of photographs, {_kilobytes(found)} each, files shrank by "
        f"{100 - 100 * found['restart_bytes'] / found['bytes']:.0f} %, and one core re-encoded "
        f"{found['transcoded_images_per_s']:.0f} images a second.",
    ]


def sentences_about_the_fallback_decoder() -> list[str]:
    ratios, both = ratios_of_restart(), ("bicubic", "bilinear")
    rows = ratios["libraries, not scaled", "originals", ""]
    extension, libraries = (
        [ratios[f"decoder, {name}", "originals", each] for each in both] for name in ("extension", "libraries")
    )
    speed = [mine / theirs for mine, theirs in zip(extension, libraries, strict=True)]
    _hold(all(0.4 < each < 0.6 for each in speed))
    return [
        f"at 224 pixels, bicubic, the extension takes {extension[0]:.3f} and the libraries {libraries[0]:.3f}; "
        f"bilinear, {extension[1]:.3f} and {libraries[1]:.3f}; so the libraries have {speed[0]:.2f} and "
        f"{speed[1]:.2f} of",
        f"simplejpeg takes {rows:.3f} to decode",
        f"could not exceed {extension[0] / rows:.2f} and {extension[1] / rows:.2f}.",
    ]


def sentences_about_engines() -> list[str]:
    document = recorded("engines")
    _hold(only(document["rows"], engine="ray")["of_local"] >= 0.9)
    size = f"{document['images']:,} images of {_kilobytes(document)} in {document['shards']} shards"
    return [f"`make bench-engines` builds {size}, in {document['rounds']} rounds"]


def sentences_about_grain() -> list[str]:
    found = recorded("grain")
    facts = f"reads {found['images']:,} crops of photographs in batches of 64 at {found['image_size']} pixels;"
    rounds = f"the figures are medians of {found['rounds']} rounds."
    return [f"{facts} {rounds} Every request to the bucket takes {found['latency_ms']:g} ms."]


def sentences_about_packs() -> list[str]:
    plans = recorded("packs")["plans"]
    grain = plans["grain"]
    return [
        f"Padding is {plans['padding_two_epochs']:.2%} over two complete epochs, and {plans['many_padding']:.2%} for "
        f"{plans['many_images']:,} images of such sizes, which one core plans in {plans['many_planned_s']:.1f} s. "
        f"Grain's best fit in {grain['bins']} bins packs {grain['images']:,} images of the same lengths with "
        f"{grain['padding']:.2%} padding, in {grain['seconds']:.0f} s."
    ]


def sentences_about_laion() -> list[str]:
    rows, rate = recorded("laion")["rows"], "after_start_images_per_s"
    ours, encoding, loops = (next(row for row in rows if row["group"] == group) for group in ("ours", "a", "c"))
    best = max((row for row in rows if row["group"] == "b"), key=lambda row: row[rate])
    times, bound = ours[rate] / best[rate], loops[rate] / encoding[rate]
    _hold(times >= 1.5 and bound < 0.9)
    return [
        f"our build is {times:.2f} times as fast as img2dataset with its better setting; the target is 1.5.",
        f"Including startup, it's {ours['images_per_s'] / best['images_per_s']:.1f} times as fast.",
        f"It reaches {ours[rate] / encoding[rate]:.2f} of (a) in images/s and "
        f"{encoding['cpu_ms_per_image'] / ours['cpu_ms_per_image']:.2f} in processor time",
        f"reach {bound:.2f} of (a), and our build reaches {ours[rate] / loops[rate]:.2f} of (c).",
        images_of_laion(),
    ]


def images_of_laion() -> str:
    """Every image of demo data is a crop of one of a few photographs."""
    run = recorded("laion")
    return f"{run['images']:,} crops of photographs, {_kilobytes(run)} each"


def sentences_of_data_on_laion() -> list[str]:
    ours, *_ = recorded("laion")["rows"]
    ms = round(ours["cpu_ms_per_image"], 1)
    hours = 413e6 * (0.68 * ms + 0.32 * 0.5) / 3.6e6
    return [
        images_of_laion(),
        f"Processing takes {ms:.1f} ms per image on one core",
        f"(0.68 x {ms:.1f} ms + 0.32 x 0.5 ms) / 3,600 s = {hours:.0f} core-hours",
    ]


def sentences_about_planted_situations() -> list[str]:
    found = [result for result in recorded_lines("diagnose-unseen") if result["seed"] == 618033]
    verdicts = [each["verdict"] for each in found]
    far = [each["measured"] / each["predicted"] - 1 for each in found if each["error"] > 0.1]
    right, near = len(found) - verdicts.count("wrong"), len(found) - len(far)
    undecided = ("none", "one", "two", "three", "four")[verdicts.count("undecided")]
    first, second = ("meets" if good else "misses" for good in (right >= 0.95 * len(found), near >= 0.9 * len(found)))
    return [
        f"{right} of {len(found)} diagnoses are right, {undecided} of them undecided, which {first} the first target.",
        f"It {second} the second: {near} what-ifs are within 10 % (median error "
        f"{_percent(median(each['error'] for each in found))})",
        f"For the other {len(far)}, the measured rate is between {_percent(-min(far), 0)} below and "
        f"{_percent(max(far), 0)} above the prediction.",
        "Seed 8128 misses both targets, and seed 27182 misses the second.",
    ]


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def sentences_about_the_arena() -> list[str]:
    document, ours, peers = recorded("formats"), [], []
    for row in recorded("arena")["rows"]:
        if row["name"] != "full decode":
            (ours if row["name"].startswith("ours") else peers).append(median(row["first_batch_s"]))
    _hold(document["errors"] == {})
    return [
        f"tests our formats on {document['images']:,} images of {_kilobytes(document)}, {document['taken']:,} of "
        f"them per run, in batches of {document['batch_size']}, with {document['workers']} workers",
        f"Our first batch arrives after {min(ours):.1f} to {max(ours):.1f} s, and the peers' first batches after "
        f"{min(peers):.1f} to {max(peers):.1f} s",
        *recorded("arena")["errors"],
    ]


def sentences_about_large_indexes() -> list[str]:
    document = recorded("large-index")
    parts, least = (only(document["table"], index=each) for each in ("parts", "small dataset"))
    return [
        f"with {document['rows'] / 1e6:.0f} million rows in {document['shards']:,} shards, "
        f"{parts['open_s']:.2f} s and {parts['open_peak_mb']:.0f} MB, of which every dataset takes "
        f"{least['open_peak_mb']:.0f} MB. Reading the rows of a shard takes {parts['shard_cpu_ms']:.1f} ms,"
    ]


def sentences_of_the_readme() -> list[str]:
    times = dict(
        re.findall(r"224 \| (\S+) \| originals \| ([0-9.]+) times", "\n".join(arena_verdicts(recorded("arena"))))
    )
    antialiased, plain = min(times["bicubic"], times["bilinear"], key=float), times["bilinear-no-antialias"]
    resumed = recorded("resume")
    changes = only(resumed["rows"], loader="dataprep")["changes"]
    wrong = sum(change["repeated"] + change["skipped"] for change in changes)
    return [
        f"the fastest other loader needs {antialiased} times our CPU time per 224-pixel image, "
        f"or {plain} times without antialiasing",
        f"it repeats or skips {wrong} of the epoch's {resumed['samples']:,} samples",
    ]


def sentences_about_capacity() -> list[str]:
    cost = next(row.cost for row in measured_here()["dataprep"] if row.image_size == 224)
    return [
        f"{cost.cpu_ms:.2f} ms per image for our loader at 224 pixels, of which {cost.stored_ms:.2f} ms depend on the "
        "size of the stored image."
    ]


def sentences_about_a_late_worker() -> list[str]:
    return [
        f"the plan is compared before every {WRITES_BETWEEN_CHECKS} images.",
        f"still makes up to {WRITES_BETWEEN_CHECKS + 2 * WRITES_IN_FLIGHT - 1} requests when it resumes.",
    ]


def sentences_about_bottlenecks() -> list[str]:
    found = [result for result in recorded_lines("diagnose-unseen") if result["seed"] == 618033]
    right = sum(each["verdict"] != "wrong" for each in found)
    return [
        f"right in {right} of {len(found)} test cases that it wasn't tuned on",
    ]


def sentences_about_near_duplicates() -> list[str]:
    document = recorded("near-duplicates")

    def least(hashes: float, bits: int) -> float:
        return min(comparisons(int(hashes), bits, bands) for bands in range(bits, bits + MORE_BANDS))

    each_s = only(document["rows"], bits=8)["s"] / least(document["hashes"], 8)

    def took(hashes: float, bits: int) -> str:
        hours = each_s * least(hashes, bits) / 3600
        return f"{hours:.1f} hours with `phash<={bits}`"

    def pairs(bits: int) -> str:
        share = sum(math.comb(64, differing) for differing in range(bits + 1)) / 2**64
        return f"{1e12 / 2 * share:,.0f}"

    return [
        f"400 million hashes take {took(4e8, 4)}, {took(4e8, 6)} and {took(4e8, 8)}; 5 billion take {took(5e9, 4)} "
        f"and {took(5e9, 6)}.",
        f"among a million random hashes, {pairs(6)} pairs differ in at most 6 bits, {pairs(8)} in at most 8, and "
        f"{pairs(12)} in at most 12.",
    ]


def sentences_about_living() -> list[str]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in recorded("living")["table"]:
        found.setdefault(row["what"], []).append(row)
    view, resumed, select = (found[what][-1] for what in ("view", "resumed", "select"))
    middle, large = found["near"][-2:]
    each = 1e6 * (large["peak_mb"] - middle["peak_mb"]) / (large["rows"] - middle["rows"])
    each_us = 1e6 * select["seconds"] / select["rows"]
    return [
        f"a view that keeps half of {view['rows'] / 1e6:.0f} million samples needs {view['peak_mb']:.0f} MB per rank",
        f"Resuming in the middle of an epoch takes {resumed['peak_mb']:.0f} MB and {resumed['seconds']:.0f} s",
        f"`select` with a condition takes {select['peak_mb']:.0f} MB and {each_us:.1f} µs per sample",
        f"finding near duplicates takes another {each:.0f} bytes per sample",
    ]


SENTENCES: list[tuple[str, Callable[[], list[str]]]] = [
    (BENCHMARKS, sentences_about_builds),
    (BENCHMARKS, sentences_about_large_builds),
    (BENCHMARKS, sentences_about_buckets),
    (BENCHMARKS, sentences_about_scale),
    (BENCHMARKS, sentences_about_own_data),
    (BENCHMARKS, sentences_about_views),
    (BENCHMARKS, sentences_about_restart_markers),
    (BENCHMARKS, sentences_about_engines),
    (BENCHMARKS, sentences_about_grain),
    (BENCHMARKS, sentences_about_packs),
    (BENCHMARKS, sentences_about_laion),
    (BENCHMARKS, sentences_about_planted_situations),
    (BENCHMARKS, sentences_about_the_arena),
    ("README.md", sentences_of_the_readme),
    ("docs/written.md", sentences_of_data_on_restart_markers),
    ("docs/laion.md", sentences_of_data_on_laion),
    (CAPACITY, sentences_about_capacity),
    ("docs/bottleneck.md", sentences_about_bottlenecks),
    ("docs/views.md", sentences_about_near_duplicates),
    ("docs/views.md", sentences_about_living),
    ("docs/decisions/0006-one-plan-holds-the-place.md", sentences_about_a_late_worker),
    ("docs/decisions/0018-multi-view.md", sentences_of_the_decision_on_views),
    ("docs/decisions/0021-index-in-parts.md", sentences_about_large_indexes),
    ("docs/decisions/0022-wheels.md", sentences_about_the_fallback_decoder),
]


def main() -> int:
    """Write the documents, or name those that differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="name documents that differ, and write nothing")
    check = parser.parse_args().check
    found = written_anew()
    for document, text in found.items():
        print(f"{document} {'has other figures' if check else 'written'}")
        if not check:
            (ROOT / document).write_text(text)
    return int(check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
