"""Is `dataprep diagnose` right? Planted situations, each judged by trying every single change: one table.

    python benchmarks/diagnose.py --corpus DIR --seed 5 --results unseen.jsonl      # as root; goes on where it stopped
    python benchmarks/diagnose.py --corpus DIR --only quota-00 paging-01

The situations are drawn from a seed that nothing was tuned on, with causes that are in no list of the diagnosis.
Datasets, and the rates that this machine reaches without a planted cause, are kept in --work.

truth:  the best change, each tried alone in the judge's loop; none: no change gains 5 %
named:  the first fix of `dataprep diagnose`; none: it has no fix, or expects a gain below 5 %
undecided: the diagnosis says so, exit code 3, while other programs use the cores: counts as right
tie:    not the best change, but within 4 % of it: counts as right
what-if: rate predicted for the named fix, and rate measured with its settings (none: the unchanged situation)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import commit
from benchmarks.situations import judge
from benchmarks.situations.generate import IDS, SEED, plant, spread
from benchmarks.situations.machine import DiagnoseError, Machine, Rates
from benchmarks.situations.planting import CannotPlantError
from benchmarks.situations.situation import Situation, possible_changes, to_document, usual_threads
from benchmarks.tables import unseen_table
from dataprep import __version__
from loaders.decode.decoders import extension_available

ROOT = Path(__file__).resolve().parents[1]
NAMED_TARGET, WHAT_IF_TARGET, MAX_ERROR = 0.95, 0.90, 0.10
COLUMNS = (
    f"{'situation':26}{'planted':62}{'truth':>15}{'named':>15}  {'':10}{'predicted':>10}{'measured':>10}{'error':>7}"
)


def main() -> None:
    """Judge, print, and exit with 1 if a target is missed."""
    options = _parsed()
    cores = len(os.sched_getaffinity(0))
    os.environ["OMP_NUM_THREADS"] = str(usual_threads(cores))
    work = options.work.resolve()
    try:
        results = _judge_all(work, options, cores)
    except CannotPlantError as error:
        sys.exit(f"diagnose.py: {error}")
    sys.exit(0 if _summarise(results) else 1)


def _judge_all(work: Path, options: argparse.Namespace, cores: int) -> list[Mapping[str, Any]]:
    """Judge and print the chosen situations, or print what they are."""
    program = {"seed": options.seed, "version": __version__, "commit": commit()}
    known = _read_results(options.results, program)
    with Machine(work, options.corpus) as machine:
        rates = Rates(machine, work / "rates.json")
        ids = options.only or spread(options.situations)
        chosen = [plant(id_, rates, seed=options.seed, cores=cores) for id_ in ids]
        print(COLUMNS)
        results: list[Mapping[str, Any]] = []
        for situation in chosen:
            result = known.get(situation.id, {})
            if result.get("situation") != to_document(situation):
                started_s = time.monotonic()
                result = _judge(machine, situation, cores, options.seconds) | program
                result["elapsed_s"] = round(time.monotonic() - started_s, 1)
                _keep(options.results, result)
            print(_line(situation, result), flush=True)
            results.append(result)
    return results


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="folder of <wnid>/<wnid>_<n>.JPEG; default: demo data")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--situations", type=int, default=len(IDS), help="number of situations, evenly spread")
    which.add_argument("--only", nargs="+", metavar="ID", choices=IDS, help="these")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--seconds", type=float, default=2.5, help="length of a run")
    parser.add_argument("--work", type=Path, default=ROOT / "build/benchmarks/situations")
    parser.add_argument(
        "--results", type=Path, help="file with a line of JSON for each situation; may hold several seeds"
    )
    options = parser.parse_args()
    if not 1 <= options.situations <= len(IDS):
        parser.error(f"--situations must be 1 to {len(IDS)}, got {options.situations}")
    return options


def _read_results(path: Path | None, program: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the results of this program for this seed by their identifiers; others in the file are left alone."""
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    ours = [result for result in lines if {name: result.get(name) for name in program} == program]
    return {result["situation"]["id"]: result for result in ours}


def _keep(path: Path | None, result: Mapping[str, Any]) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(without_paths(json.dumps(result)) + "\n")


def without_paths(text: str) -> str:
    """Return a text without the folders of this machine: the repository, and that of temporary files."""
    return text.replace(f"{ROOT}/", "").replace(f"{tempfile.gettempdir()}/", "")


def _judge(machine: Machine, situation: Situation, cores: int, seconds: float) -> dict[str, Any]:
    """Return truth, diagnosis and verdict of one situation."""
    changes = possible_changes(situation, cores=cores, has_extension=extension_available())
    truth = judge.find_truth(situation, changes, machine.rate, seconds)
    found = {"situation": to_document(situation), "truth": truth.best, "base": truth.base, "drift": truth.drift}
    found["changes"] = {str(change): rate for change, rate in truth.changes}
    try:
        diagnosis, what_if = judge.do_what_is_named(situation, machine.diagnose, machine.rate, seconds)
    except DiagnoseError as error:
        return found | {"verdict": judge.WRONG, "failure": str(error)}
    named = judge.named_by(diagnosis)
    found |= {"named": named, "verdict": judge.verdict_on(situation, truth, diagnosis)}
    found |= {"predicted": what_if.predicted, "measured": what_if.measured, "error": what_if.error}
    found["what_if_drift"] = what_if.drift
    found |= {"from_stages": what_if.from_stages, "error_from_stages": what_if.error_from_stages}
    return found | {"diagnosis": {key: value for key, value in diagnosis.items() if key != "timeline"}}


def _line(situation: Situation, result: Mapping[str, Any]) -> str:
    line = f"{situation.id:26}{situation.cause:62}{result['truth']:>15}"
    if "failure" in result:
        return f"{line}  {result['failure']}"
    line += f"{result['named']:>15}  {result['verdict']:10}"
    return f"{line}{result['predicted']:>10,.0f}{result['measured']:>10,.0f}{result['error']:>7.1%}"


def _summarise(results: Sequence[Mapping[str, Any]]) -> bool:
    """Print the totals; return whether both targets are met."""
    print("\n".join(unseen_table(results)))
    named = sum(each["verdict"] != judge.WRONG for each in results) / len(results)
    close = sum(each.get("error", 1) <= MAX_ERROR for each in results) / len(results)
    is_met = {"named right": named >= NAMED_TARGET, "what-if": close >= WHAT_IF_TARGET}
    unsteady = sum(max(each["drift"], each.get("what_if_drift", 0)) > judge.MAX_DRIFT for each in results)
    print(f"machine unsteady in {unsteady} of {len(results)}: their truths and what-ifs are doubtful")
    print(f"named right: {named:.0%}, target {NAMED_TARGET:.0%}: {'PASS' if is_met['named right'] else 'short'}")
    print(f"what-if within 10 %: {close:.0%}, target {WHAT_IF_TARGET:.0%}: {'PASS' if is_met['what-if'] else 'short'}")
    return all(is_met.values())


if __name__ == "__main__":
    main()
