"""The documents agree with the code: facts, commands, links."""

from __future__ import annotations

import ast
import configparser
import importlib
import re
from itertools import dropwhile

import click
import pytest

from dataprep.cli import COMMANDS, group
from dataprep.commands.train import ENTRIES
from dataprep.sources import DATASETS
from dataprep.sources.coco import PARTS
from pipelines.engines import EngineChoice, engine_module
from tests.support.markdown import DOCUMENTS, ROOT, blocks, commands, links, words_of

PUBLISHED = (ROOT / "docs/published.md").read_text()
SECTIONS = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PUBLISHED, re.MULTILINE | re.DOTALL))
NOT_FOR_READERS = re.compile(r"(?<![\w.])/(?:work|tmp(?!/tpu_logs))\b|\bTODO\b|\bFIXME\b")

COMMAND_LINES = [
    (f"{document}:{command.line}", command.text)
    for document in DOCUMENTS
    for block in blocks(document)
    if block.info in ("console", "sh")
    for command in commands(block)
]
COMMAND_LINES += [
    (f"{document}: {text[:40]}", text)
    for document in ("README.md", "DATA.md")
    for text in re.findall(r"^\|.* \| `(dataprep [^`]+)` \|$", (ROOT / document).read_text(), re.MULTILINE)
]
DEMO = (ROOT / "scripts/demo.sh").read_text().replace("\\\n", " ").replace('"', "")
COMMAND_LINES += [
    (f"scripts/demo.sh: {text[:40]}", " ".join(text.split()))
    for text in re.findall(r"^(?:say |mae=\()(dataprep[^|)\n]*)", DEMO, re.MULTILINE)
]


def command_lines(program: str) -> list:
    """The arguments of every command line of a program that a document shows."""
    found = [(where, words_of(text, program)) for where, text in COMMAND_LINES]
    return [pytest.param(words, id=where) for where, words in found if words is not None]


def archive_rows(section: str) -> dict[str, list[str]]:
    """The table of original files of a section of docs/published.md: the cells of each row by file name."""
    rows = {}
    for line in section.splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 5:
            rows[cells[0]] = cells[1:]
    return rows


def test_every_published_dataset_has_a_section():
    assert [name for name in DATASETS if name not in SECTIONS] == []
    assert [name for name in DATASETS if f"`{name}`" not in PUBLISHED.split("\n## ")[0]] == []


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
def test_documented_original_files_are_those_of_the_code(dataset):
    archives = {archive.name: archive for facts in dataset.facts.values() for archive in facts.archives}
    expected = {
        name: [
            f"{archive.num_bytes:,}" if archive.num_bytes else "–",
            archive.md5,
            ", ".join(split for split, facts in dataset.facts.items() if archive in facts.archives),
        ]
        for name, archive in archives.items()
    }
    rows = archive_rows(SECTIONS[dataset.name])
    assert {name: [num_bytes, md5, split] for name, (num_bytes, md5, _, split) in rows.items()} == expected


@pytest.mark.parametrize("name", ["coco", "coco-dup5", "imagenet"])
def test_documented_counts_are_the_published_ones(name):
    samples = {split: facts.samples for split, facts in DATASETS[name].facts.items()}
    counted = dict.fromkeys(samples, 0)
    for _, _, images, split in archive_rows(SECTIONS[name]).values():
        if images != "labels":
            counted[split] += int(images.replace(",", ""))
    assert counted == samples
    overview = next(line for line in PUBLISHED.splitlines() if line.startswith(f"| [`{name}`]"))
    assert all(f"{count:,}" in overview for count in samples.values())


def test_the_number_of_images_in_each_archive_of_coco_is_documented():
    rows = archive_rows(SECTIONS["coco-dup5"])
    assert {name: rows[f"{name}.zip"][2] for parts in PARTS.values() for name in parts} == {
        name: f"{count:,}" for parts in PARTS.values() for name, count in parts.items()
    }
    train = DATASETS["coco-dup5"].facts["train"]
    assert f"{train.samples * train.repeats:,} images" in SECTIONS["coco-dup5"]


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
def test_splits_built_by_default_are_bold(dataset):
    overview = next(line for line in PUBLISHED.splitlines() if line.startswith(f"| [`{dataset.name}`]"))
    splits = overview.split("|")[3].strip()
    assert splits == ", ".join(f"**{name}**" if name in dataset.default_splits else name for name in dataset.splits)


@pytest.mark.parametrize("words", command_lines("dataprep"))
def test_the_parser_accepts_every_documented_dataprep_command(words):
    name, *arguments = words
    command = group.get_command(click.Context(group), name)
    assert command is not None, f"{name} is none of {', '.join(COMMANDS)}"
    if name == "train" and arguments[0] in ENTRIES:
        name, *arguments = arguments
        command = importlib.import_module(dict(SCRIPTS)[ENTRIES[name].script]).command
    if name == "build":
        _, command, arguments = command.resolve_command(click.Context(command), arguments)
        assert command is not None
    parsed = command.make_context(name, arguments).params
    if parsed.get("runner", "local") != "local":
        # A table of URLs may have several sources before them.
        words = parsed.get("engine_options") or parsed.get("others", ())
        options = tuple(dropwhile(lambda word: not word.startswith("-"), words))
        engine_module(parsed["runner"]).check(EngineChoice(runner=parsed["runner"], options=options, workers=1))


SCRIPTS = re.findall(r"^    (dataprep-\S+) = (\S+):main$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("module", "words"),
    [pytest.param(module, *line.values, id=line.id) for name, module in SCRIPTS for line in command_lines(name)],
)
def test_the_parsers_accept_every_documented_training_command(module, words):
    """A variable such as $BATCH_SIZE stands for a number, which is a path and a name as well."""
    arguments = [re.sub(r"\$[A-Z_]+", "7", word) for word in words]
    importlib.import_module(module).command.make_context(module, arguments)


def test_every_training_command_is_documented():
    shown = {text.split()[0] for _, text in COMMAND_LINES} | {
        "dataprep-export"
    }  # which docs/training.md has in a sentence
    assert {name for name, _ in SCRIPTS} <= shown


@pytest.mark.parametrize("words", command_lines("pip"))
def test_every_documented_extra_exists(words):
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    named = {extra for word in words for extras in re.findall(r"\[(.+)\]", word) for extra in extras.split(",")}
    assert named <= set(setup["options.extras_require"])


def test_every_documented_make_target_exists():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    targets |= {f"bench-{table}" for table in re.findall(r"^BENCH_([a-z-]+) =", makefile, re.MULTILINE)}
    shown = {
        target
        for document in DOCUMENTS
        for target in re.findall(r"(?:^    |`)make ([a-z-]+)", (ROOT / document).read_text(), re.MULTILINE)
    }
    assert {"demo", "test"} <= shown <= targets


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files(document):
    folder = (ROOT / document).parent
    assert [target for target in links(document) if not (folder / target).exists()] == []


def test_every_tutorial_is_linked_from_a_document_that_is_none():
    tutorials = {path.resolve() for path in (ROOT / "docs/tutorials").glob("*.md")}
    others = [document for document in DOCUMENTS if (ROOT / document).resolve() not in tutorials]
    linked = {((ROOT / document).parent / target).resolve() for document in others for target in links(document)}
    assert sorted(path.name for path in tutorials - linked) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_documents_name_exist(document):
    named = re.findall(
        r"`((?:dataprep|loaders|pipelines|train|tests|scripts|docs)/[\w/]+\.(?:py|c|h|csv|sh))`",
        (ROOT / document).read_text(),
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documented_imports_work(document):
    trees = [ast.parse(block.text) for block in blocks(document) if block.info == "python"]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    for node in imports:
        module = str(node.module)
        if module.split(".")[0] in ("dataprep", "loaders", "pipelines", "train"):
            found = importlib.import_module(module)
            assert [name.name for name in node.names if not hasattr(found, name.name)] == []


def missing_files(text: str) -> list[str]:
    """List the files and folders named in backticks that do not exist; a bare name is in the folder named before it."""
    missing = []
    for line in text.splitlines():
        folders = [ROOT, *(ROOT / package for package in ("dataprep", "loaders", "pipelines", "train"))]
        for name in re.findall(r"`([\w/]+(?:\.(?:py|c)|/))`", line):
            found = next((folder / name for folder in reversed(folders) if (folder / name).exists()), None)
            if found is None:
                missing.append(name)
            elif "/" in name.rstrip("/"):
                folders.append(found.parent)
    return missing


def test_the_map_names_every_room_and_only_files_that_exist():
    text = (ROOT / "docs/architecture.md").read_text()
    assert missing_files(text) == []
    rooms = {
        path.parent.name
        for package in ("dataprep", "loaders", "train")
        for path in ROOT.glob(f"{package}/*/__init__.py")
    }
    assert [room for room in sorted(rooms) if f"`{room}/`" not in text] == []
    assert len(text.splitlines()) < 90


@pytest.mark.parametrize("package", ["dataprep", "loaders", "pipelines", "train"])
def test_docstrings_of_rooms_name_only_files_that_exist(package):
    missing = []
    for path in ROOT.glob(f"{package}/**/__init__.py"):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        named = re.findall(r"[\w/]+\.(?:py|c)\b", text)
        missing += [
            f"{path}: {name}" for name in named if not ((path.parent / name).exists() or (ROOT / name).exists())
        ]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_document_has_notes_or_paths_of_its_authors(document):
    assert NOT_FOR_READERS.findall((ROOT / document).read_text()) == []


def test_lines_about_what_is_missing_are_those_of_the_programs():
    """Each is a part of a text in the sources or scripts; tests of the modules hold when it is said."""
    rows = re.findall(r"^\| .+? \| `(.+?)` \| .+ \|$", (ROOT / "docs/first-minute.md").read_text(), re.MULTILINE)
    assert len(rows) > 10
    texts = [(ROOT / "scripts/check_python.sh").read_text()]
    for package in ("dataprep", "loaders"):
        for path in (ROOT / package).rglob("*.py"):
            constants = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
            texts += [value for value in constants if isinstance(value, str)]
    assert [row for row in rows if not any(row in text for text in texts)] == []


def test_libraries_that_no_extra_of_ours_has_are_named_with_their_installation():
    text = (ROOT / "docs/reading.md").read_text()
    assert "import webdataset" in text
    assert "`pip install webdataset`" in text.partition("import webdataset")[0]
