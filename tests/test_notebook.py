"""A notebook with a real kernel builds, verifies, converts and loads somebody's pictures, on a disk and in a bucket."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

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


def test_a_notebook_takes_pictures_to_a_batch(storage_url: str, tmp_path: Path):
    write_pets(tmp_path / "pets")
    cells = [nbformat.v4.new_code_cell(source) for source in (f"URL = {storage_url!r}", *CELLS)]
    client = NotebookClient(
        nbformat.v4.new_notebook(cells=cells), timeout=300, resources={"metadata": {"path": tmp_path}}
    )
    ran = client.execute()
    outputs = [output for cell in ran.cells for output in cell.outputs]
    shown = [each.data for each in outputs if each.output_type == "execute_result"]
    dataset, report, shape = shown
    assert "<table" in dataset["text/html"] and "train" in dataset["text/plain"]
    assert "whole" in report["text/html"]
    assert shape["text/plain"] == "(4, 32, 32, 3)"
    errors = [each.text for each in outputs if each.output_type == "stream" and each.name == "stderr"]
    assert errors[-1].startswith("`format` must be one of imagefolder, tfrecord, webdataset, got 'webdatset'; did you")
