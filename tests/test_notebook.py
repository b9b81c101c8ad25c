"""Notebooks with a real kernel: one takes pictures to a batch, on a disk and in a bucket; those of the documents print
what they show."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.markdown import ROOT, shows
from tests.support.own_data import write_pets

CELLS = (
    "import dataprep, sys; steps = []",
    "data = dataprep.build_folder(source='pets', output=URL + '/shards', format='webdataset', progress=steps.append)",
    "data",
    "assert steps[-1].done == steps[-1].total",
    "dataprep.verify(data.url, deep=True)",
    "small = dataprep.convert(data.url, output=URL + '/small', format='tfrecord', resize=64)",
    "with dataprep.open_loader(small.url, batch_size=4, image_size=32) as loader: batch = next(iter(loader))",
    "batch.images.shape",
    "try: dataprep.convert(data.url, output=URL + '/other', format='webdatset')\n"
    "except dataprep.DataprepError as error: print(error, file=sys.stderr)",
)


def outputs_of(notebook: nbformat.NotebookNode, folder: Path) -> list[nbformat.NotebookNode]:
    """Run a notebook in a folder; what its cells print and show."""
    ran = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}}).execute()
    return shown_in(ran)


def shown_in(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The outputs of a notebook without progress bars, which end empty."""
    found = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [each for each in found if each.get("data", {}).get("text/html") != ""]


def texts_of(outputs: list[nbformat.NotebookNode]) -> list[str]:
    found = (each.text if each.output_type == "stream" else each.data["text/plain"] for each in outputs)
    return [f"{text.rstrip()}\n" for text in found]


def test_a_notebook_takes_pictures_to_a_batch(storage_url: str, tmp_path: Path):
    write_pets(tmp_path / "pets")
    cells = [nbformat.v4.new_code_cell(source) for source in (f"URL = {storage_url!r}", *CELLS)]
    outputs = outputs_of(nbformat.v4.new_notebook(cells=cells), tmp_path)
    shown = [each.data for each in outputs if each.output_type == "execute_result"]
    dataset, report, shape = shown
    assert "<table" in dataset["text/html"] and "train" in dataset["text/plain"]
    assert "complete" in report["text/html"]
    assert shape["text/plain"] == "(4, 32, 32, 3)"
    errors = [each.text for each in outputs if each.output_type == "stream" and each.name == "stderr"]
    assert errors[-1].startswith("`format` must be one of imagefolder, tfrecord, webdataset, got 'webdatset'; did you")


@pytest.mark.parametrize("path", sorted((ROOT / "docs/notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_of_the_documents_prints_what_it_shows(path: Path, tmp_path: Path):
    notebook = nbformat.read(path, as_version=4)
    shown = texts_of(shown_in(notebook))
    printed = texts_of(outputs_of(notebook, tmp_path))
    assert shown and all(map(shows, shown, printed)), printed
    assert len(shown) == len(printed)
