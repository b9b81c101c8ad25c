"""The tables of README.md, made from the --json files of the benchmarks: python benchmarks/tables.py writes them there.

Every ratio is of two rates in one file, and one below its target is marked as short. A table is found by its first
line. Write a new run to results/ with --json first; a test compares it with README.md.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
UNSEEN_CLOSE = 0.1
"""Relative error of a what-if that is close."""
LARGER_ROWS = (400_000_000, 5_000_000_000)
"""Samples of datasets whose memory is calculated."""
SHOWN_OF_A_MESSAGE = 100
"""Characters of an error message that a cell shows."""


def build_table(document: dict[str, Any]) -> list[str]:
    """Return each contender's images/s and ratio, by check and number of workers."""
    sections = {(row["check"], row["workers"]): None for row in document["rows"]}
    cells: dict[str, dict[tuple[str, int], str]] = {}
    for row in document["rows"]:
        name = re.sub(r"(spread) over \d+ processes|(plain loops), \d+ process(?:es)?", r"\1\2", row["name"])
        cells.setdefault(name, {})[row["check"], row["workers"]] = _rate_and_ratio(row, document["rows"])
    header = ["`build.py`", *(f"{check}, {count} worker{'s' * (count > 1)}" for check, count in sections)]
    return _table(header, ([name, *(found.get(section, "") for section in sections)] for name, found in cells.items()))


def _rate_and_ratio(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    rates = {
        other["name"]: other["result"]["images_per_s"]
        for other in rows
        if (other["check"], other["workers"]) == (row["check"], row["workers"])
    }
    rate, group = rates[row["name"]], row["name"][:3]
    ours = {name: found for name, found in rates.items() if name.startswith("dataprep ")}
    if group == "(a)":
        return f"{rate:,.0f}"
    if row["name"] in ours:
        ratio = rate / next(found for name, found in rates.items() if name.startswith("(a)"))
    else:
        like = {"(b)": ["dataprep webdataset"], "(c)": ["dataprep tfrecord"]}.get(group, list(ours))
        ratio = min(ours[name] for name in like) / rate
    target = row["target"]
    short = f", short of {target:g}" if target is not None and ratio < target else ""
    return f"{rate:,.0f} ({ratio:.2f}{short})"


def laion_table(document: dict[str, Any]) -> list[str]:
    """Return the columns of laion.py that need no explanation, and the ratio after the start."""
    rows = document["rows"]
    lines = []
    for row in rows:
        ratio = rows[0]["after_start_images_per_s"] / row["after_start_images_per_s"]
        lines.append(
            [
                row["name"],
                f"{row['images_per_s']:.0f}",
                f"{row['cpu_ms_per_image']:.2f}",
                f"{row['server_cpu_ms_per_image']:.2f}",
                f"{row['sum_mb']:.0f}",
                f"{row['start_s']:.1f}",
                f"{row['after_start_images_per_s']:.0f}",
                f"{ratio:.2f}" if row is not rows[0] else "",
            ]
        )
    columns = ["", "images/s", "CPU ms/image", "server", "sum MB", "start s", "images/s after the start", "ratio"]
    return _table(columns, lines)


ARENA_TARGET = 2.0
"""Target for our rate and CPU time against those of the fastest peer with the same size and interpolation."""
ARENA_DECODE = "full decode"
"""Name of the row that decodes whole images, and does nothing else."""
ARENA_OURS = ("ours", ARENA_DECODE)
"""Beginnings of the names of rows that are no peers."""
ARENA_MARKED = "ours, restart markers"
"""Beginning of the names of our rows that read shards of `--jpeg restart`."""
ARENA_FORMATS = ("ours, tfrecord", "ours, imagefolder")
"""Rows of our other formats, which no peer is compared with."""
ARENA_FIGURES = ("rounds_cpu_ms", "rounds_images_per_s")
FORMATS_TARGET = 0.95
"""Target for the images/s of each of our formats as a share of the fastest one's."""


def arena_table(document: dict[str, Any]) -> list[str]:
    """Return images/s and CPU time of each contender with their ranges, and how many times as fast ours is."""
    lines = []
    for row in sorted(document["rows"], key=lambda row: (row["image_size"], statistics.median(row["rounds_cpu_ms"]))):
        rates, cpu_ms = row["rounds_images_per_s"], row["rounds_cpu_ms"]
        by_cpu, on_wall = arena_ratios(row, document["rows"]) or (None, None)
        lines.append(
            [
                " ".join([row["name"], row["version"]] if not row["name"].startswith(ARENA_OURS) else [row["name"]]),
                str(row["image_size"]),
                row["interpolation"],
                *_middle_and_range(cpu_ms, 2),
                *_middle_and_range(rates, 0),
                str(len(rates)),
                "" if by_cpu is None else f"{by_cpu:.2f}",
                "" if on_wall is None else f"{on_wall:.2f}",
            ]
        )
    header = ["`loader_arena.py`", "pixels", "resize", "CPU ms/image", "range", "images/s", "range", "rounds"]
    return _table([*header, "ours by CPU", "ours on the wall"], lines)


def arena_verdicts(document: dict[str, Any]) -> list[str]:
    """Return the fastest peer by size and interpolation, and whether ours reaches the target, from both our shards."""
    lines = []
    kinds = sorted({(row["image_size"], row["interpolation"]) for row in document["rows"] if row["interpolation"]})
    for (size, interpolation), marked in product(kinds, (False, True)):
        rows = [row for row in document["rows"] if (row["image_size"], row["interpolation"]) == (size, interpolation)]
        peers = [(row["name"], ratios) for row in rows if (ratios := arena_ratios(row, rows, marked=marked))]
        shown = []
        for which in (0, 1) if peers else ():
            name, ratios = min(peers, key=lambda peer: peer[1][which])
            short = f", short of {ARENA_TARGET:g}" if ratios[which] < ARENA_TARGET else ""
            shown.append(f"{ratios[which]:.2f} times {name.split(', ')[0]}{short}")
        if shown:
            lines.append([str(size), interpolation, "`--jpeg restart`" if marked else "originals", *shown])
    return _table(["pixels", "resize", "our shards hold", "ours by CPU to the fastest peer", "on the wall"], lines)


def arena_ratios(
    row: dict[str, Any], rows: list[dict[str, Any]], *, marked: bool = False
) -> tuple[float, float] | None:
    """Return a peer's CPU time divided by ours, and our images/s divided by the peer's; None for rows of our own.

    Args:
        row: Figures of the peer.
        rows: Figures of all rows.
        marked: Compare with ours from shards with restart markers; otherwise with ours from the original JPEGs.
    """
    if row["name"].startswith(ARENA_OURS):
        return None
    ours = next(
        (
            each
            for each in rows
            if each["name"].startswith("ours")
            and each["name"] not in ARENA_FORMATS
            and each["name"].startswith(ARENA_MARKED) == marked
            and (each["image_size"], each["interpolation"]) == (row["image_size"], row["interpolation"])
        ),
        None,
    )
    if ours is None:
        return None
    cpu_ms, rates = ([statistics.median(each[what]) for each in (row, ours)] for what in ARENA_FIGURES)
    return cpu_ms[0] / cpu_ms[1], rates[1] / rates[0]


def formats_table(document: dict[str, Any]) -> list[str]:
    """Return CPU time and images/s of our formats, as shares of a full decode's CPU time and of the fastest's rate."""
    lines = []
    for row in document["rows"]:
        size, name, cpu_ms, rates = row["image_size"], row["name"], row["rounds_cpu_ms"], row["rounds_images_per_s"]
        medians = {
            each["name"]: [statistics.median(each[what]) for what in ARENA_FIGURES]
            for each in document["rows"]
            if each["image_size"] == size
        }
        fastest = max(rate for whose, (_, rate) in medians.items() if whose != ARENA_DECODE)
        ms, rate = medians[name]
        short = f", short of {FORMATS_TARGET:g}" if rate < FORMATS_TARGET * fastest else ""
        lines.append(
            [
                name if name == ARENA_DECODE else row["layout"],
                str(size),
                *_middle_and_range(cpu_ms, 2),
                *_middle_and_range(rates, 0),
                str(len(rates)),
                f"{statistics.median(row['first_batch_s']):.1f}",
                f"{statistics.median(row['sum_mb']):,.0f}",
                f"{ms / medians[ARENA_DECODE][0]:.2f}",
                "" if name == ARENA_DECODE else f"{rate / fastest:.2f}{short}",
            ]
        )
    header = ["our formats", "pixels", "CPU ms/image", "range", "images/s", "range", "rounds", "first batch s"]
    return _table([*header, "sum MB", "CPU of a full decode's", "images/s of our fastest's"], lines)


def build_sources_table(document: dict[str, Any]) -> list[str]:
    """Return the builds from buckets, each with the build of the same originals on disk."""
    rows = document["rows"]
    lines = []
    for row in rows:
        case = row["case"]
        if not case["in_bucket"]:
            continue
        disk = next(other for other in rows if other["case"] == case | {"in_bucket": False})
        loops = row["loops_images_per_s"]
        lines.append(
            [
                f"{case['layout']}, {case['num_shards']} shard{'s' * (case['num_shards'] > 1)}",
                case["check"],
                f"{disk['images_per_s']:,.0f}",
                f"{row['images_per_s']:,.0f} ({row['of_disk']:.2f})",
                "" if loops is None else f"{loops:,.0f} ({row['loops_of_disk']:.2f})",
                f"{disk['cpu_ms_per_image']:.2f}",
                f"{row['cpu_ms_per_image']:.2f} ({row['of_disk_by_cpu']:.2f})",
                f"{row['server_cpu_s'] * 1000 / document['images']:.2f}",
                f"{row['peak_mb']:.0f}",
            ]
        )
    cpu = ["CPU ms, disk", "CPU ms, bucket", "server"]
    return _table(["`build_sources.py`", "check", "disk", "bucket", "loops", *cpu, "peak MB"], lines)


def own_data_table(document: dict[str, Any]) -> list[str]:
    """Return images/s by writer and number of processes, with the ratios of ours to it: with our check, and without."""
    counts = sorted({row["processes"] for row in document["rows"]})
    cells: dict[str, dict[int, str]] = {}
    lacks = {}
    for row in document["rows"]:
        rate, ratios = f"{row['images_per_s']:,.0f}", (row["ratio"], row["unchecked_ratio"])
        shown = rate if None in ratios else f"{rate} ({ratios[0]:.2f}, {ratios[1]:.2f})"
        cells.setdefault(row["writer"], {})[row["processes"]] = shown
        lacks[row["writer"]] = row["lacks"]
    header = ["`own_data.py`", *(f"{count} process{'es' * (count > 1)}" for count in counts), "leaves out"]
    return _table(header, ([name, *(by.get(count, "") for count in counts), lacks[name]] for name, by in cells.items()))


def many_objects_table(document: dict[str, Any]) -> list[str]:
    """Return the seconds until the first batch and the images/s after it: medians, and the lowest and highest run."""

    def cell(figures: list[float], digits: int) -> str:
        return "{} ({})".format(*_middle_and_range(figures, digits))

    lines = (
        [name, cell([first_s for first_s, _ in runs], 1), cell([rate for _, rate in runs], 0)]
        for name, runs in document["runs"].items()
    )
    return _table(["`many_objects.py`", "s to the first batch", "images/s"], lines)


def resume_table(document: dict[str, Any]) -> list[str]:
    """Return what each loader did at each change of the number of ranks, and its words where it refused."""
    header = ["`resume.py`", *(resume_change(change["ranks"]) for change in document["rows"][0]["changes"]), "says"]
    lines = []
    for row in document["rows"]:
        said = {_shortened(change["refused"]): None for change in row["changes"] if change["refused"] is not None}
        cells = [resume_outcome(change)[1] for change in row["changes"]]
        lines.append([f"{row['loader']} {row['version']}", *cells, "; ".join(said)])
    return _table(header, lines)


def resume_change(ranks: list[int]) -> str:
    """Return numbers of ranks with arrows, as `8 → 6 → 4`."""
    return " → ".join(map(str, ranks))


def resume_outcome(change: dict[str, Any]) -> tuple[str, str]:
    """Return the kind of an outcome, `exact`, `wrong` or `refused`, and what a cell says about it."""
    if change["refused"] is not None:
        return "refused", "refuses"
    counts = {"repeats": change["repeated"], "skips": change["skipped"]}
    if not any(counts.values()):
        return "exact", "exact"
    return "wrong", ", ".join(f"{what} {count:,}" for what, count in counts.items() if count)


def index_rows_table(document: dict[str, Any]) -> list[str]:
    """Return images/s and processor time with rows of the index in memory, on the disk and nowhere, with ratios."""
    fits = {key: [each[key] for each in document["rounds"]["in memory"]] for key in ("images_per_s", "cpu_ms")}
    lines = []
    for name, rounds in document["rounds"].items():
        cells = [name]
        for key, digits in (("images_per_s", 0), ("cpu_ms", 2)):
            figures = [each[key] for each in rounds]
            ratio = statistics.median(figures) / statistics.median(fits[key])
            cells.append("{} ({})".format(*_middle_and_range(figures, digits)) + f", {ratio:.2f} times")
        lines.append(cells)
    return _table(["`index_rows.py`", "images/s", "CPU ms/image"], lines)


def joined(before: dict[str, Any], document: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return a document with the rows of an earlier run of the same contest for the loaders that it does not have.

    Args:
        before: The earlier document.
        document: The new one.
        names: Order of the rows.
    """

    def settings(of: dict[str, Any]) -> dict[str, Any]:
        changes = [[change["ranks"] for change in row["changes"]] for row in of["rows"][:1]]
        facts = {name: value for name, value in of.items() if name not in ("rows", "machine", "commit")}
        return facts | {"changes": changes}

    if settings(before) != settings(document):
        return document
    rows = {row["loader"]: row for row in [*before["rows"], *document["rows"]]}
    return document | {"rows": [rows[name] for name in names if name in rows]}


def _middle_and_range(figures: list[float], digits: int) -> list[str]:
    """Return cells with the median, and with the lowest and the highest figure."""
    low, middle, high = (f"{each:,.{digits}f}" for each in (min(figures), statistics.median(figures), max(figures)))
    return [middle, f"{low} to {high}"]


def _shortened(message: str) -> str:
    """Return the beginning of a message, in the characters that a cell of a table can hold."""
    line = message.replace("|", "/")
    return f"`{line if len(line) <= SHOWN_OF_A_MESSAGE else line[: SHOWN_OF_A_MESSAGE - 1] + '…'}`"


def views_table(document: dict[str, Any]) -> list[str]:
    """Return CPU milliseconds an image by views and contender, with the ratios to one view of the same contender."""
    contenders = list(dict.fromkeys(row["contender"] for row in document["rows"]))
    cells: dict[str, dict[str, str]] = {}
    for row in document["rows"]:
        target = row["target"]
        above = f", above {target:g}" if target is not None and row["ratio"] > target else ""
        shown = f"{statistics.median(row['cpu_ms']):.2f} ({row['ratio']:.2f}{above})"
        cells.setdefault(row["views"], {})[row["contender"]] = shown
    return _table(
        ["`views.py`", *contenders], ([kind, *(by[each] for each in contenders)] for kind, by in cells.items())
    )


def restart_table(document: dict[str, Any]) -> list[str]:
    """Return CPU milliseconds an image and the share of a full decode, by contender and files."""
    lines = []
    for row in document["rows"]:
        cpu_ms, target = row["cpu_ms"], row["target"]
        above = f", above {target:.3f}" if target is not None and row["ratio"] > target else ""
        lines.append(
            [
                row["contender"],
                str(row["image_size"] or ""),
                row["interpolation"],
                row["files"],
                *_middle_and_range(cpu_ms, 2),
                f"{row['ratio']:.3f}{above}",
                f"{row['low']:.3f} to {row['high']:.3f}",
            ]
        )
    header = ["`restart.py`", "size", "interpolation", "files", "CPU ms/image", "rounds"]
    return _table([*header, "of a full decode", "rounds"], lines)


def engines_table(document: dict[str, Any]) -> list[str]:
    """Return each engine's rates, its start, and its rate after the start as a share of the local pool's."""
    lines = []
    for row in document["rows"]:
        low, high = row["of_local_range"]
        lines.append(
            [
                f"`{row['engine']}`",
                f"{row['images_per_s']:,.0f}",
                f"{statistics.median(row['start_s']):.1f}",
                f"{row['after_start_images_per_s']:,.0f}",
                f"{row['of_local']:.2f}",
                f"{low:.2f} to {high:.2f}",
            ]
        )
    return _table(["`engines.py`", "images/s", "start s", "images/s after it", "of `local`", "rounds"], lines)


def grain_table(document: dict[str, Any]) -> list[str]:
    """Return images/s by contender and place, and the ratios that the targets are set for."""
    ratios: dict[str, list[str]] = {}
    for each in document["ratios"]:
        below = f", short of {each['target']:g}" if each["ratio"] < each["target"] else ""
        ratios.setdefault(each["name"], []).append(f"{each['ratio']:.2f}{below}")
    lines = []
    for row in document["rows"]:
        rates = row["rounds_images_per_s"]
        compared = ratios.get(row["name"]) if row["place"] == "bucket" else None
        threads = str(row["threads"] or "")
        lines.append([row["name"], row["place"], threads, *_middle_and_range(rates, 0), *(compared or ["", "", ""])])
    header = ["`grain_sources.py`", "place", "threads", "images/s", "rounds"]
    return _table([*header, "of fsspec", "of itself on disk", "of ArrayRecord on disk"], lines)


def packs_table(document: dict[str, Any]) -> list[str]:
    """Return rates, padding, and numbers of shapes and compiled graphs of packs.py's loaders."""
    lines = []
    for name, found in document["loaders"].items():
        rounds = found["rounds"]
        images, tokens = ([each[f"{what}_per_s"] for each in rounds] for what in ("images", "tokens"))
        padding = statistics.mean(each["padding"] for each in rounds)
        lines.append(
            [
                name,
                *_middle_and_range(images, 0),
                f"{statistics.median(tokens):,.0f}",
                f"{padding:.2%}",
                str(max(each["shapes"] for each in rounds)),
                str(found["compiled"]),
            ]
        )
    return _table(["`packs.py`", "images/s", "rounds", "tokens/s", "padding", "shapes", "graphs of XLA"], lines)


def scale_table(document: dict[str, Any]) -> list[str]:
    """Return time and peak memory of every step with ImageNet's number of images."""
    lines = []
    for row in document["rows"]:
        late = row["target_s"] is not None and row["wall_s"] > row["target_s"]
        above = f", above {row['target_s']}" if late else ""
        first = f"{row['first_batch_s']:.2f}" if "first_batch_s" in row else ""
        figures = [f"{row['wall_s']:,.1f}{above}", f"{row['cpu_s']:,.0f}"]
        lines.append([row["step"], *figures, f"{row['largest_mb']:,}", f"{row['sum_mb']:,}", first])
    return _table(["`scale.py`", "s", "CPU s", "largest MB", "sum MB", "first batch s"], lines)


def unseen_table(results: Iterable[dict[str, Any]]) -> list[str]:
    """Return a line for each seed of `diagnose.py --set unseen` and each program that judged it.

    Nothing is joined: another version or commit of the program, or another seed, has a line of its own. A situation
    that a program judged twice counts once, as it was judged last.
    """
    runs: dict[tuple[int, str, str], dict[str, dict[str, Any]]] = {}
    for result in results:
        run = result["seed"], result.get("version", ""), result["commit"]
        if "verdict" in result:  # its truth alone may have been found
            runs.setdefault(run, {})[result["situation"]["id"]] = result
    lines = []
    for (seed, version, commit), found in runs.items():
        judged = list(found.values())
        verdicts = [result["verdict"] for result in judged]
        errors = [result["error"] for result in judged if "error" in result]
        lines.append(
            [
                str(seed),
                f"{version} {commit}".strip(),
                str(len(judged)),
                str(sum(verdict != "wrong" for verdict in verdicts)),
                str(verdicts.count("undecided")),
                str(sum(error <= UNSEEN_CLOSE for error in errors)),
                f"{statistics.median(errors):.1%}" if errors else "",
                f"{max(errors):.0%}" if errors else "",
            ]
        )
    header = ["seed", "program", "situations", "right", "undecided of these", "what-ifs within 10 %", "median error"]
    return _table([*header, "worst"], lines)


def living_table(document: dict[str, Any]) -> list[str]:
    """Return what each command takes with the most samples, what its two smaller runs foretell, and arithmetic."""
    names = {
        "whole": "a rank, all samples",
        "view": "a rank, a view of half",
        "resumed": "a rank that resumes in that view",
        "select": "`select --where`",
        "near": '`select --dedup "phash<=4"`',
    }
    lines = []
    for what, name in names.items():
        small, middle, large = (row for row in document["table"] if row["what"] == what)
        predicted = _on_line(small, middle, large["rows"])
        more = (f"{_on_line(middle, large, rows):,.0f}" for rows in LARGER_ROWS)
        figures = (f"{large['seconds']:,.0f}", f"{large['peak_mb']:,.0f}", f"{predicted:,.0f}")
        lines.append([name, f"{large['rows']:,}", *figures, *more])
    larger = (f"MB with {rows / 1e9:g} billion" for rows in LARGER_ROWS)
    return _table(["`living.py`", "samples", "CPU s", "MB", "predicted MB", *larger], lines)


def _on_line(first: dict[str, Any], second: dict[str, Any], rows: int) -> float:
    """Return the memory of a number of rows on the line through two runs, in MB."""
    each = (second["peak_mb"] - first["peak_mb"]) / (second["rows"] - first["rows"])
    return float(second["peak_mb"] + each * (rows - second["rows"]))


def near_duplicates_table(document: dict[str, Any]) -> list[str]:
    """Return time and memory of the search, and what it finds, by the bits that may differ."""
    took = {row["bits"]: row for row in document["rows"]}
    lines = []
    for row in document["found"]:
        cost = took.get(row["bits"])
        cells = [f"{cost['s']:.1f}", f"{cost['mb']:.0f}", f"{cost['found']:,.0f}"] if cost else [""] * 3
        recall = [f"{share:.0%}" for share in row["recall"].values()]
        lines.append([str(row["bits"]), *cells, f"{row['precision']:.0%}", *recall])
    kinds = [f"{kind}: recall" for kind in document["found"][0]["recall"]]
    size = f"{document['hashes']:,} hashes: CPU s"
    header = ["`near_duplicates.py`: bits", size, "MB", "found", f"{document['pictures']} pictures: precision", *kinds]
    return _table(header, lines)


TABLES = {
    "arena": arena_table,
    "build": build_table,
    "build-large": build_table,
    "build-sources": build_sources_table,
    "engines": engines_table,
    "formats": formats_table,
    "grain": grain_table,
    "index-rows": index_rows_table,
    "laion": laion_table,
    "living": living_table,
    "many-objects": many_objects_table,
    "near-duplicates": near_duplicates_table,
    "own-data": own_data_table,
    "packs": packs_table,
    "restart": restart_table,
    "resume": resume_table,
    "scale": scale_table,
    "views": views_table,
}


def spread(document: dict[str, Any]) -> str:
    """How far apart the rounds of a row are: the ratio of its slowest to its fastest, median and worst of all rows."""
    results = (row.get("result", row) for row in document["rows"])
    rounds = (found.get("wall_s") or found["cpu_ms"] for found in results)
    ratios = [max(figures) / min(figures) for figures in rounds]
    return (
        f"{statistics.median(ratios):.2f} times as long as its fastest (median of all rows; at worst, "
        f"{max(ratios):.2f} times)"
    )


def recorded(name: str) -> dict[str, Any]:
    """Return what a benchmark wrote with --json."""
    document: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return document


def recorded_lines(name: str) -> list[dict[str, Any]]:
    """Return what a benchmark wrote with --results, a JSON document a line."""
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def _table(header: list[str], lines: Iterable[list[str]]) -> list[str]:
    def joined(cells: list[str]) -> str:
        return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")

    return [joined(header), "|" + "---|" * len(header), *map(joined, lines)]


def with_tables(text: str) -> str:
    """Return a document whose tables have the recorded figures."""
    for table in (
        *(table(recorded(name)) for name, table in TABLES.items()),
        arena_verdicts(recorded("arena")),
        unseen_table(recorded_lines("diagnose-unseen")),
    ):
        before, header, after = text.partition(f"{table[0]}\n")
        rows = re.match(r"(\|.*\n)*", after)
        text = before + "".join(f"{line}\n" for line in table) + after[rows.end() :] if header and rows else text
    return text


if __name__ == "__main__":
    README = Path(__file__).with_name("README.md")
    README.write_text(with_tables(README.read_text()))
