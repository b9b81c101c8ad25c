"""What `make test` leaves to `make test-all`, and, as `python -m tests.selection`, which of that a change touches.

`make test` keeps the rooms of dataprep that others build on, the core of the loaders, the complete system (crashes,
attacks, same bytes), one adapter and one small training. `.ci/run` adds to it what a change touches by path.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT: tuple[str, ...] = ()
"""An exception from a longer row: `make test` runs these."""
READERS = ("dataprep/formats/", "dataprep/dataset/", "dataprep/builder/")
"""What other libraries read of a dataset."""
SOURCES = ("dataprep/sources/", *READERS)
FETCHED = ("dataprep/fetched/", "dataprep/web/", "dataprep/sources/laion.py")
INSPECTED = ("dataprep/inspection/", "dataprep/pages.py", "dataprep/commands/inspect.py", *READERS)
REPLICATED = ("dataprep/cloud/", "dataprep/storage/", "dataprep/dataset/", "dataprep/commands/replicate.py")
DEMO = ("dataprep/demo/", "dataprep/commands/demo_data.py")
ADOPTED = ("dataprep/adoption/", "dataprep/formats/", "dataprep/dataset/")
TPU = ("dataprep/cloud/", "dataprep/commands/tpu.py", "dataprep/commands/tpu_machines.py")
LOADERS = ("loaders/", "dataprep/formats/", "dataprep/dataset/")
TRAINING = ("train/", "loaders/", "tests/support/")
DOCUMENTS = ("README.md", "DATA.md", "docs/", "llms.txt", "dataprep/commands/", "dataprep/cli.py", "scripts/demo.sh")
"""Documents that are run as programs, and what they show most."""
CODE = ("dataprep/", "loaders/", "pipelines/", "train/", "tests/", "benchmarks/", "scripts/", *DOCUMENTS)
"""What documents tell of, and what is held to be arranged and written well: nearly every change."""
RELEASE = ("scripts/", "setup.cfg", "constraints.txt", "Dockerfile", "Makefile")
FULL: dict[str, tuple[str, ...]] = {
    "tests/benchmarks": ("benchmarks/",),
    "tests/dataprep/adoption/test_find.py": ADOPTED,
    "tests/dataprep/adoption/test_img2dataset.py": ADOPTED,
    "tests/dataprep/adoption/test_records.py": ADOPTED,
    "tests/dataprep/builder/test_cards.py::test_datasets_loads_the_folder_by_its_card": READERS,
    "tests/dataprep/builder/test_cards.py::test_images_have_their_labels": READERS,
    "tests/dataprep/builder/test_cards.py::test_mlcroissant_reads_index_images_and_annotations": READERS,
    "tests/dataprep/builder/test_growth.py::test_tfds_reads_a_dataset_that_grew_and_shrank": READERS,
    "tests/dataprep/builder/test_images.py::test_tensorflow_gets_the_same_pixels": READERS,
    "tests/dataprep/cloud/test_replicate.py": REPLICATED,
    "tests/dataprep/cloud/tpu": TPU,
    "tests/dataprep/commands/test_bench.py": ("loaders/bench/", "loaders/engine/", "dataprep/commands/bench.py"),
    "tests/dataprep/commands/test_build_laion.py": (*FETCHED, *READERS, "dataprep/commands/"),
    "tests/dataprep/commands/test_build_run.py": ("pipelines/", "dataprep/commands/"),
    "tests/dataprep/commands/test_demo_data.py": DEMO,
    "tests/dataprep/commands/test_diagnose.py": ("loaders/diagnosis/", "dataprep/commands/diagnose.py"),
    "tests/dataprep/commands/test_inspect.py": INSPECTED,
    "tests/dataprep/commands/test_inspect_browser.py": INSPECTED,
    "tests/dataprep/commands/test_map.py::test_a_model_makes_a_column_and_other_weights_another": (
        "train/models/",
        "dataprep/column_functions.py",
        "dataprep/mapping.py",
    ),
    "tests/dataprep/commands/test_replicate.py": REPLICATED,
    "tests/dataprep/commands/test_tpu.py": TPU,
    "tests/dataprep/commands/test_tpu_machines.py": TPU,
    "tests/dataprep/commands/test_train.py": ("train/", "dataprep/commands/train.py"),
    "tests/dataprep/demo": DEMO,
    "tests/dataprep/formats/test_annotations.py::test_tfds_reads_values_of_every_kind": READERS,
    "tests/dataprep/formats/test_imagefolder.py::test_torchvision_numbers_folders_as_the_line_says": READERS,
    "tests/dataprep/formats/test_imagefolder.py::test_torchvision_sees_every_image_five_times_in_ten_folders": READERS,
    "tests/dataprep/formats/test_pictures.py::test_no_mutant_is_kept_that_two_other_decoders_refuse": READERS,
    "tests/dataprep/formats/test_tfds.py": READERS,
    "tests/dataprep/formats/test_tfrecord.py::test_a_message_of_other_features_is_refused": READERS,
    "tests/dataprep/formats/test_tfrecord.py::test_records_are_what_tensorflow_would_write": READERS,
    "tests/dataprep/formats/test_tfrecord.py::test_tensorflow_reads_what_is_written": READERS,
    "tests/dataprep/formats/test_tfrecord.py::test_tfds_loads_the_directory": READERS,
    "tests/dataprep/formats/test_webdataset.py::test_long_keys_are_read_by_the_libraries": READERS,
    "tests/dataprep/host/test_program.py::test_windows_is_refused_by_programs_of_training": ("train/",),
    "tests/dataprep/inspection": INSPECTED,
    "tests/dataprep/sources/test_image_tables.py::test_what_save_to_disk_wrote_is_built_by_the_commands_of_the_error": (
        SOURCES
    ),
    "tests/examples": ("examples/", "loaders/"),
    "tests/fuzz": ("tests/fuzz/", "loaders/decode/"),
    "tests/loaders/bench": ("loaders/bench/", "loaders/engine/"),
    "tests/loaders/decode": LOADERS,
    "tests/loaders/diagnosis": ("loaders/diagnosis/", "loaders/metrics/", "dataprep/pages.py"),
    "tests/loaders/fetch/test_columns.py::test_columns_of_arrays_go_to_devices_and_others_stay_lists": LOADERS,
    "tests/loaders/fetch/test_plain.py": (*LOADERS, "dataprep/adoption/"),
    "tests/loaders/metrics": ("loaders/metrics/", "loaders/engine/", "loaders/loader.py"),
    "tests/loaders/mixtures": LOADERS,
    "tests/loaders/test_adopted.py": (*LOADERS, "dataprep/adoption/"),
    "tests/loaders/test_decode_alone.py": ("loaders/decode/",),
    "tests/loaders/test_grain.py": LOADERS,
    "tests/loaders/test_jax.py": LOADERS,
    "tests/loaders/test_own_loop.py": LOADERS,
    "tests/loaders/test_packs.py": LOADERS,
    "tests/loaders/test_tf.py": LOADERS,
    "tests/loaders/test_traffic_of_a_pass.py": LOADERS,
    "tests/loaders/test_views.py": LOADERS,
    "tests/loaders/test_xla.py": LOADERS,
    "tests/pipelines": ("pipelines/", "dataprep/builder/"),
    "tests/support": ("tests/support/",),
    "tests/test_accounts.py": DOCUMENTS,
    "tests/test_agents.py": DOCUMENTS,
    "tests/test_coco.py": SOURCES,
    "tests/test_crash_laion.py": FETCHED,
    "tests/test_damaged_dataset.py": DOCUMENTS,
    "tests/test_document_figures.py": CODE,
    "tests/test_documents.py": CODE,
    "tests/test_fuzz.py": ("tests/fuzz/", "loaders/decode/"),
    "tests/test_house.py": CODE,
    "tests/test_image.py": RELEASE,
    "tests/test_index_in_parts.py": (*READERS, "dataprep/adoption/", "loaders/"),
    "tests/test_laion_interop.py": (*READERS, "dataprep/fetched/"),
    "tests/test_laion_memory.py": FETCHED,
    "tests/test_laion_recipes.py": (*DOCUMENTS, *FETCHED),
    "tests/test_laion_ssrf.py": FETCHED,
    "tests/test_laion_statuses.py": FETCHED,
    "tests/test_notebook.py": (*READERS, "dataprep/__init__.py", "dataprep/commands/", "dataprep/cli.py"),
    "tests/test_open_clip.py": (*READERS, "dataprep/sources/"),
    "tests/test_own_data.py": SOURCES,
    "tests/test_own_dataset.py": DOCUMENTS,
    "tests/test_own_tables.py::test_datasets_reads_back_what_datasets_wrote": SOURCES,
    "tests/test_part_recipes.py": (*DOCUMENTS, "pipelines/"),
    "tests/test_pin_changes.py": RELEASE,
    "tests/test_planning_memory.py": SOURCES,
    "tests/test_planted_modules.py": CODE,
    "tests/test_prose.py": CODE,
    "tests/test_readers.py": READERS,
    "tests/test_readme.py": DOCUMENTS,
    "tests/test_release.py": RELEASE,
    "tests/test_renew_prices.py": ("scripts/", "dataprep/cloud/", "dataprep/data/"),
    "tests/test_setup.py": CODE,
    "tests/test_site.py": DOCUMENTS,
    "tests/test_tutorials.py": DOCUMENTS,
    "tests/test_types.py": CODE,
    "tests/test_wheel.py": RELEASE,
    "tests/train": TRAINING,
    "tests/train/test_train_resnet.py::test_two_runs_and_a_resumed_one_have_the_same_losses_and_statistics": KEPT,
}
"""Tests of `make test-all` alone, each with the beginnings of paths whose change makes `.ci/run` run them, too.

A row is a folder, a file, or one test of a file; the longest row that fits decides.
"""
TOUCH_ALL = (".ci/", "Makefile", "constraints.txt", "pyproject.toml", "setup.cfg", "setup.py", "tests/conftest.py")
"""A change of these runs everything."""


def row_of(test: str) -> str:
    """Return the row of FULL that a path or node id belongs to, or an empty string."""
    fitting = [row for row in FULL if test == row or test.startswith((f"{row}/", f"{row}::", f"{row}["))]
    return max(fitting, key=len, default="")


def is_full(test: str) -> bool:
    """Whether `make test` leaves out a test, a file or all of a folder."""
    row = row_of(test)
    inside = any(
        other.startswith((f"{test}/", f"{test}::")) for other, touched_by in FULL.items() if touched_by == KEPT
    )
    return bool(row) and FULL[row] != KEPT and not inside


def touched(changed: list[str]) -> list[str]:
    """Return the rows of FULL that changes at these paths touch, without rows that are inside of others."""
    if any(path.startswith(TOUCH_ALL) for path in changed):
        found = [row for row, touched_by in FULL.items() if touched_by != KEPT]
    else:
        found = [
            row
            for row, touched_by in FULL.items()
            if touched_by != KEPT and any(path.startswith((*touched_by, row.partition("::")[0])) for path in changed)
        ]
    return [row for row in found if not any(row.startswith(f"{other}/") for other in found)]


def changed_paths() -> list[str] | None:
    """Return what differs from main, or from the commit before where this is main; None where git cannot say."""
    for base in (os.environ.get("CI_BASE"), "origin/main", "HEAD~1"):
        merge_base = _git("merge-base", base, "HEAD") if base else None
        if merge_base and merge_base[0] != (_git("rev-parse", "HEAD") or [""])[0]:
            committed = _git("diff", "--name-only", merge_base[0])
            return None if committed is None else committed
    return None


def _git(*words: str) -> list[str] | None:
    run = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.splitlines() if run.returncode == 0 else None


def main() -> int:
    """Print the tests to run beside those of `make test`, one a line; exit with 1 where all must run."""
    changed = changed_paths()
    if changed is None:
        print("git does not say what changed", file=sys.stderr)
        return 1
    print("\n".join(touched(changed)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
