"""Measure how the packages are arranged, and print which rows of the table are not met.

    .venv/bin/python scripts/house.py            the table, and every finding that is not excepted
    .venv/bin/python scripts/house.py ROW        every finding of the rows whose names contain ROW

The exit status is 1 if a row is not met. Findings that stay for a reason are in EXCEPTIONS.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dataprep.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PACKAGES = ("dataprep", "loaders", "pipelines", "train")
LAYERS = (
    ("cli",),
    ("commands",),
    ("verification", "inspection", "demo", "watching"),
    ("fetched", "adoption"),
    ("web",),
    ("builder",),
    ("cloud",),
    ("sources",),
    ("formats",),
    ("dataset",),
    ("storage",),
    ("pages",),
    ("host",),
    ("arguments",),
    ("messages", "errors"),
)
"""Rooms of dataprep from the top; each imports only rooms below it."""
HEIGHT = {f"dataprep.{room}": -level for level, rooms in enumerate(LAYERS) for room in rooms}
MAX_MODULES = 300
MAX_PARAMETERS = 6
MAX_AT_THE_TOP = 12  # loaders: the front door, order, packs, samples and the adapters; train: a file an entry
MAX_LOADED = 35  # modules of dataprep that opening a loader may import
NOT_FOR_LOADERS = ("sources", "fetched", "web", "adoption", "verification", "commands", "builder")

EXCEPTIONS: dict[str, dict[str, str]] = {
    "lines below commands that name an option of the command line": {
        "dataprep/cloud/tpu/fleet.py": "an option of git",
        "dataprep/cloud/tpu/jobs.py": "options of the workers' program",
        "dataprep/cloud/tpu/manifest.py": "a build's command line in a manifest",
    },
    "tests for web rows, outside their rooms": {
        "dataprep/commands/demo_data.py": "the demo of a dataset is chosen by its name",
        "dataprep/commands/progress.py": "rows are reported by how they ended where rows were fetched",
    },
    "words of printed commands that no shell_words quotes": {"dataprep/errors.py": "names of extras are ours"},
    "dict[str, Any]": {
        "dataprep/dataset/documents.py": "named once, as JsonObject, and documents of any kind are compared",
        "dataprep/adoption/records.py": "the .json beside an image holds what its writer liked",
        "dataprep/formats/tfds.py": "TFDS defines the objects of its descriptions",
        "dataprep/formats/fields.py": "fields of a sample hold what its writer liked",
        "dataprep/arguments.py": "values of a command line",
        "dataprep/sources/tables.py": "a line of a user's table",
        "dataprep/sources/image_tables.py": "a line of a user's table",
        **dict.fromkeys(
            ("dataprep/demo/layouts.py", "dataprep/sources/coco_"), "annotations of COCO as their JSON has them"
        ),
        **dict.fromkeys(
            (
                "dataprep/dataset/features.py",
                "dataprep/formats/tfrecord.py",
                "dataprep/formats/webdataset.py",
                "dataprep/sources/pictures.py",
                "dataprep/sources/folder.py",
                "dataprep/sources/existing.py",
                "dataprep/sources/pictures.py",
                "loaders/dataset.py",
                "loaders/mixtures/dataset.py",
            ),
            "the dataset itself says which values a sample has, and of which types",
        ),
        "dataprep/cloud/gcloud.py": "answers of gcloud",
        "dataprep/storage/gcs_location.py": "answers of Cloud Storage",
        "dataprep/dataset/records.py": "options in a manifest are those of its recipe",
        "dataprep/dataset/manifest.py": "options in a manifest are those of its recipe",
        "dataprep/builder/plan.py": "details of a plan are those of its recipe",
        "dataprep/builder/output.py": "details of a plan are those of its recipe",
        "dataprep/commands/inspect.py": "values that only a template reads",
        "loaders/diagnosis/report.py": "values that only a template reads",
        **dict.fromkeys(
            (
                "train/checkpoints/",
                "train/loops/backend.py",
                "train/loops/jax.py",
                "train/loops/loop.py",
                "train/loops/torch.py",
            ),
            "entries of a checkpoint are tensors, arrays and JSON of two frameworks",
        ),
    },
}
"""Beginnings of findings that are accepted, with the reasons, by row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of the table: what is counted, its value in an earlier version, and its goal."""

    name: str
    before: str
    """Value in version 0.1.0."""
    goal: str
    find: Callable[[], list[str]]
    """Function that lists the findings against the goal, each beginning with a module's name or path."""
    measure: Callable[[], str] | None = None
    """Function that returns the present value; None: it is the number of findings."""


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed module of the product."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def file(self) -> str:
        return str(self.path.relative_to(ROOT))


@cache
def modules() -> dict[str, Module]:
    """Parse every module of the packages, by dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, path, ast.parse(path.read_text()))
    return found


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Walk a module once for all rows: it takes a second for all modules."""
    return tuple(ast.walk(tree))


def room_of(name: str) -> str:
    """The room of `dataprep.builder.pool` is `dataprep.builder`; `loaders.order` is its own."""
    return ".".join(name.split(".")[:2])


# Imports


def imported_by(module: Module, known: Iterable[str]) -> set[str]:
    """Return the known modules that a module imports, including imports in functions and for types only."""
    found = set()
    for node in nodes(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return (found & set(known)) - {module.name}


@cache
def room_imports() -> dict[str, dict[str, str]]:
    """Return for each room the rooms that it imports, each with one example of such an import."""
    graph: dict[str, dict[str, str]] = defaultdict(dict)
    for module in modules().values():
        for name in sorted(imported_by(module, modules())):
            here, there = room_of(module.name), room_of(name)
            if here != there and name not in PACKAGES:  # a package's own module has no code but lazy names
                graph[here].setdefault(there, f"{module.name} -> {name}")
    return graph


def cycles(graph: dict[str, dict[str, str]]) -> list[list[str]]:
    """Return groups of rooms in which each room reaches all the others."""
    reached = {room: _reachable(room, graph) for room in graph}
    groups = {
        tuple(sorted(other for other in reached[room] if other == room or room in reached.get(other, ())))
        for room in graph
        if room in reached[room]
    }
    return [list(group) for group in sorted(groups)]


def _reachable(start: str, graph: dict[str, dict[str, str]]) -> set[str]:
    seen: set[str] = set()
    queue = [start]
    while queue:
        for room in graph.get(queue.pop(), {}):
            if room not in seen:
                seen.add(room)
                queue.append(room)
    return seen


def cyclic_imports() -> list[str]:
    """List the imports between rooms of one cycle."""
    graph = room_imports()
    return [
        f"{graph[here][there]} (cycle of {', '.join(group)})"
        for group in cycles(graph)
        for here in group
        for there in sorted(graph[here])
        if there in group
    ]


# The loader's start, and the walk of one build


@cache
def loaded_by_a_loader() -> tuple[str, ...]:
    program = (
        "import sys\nfrom loaders import open_loader\n"
        "print(*sorted(name for name in sys.modules if name.split('.')[0] == 'dataprep'))"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(run.stdout.split())


def too_many_loaded() -> list[str]:
    """List modules that a loader loads without need, and whether it loads too many."""
    loaded = loaded_by_a_loader()
    wrong = [name for name in loaded if name.startswith(tuple(f"dataprep.{room}" for room in NOT_FOR_LOADERS))]
    return wrong + [f"dataprep: {len(loaded)} modules are loaded"] * (len(loaded) > MAX_LOADED)


WALK = """
import json, sys, tempfile
from pathlib import Path
from collections import Counter

from dataprep.cli import group
from dataprep.demo.make import write_demo

folder = tempfile.mkdtemp(prefix="house-")
write_demo("coco", Path(folder, "originals"), images=12, odd=False)
calls = Counter()

def called(frame, event, _):
    if event == "call" and frame.f_back is not None:
        here, there = (each.f_globals.get("__name__", "") for each in (frame.f_back, frame))
        if there.startswith("dataprep."):
            calls[here, there] += 1

arguments = ["build", "coco-dup5", "--source", folder + "/originals", "--output", folder + "/built", "--workers", "1"]
arguments += ["--format", "webdataset", "--allow-partial", "--json", "--num-shards", "1"]
sys.setprofile(called)
try:
    group(arguments, standalone_mode=False)
finally:
    sys.setprofile(None)
from dataprep.builder import shard
print(json.dumps(sorted(calls)), file=sys.stderr)
"""


@cache
def walked_calls() -> tuple[tuple[str, str], ...]:
    """Return the calls between modules in the main process of a small build of COCO."""
    run = subprocess.run([sys.executable, "-c", WALK], cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise SystemExit(f"house: a small build of COCO ended with {run.returncode}:\n{run.stderr[-2000:]}")
    return tuple((here, there) for here, there in json.loads(run.stderr.splitlines()[-1]))


def walked_modules() -> set[str]:
    return {there for _, there in walked_calls()}


def climbs() -> list[str]:
    """List calls into a higher room that the caller imports; calls of functions passed to it do not count."""
    found = []
    for here, there in walked_calls():
        low, high = room_of(here), room_of(there)
        if high in HEIGHT and low in HEIGHT and HEIGHT[high] > HEIGHT[low] and high in room_imports()[low]:
            found.append(f"{here} -> {there}")
    return found


def walked_web() -> list[str]:
    """List modules for rows from the web that a build from archives goes through."""
    strange = ("dataprep.fetched", "dataprep.web", "dataprep.sources.laion")
    return sorted(name for name in walked_modules() if name.startswith(strange))


# Contents of the modules


def crowded_tops() -> list[str]:
    """List the modules at the top of packages that have more of them than allowed."""
    return [name for package in PACKAGES for name in top_of(package)[MAX_AT_THE_TOP:]]


def top_of(package: str) -> list[str]:
    return [module.file for module in modules().values() if module.path.parent == ROOT / package]


FORMAT_WORDS = re.compile(
    r"is_folder\b|'imagefolder'|(?<!dataset_)format\w* is (not )?None|FORMATS\[.*\] is (not )?None"
)
WEB_WORDS = re.compile(r"(?i)laion(?!')|\.name == LAION|== 'laion'|\bfetched is (not )?None")


def tests_for(words: re.Pattern[str], *rooms: str) -> list[str]:
    """List conditions that match the words outside of the rooms that may have them."""
    found = []
    for module in modules().values():
        if not module.name.startswith(rooms):
            for condition in conditions(module.tree):
                if words.search(ast.unparse(condition)):
                    found.append(f"{module.file}:{condition.lineno} {ast.unparse(condition)[:80]}")
    return found


def conditions(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the conditions of branches and filters, and comparisons elsewhere; each once."""
    seen: set[ast.AST] = set()
    for node in nodes(tree):
        tested = []
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            tested = [node.test]
        elif isinstance(node, ast.comprehension):
            tested = node.ifs
        elif isinstance(node, ast.Compare | ast.BoolOp):
            tested = [node]
        for condition in tested:
            if condition not in seen:
                seen |= set(ast.walk(condition))
                yield condition


def documented(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every docstring, including those of attributes and constants."""
    for node in nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def of_docstrings() -> list[str]:
    return [
        f"{module.file}:{line} {text.splitlines()[0][:60]}"
        for module in modules().values()
        for line, text in documented(module.tree)
        if text.lstrip().startswith("Of ")
    ]


def spelled_options() -> list[str]:
    """List the lines of dataprep that name an option of the command line, except for its commands and the program for
    the workers of a TPU, which has options of its own."""
    found = []
    for module in modules().values():
        if module.file.startswith("dataprep/") and not module.file.startswith(
            (
                "dataprep/__main__.py",
                "dataprep/commands/",
                "dataprep/cli.py",
                "dataprep/arguments.py",
                "dataprep/cloud/tpu/worker.py",
            )
        ):
            lines = enumerate(module.path.read_text().splitlines(), start=1)
            found += [f"{module.file}:{number}" for number, line in lines if re.search(r"--[a-z][a-z-]+", line)]
    return found


def long_signatures() -> list[str]:
    """List functions with too many parameters, except for commands, whose parameters are their options."""
    found = []
    for module in modules().values():
        for node in nodes(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_command(node):
                names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                count = len([name for name in names if name not in ("self", "cls")])
                if count > MAX_PARAMETERS:
                    found.append(f"{module.file} {node.name} has {count}")
    return found


def _is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(re.match(r"click\.|\w+\.command|\w*options?\b", ast.unparse(each)) for each in function.decorator_list)


def untested_modules() -> list[str]:
    """List modules without a test of the same path and stem, except for the packages' own modules."""
    return [
        module.file
        for module in modules().values()
        if not module.path.stem.startswith("__")
        and not (ROOT / "tests" / module.path.relative_to(ROOT).with_name(f"test_{module.path.name}")).exists()
    ]


def untyped_documents() -> list[str]:
    """List every `dict[str, Any]`, and every use of a name that stands for it."""
    return [
        f"{module.file}:{line}"
        for module in modules().values()
        for line in untyped(module.tree, names_for_any_object(module, _aliases()))
    ]


def untyped(tree: ast.AST, names: set[str]) -> Iterator[int]:
    """Yield the lines on which a document has no type: `dict[str, Any]`, or one of its names."""
    for node in nodes(tree):
        is_name = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names
        if is_name or (isinstance(node, ast.Subscript) and ast.unparse(node) == "dict[str, Any]"):
            yield node.lineno


@cache
def _aliases() -> frozenset[tuple[str, str]]:
    """Find all names for `dict[str, Any]`: the module that defines each, and the name."""
    found: frozenset[tuple[str, str]] = frozenset()
    while True:
        more = found.union(
            (module.name, name)
            for module in modules().values()
            for name, value in _assigned(module.tree)
            if value in ("dict[str, Any]", *names_for_any_object(module, found))
        )
        if more == found:
            return found
        found = more


def _assigned(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield name and value of the assignments at the top of a module that may be those of a type."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Name | ast.Subscript):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            yield ast.unparse(target), ast.unparse(node.value)


def names_for_any_object(module: Module, aliases: Iterable[tuple[str, str]]) -> set[str]:
    """Return the names for `dict[str, Any]` that a module defines or imports."""
    names = {name for where, name in aliases if where == module.name}
    for node in nodes(module.tree):
        if isinstance(node, ast.ImportFrom):
            names |= {each.asname or each.name for each in node.names if (node.module, each.name) in set(aliases)}
    return names


_PROGRAMS = (
    rf"dataprep (?:{'|'.join(COMMANDS)})\b|dataprep-[a-z]|gcloud storage |kubectl |pip install |unzip |tar -|mv "
)
IN_COMMAND = re.compile(rf"(?<![\w./-])(?:{_PROGRAMS}|set \0=)[^\"`;,:()]*$")
IN_ADVICE = re.compile(
    r"(?!(?:\0: |got )?(?:--[\w-]+ with )?--[\w-]+[ =]$).*\s--[a-z][\w-]*[ =]$|^--[a-z-]+ \Z", re.DOTALL
)
TEMPLATE = re.compile(rf"(?:(?:{_PROGRAMS})[^\"`;,:()]*|--[a-z][\w.-]*[ =]){{(?!words}})\w*}}")


def unquoted_words() -> list[str]:
    return [
        f"{each.file}:{line} {text}" for each in modules().values() for line, text in unquoted(each.tree, each.name)
    ]


def unquoted(tree: ast.AST, name: str = "dataprep") -> Iterator[tuple[int, str]]:
    """Yield the lines of messages that have commands with words not made by `messages.shell_words`, and the words.

    Constants and numbers with a format may stand there. A template calls its words `{words}`. Options without their
    command are looked for in dataprep alone: elsewhere they repeat what the user has given.
    """
    parts: set[ast.AST] = set()
    for node in nodes(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(node.values)
            yield from _unquoted_in(node, has_options=name.startswith("dataprep"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            if found := TEMPLATE.search(node.value):
                yield node.lineno, found[0]
        elif isinstance(node, ast.keyword) and node.arg == "words" and not _is_quoted(node.value):
            yield node.value.lineno, ast.unparse(node)


def _unquoted_in(string: ast.JoinedStr, *, has_options: bool) -> Iterator[tuple[int, str]]:
    text = ""
    for index, part in enumerate(string.values):
        if isinstance(part, ast.Constant):
            text += str(part.value)
        elif isinstance(part, ast.FormattedValue):
            is_last = index + 1 == len(string.values)
            is_advice = has_options and IN_ADVICE.match(text) and (is_last or not text.startswith("--"))
            if (is_advice or IN_COMMAND.search(text)) and not (part.format_spec or _is_quoted(part.value)):
                yield part.lineno, f"{text[-40:]}{{{ast.unparse(part.value)}}}".replace("\0", "_")
            text += "\0"


def _is_quoted(value: ast.expr) -> bool:
    is_constant = isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id.isupper())
    return is_constant or "shell_words" in ast.unparse(value)


def lines_by_room() -> dict[str, int]:
    """Return the lines of Python in each room; modules at the top of a package count together."""
    found: Counter[str] = Counter()
    for module in modules().values():
        parts = module.path.relative_to(ROOT).parts
        found["/".join(parts[:2]) if len(parts) > 2 else parts[0]] += len(module.path.read_text().splitlines())
    return dict(found)


ROWS = (
    Row(
        name="modules",
        before="–",
        goal=f"at most {MAX_MODULES}",
        find=lambda: sorted(modules())[MAX_MODULES:],
        measure=lambda: str(len(modules())),
    ),
    Row(
        name="lines below commands that name an option of the command line",
        before="–",
        goal="none: errors name a field",
        find=spelled_options,
    ),
    Row(
        name="modules at the top of dataprep, loaders, pipelines, train",
        before="41, 51, 4, 47",
        goal=f"at most {MAX_AT_THE_TOP} each",
        find=crowded_tops,
        measure=lambda: ", ".join(str(len(top_of(package))) for package in PACKAGES),
    ),
    Row(
        name="modules of dataprep that `from loaders import open_loader` loads",
        before="87",
        goal=f"at most {MAX_LOADED}, none of {', '.join(NOT_FOR_LOADERS)}",
        find=too_many_loaded,
        measure=lambda: str(len(loaded_by_a_loader())),
    ),
    Row(
        name="imports that make cycles between rooms",
        before="two cycles, of 6 and 3 packages",
        goal="none",
        find=cyclic_imports,
        measure=lambda: f"{len(cyclic_imports())} in {len(cycles(room_imports()))} cycles",
    ),
    Row(
        name="calls of a COCO build that climb to a room above",
        before="16",
        goal="none",
        find=climbs,
        measure=lambda: f"{len(climbs())}; {len(walked_modules())} modules walked",
    ),
    Row(name="modules for web rows that a COCO build walks", before="plan, tables", goal="none", find=walked_web),
    Row(
        name="tests for a format that has no shards, outside formats",
        before="27 in 18 files",
        goal="none",
        find=lambda: tests_for(FORMAT_WORDS, "dataprep.formats"),
    ),
    Row(
        name="tests for web rows, outside their rooms",
        before="22",
        goal="none: chosen once",
        find=lambda: tests_for(WEB_WORDS, "dataprep.fetched", "dataprep.web", "dataprep.sources.laion"),
    ),
    Row(name='docstrings that begin "Of "', before="250", goal="none", find=of_docstrings),
    Row(
        name=f"functions of more than {MAX_PARAMETERS} parameters",
        before="28, worst 19",
        goal="none but commands",
        find=long_signatures,
    ),
    Row(
        name="modules without a test of the same path and stem",
        before="134 of 268",
        goal="none",
        find=untested_modules,
        measure=lambda: f"{len(untested_modules())} of {len(modules())}",
    ),
    Row(
        name="words of printed commands that no shell_words quotes",
        before="81",
        goal="none",
        find=unquoted_words,
    ),
    Row(name="dict[str, Any]", before="209", goal="at the edges of JSON", find=untyped_documents),
)


def sorted_out(row: Row) -> tuple[list[str], list[str]]:
    """Return a row's findings that no exception names, and its exceptions that name no finding."""
    findings, exceptions = row.find(), EXCEPTIONS.get(row.name, {})
    kept = [finding for finding in findings if not finding.startswith(tuple(exceptions))]
    stale = [start for start in exceptions if not any(finding.startswith(start) for finding in findings)]
    return kept, stale


def verdict(row: Row, kept: list[str]) -> str:
    if kept:
        return "not met"
    return "; ".join(["met", *dict.fromkeys(EXCEPTIONS.get(row.name, {}).values())])


def main() -> int:
    chosen = [row for row in ROWS if len(sys.argv) < 2 or sys.argv[1] in row.name]
    wrong = []
    print("| what | 0.1.0 | goal | today | |\n|---|---|---|---|---|")
    for row in chosen:
        kept, stale = sorted_out(row)
        value = row.measure() if row.measure else len(row.find())
        print(f"| {row.name} | {row.before} | {row.goal} | {value} | {verdict(row, kept)} |", flush=True)
        if kept or len(sys.argv) > 1:
            wrong += [f"{row.name}: {finding}" for finding in kept]
        wrong += [f"{row.name}: the exception {start} is no longer needed" for start in stale]
    if len(sys.argv) < 2:
        print("\n| room | lines |\n|---|---|")
        print("\n".join(f"| {room} | {lines:,} |" for room, lines in sorted(lines_by_room().items())))
    print("", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
