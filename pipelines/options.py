"""What each Beam runner needs to be told, and which runners are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from dataprep.errors import UsageError

RUNNERS = ("FnApiRunner", "DataflowRunner", "FlinkRunner", "PortableRunner", "PrismRunner", "SparkRunner")
REFUSED = {
    "DaskRunner": "it drops data silently: of several outputs only the last is computed, and bundles end without "
    "finish_bundle",
    "DirectRunner": "it is a switch that downloads and tries another engine first; name FnApiRunner",
    "BundleBasedDirectRunner": "it is the retired engine behind DirectRunner; name FnApiRunner",
}


def pipeline_options(runner: str, workers: int, arguments: Sequence[str]) -> PipelineOptions:
    """Beam's options for a runner.

    Args:
        runner: A Beam runner's name.
        workers: Processes of the local FnApiRunner; other runners take their own options.
        arguments: What the user gave after `--`.

    Raises:
        UsageError: The runner is unknown or loses data, or an argument is no Beam option.
    """
    if runner in REFUSED:
        raise UsageError(f"--runner {runner} is refused: {REFUSED[runner]}")
    if runner not in RUNNERS:
        raise UsageError(f"--runner {runner}: unknown; expected local or one of {', '.join(RUNNERS)}")
    settings: dict[str, Any] = {"runner": runner}
    if runner == "FnApiRunner" and workers > 1:
        settings |= {"direct_running_mode": "multi_processing", "direct_num_workers": workers}
    options = PipelineOptions(list(arguments), **settings)
    unknown = _unknown_arguments(arguments)
    if unknown:
        raise UsageError(f"not options of Beam: {' '.join(unknown)}; see the runner's own documentation")
    return options


def _unknown_arguments(arguments: Sequence[str]) -> list[str]:
    """Beam passes over what it does not know; a misspelt option must not be silent."""
    import argparse

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for options in [PipelineOptions, *_subclasses(PipelineOptions)]:
        add = getattr(options, "_add_argparse_args", None)
        if add is not None:
            _add_quietly(parser, add)
    _, unknown = parser.parse_known_args(list(arguments))
    return unknown


def _add_quietly(parser: Any, add: Any) -> None:
    import argparse

    try:
        add(parser)
    except argparse.ArgumentError:  # two of Beam's option classes share a flag
        return


def _subclasses(kind: type) -> list[type]:
    direct: list[type] = kind.__subclasses__()
    return direct + [grandchild for child in direct for grandchild in _subclasses(child)]
