"""Beam's options, from the arguments that the user gives after `--`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from dataprep.errors import UsageError
from pipelines.beam.runners import check_name


def pipeline_options(runner: str, arguments: Sequence[str]) -> PipelineOptions:
    """Make Beam's options for a runner.

    Args:
        runner: A Beam runner's name.
        arguments: The user's arguments after `--`, or the result of `prepare_arguments` for them.

    Raises:
        UsageError: The runner is unknown or loses data, or an argument is no option of Beam.
    """
    check_name(runner)
    unknown = _unknown_arguments(arguments)
    if unknown:
        raise UsageError(f"not options of Beam: {' '.join(unknown)}; see the runner's own documentation")
    return PipelineOptions(list(arguments), runner=runner)


def _unknown_arguments(arguments: Sequence[str]) -> list[str]:
    """Return arguments that Beam does not know, such as misspelt options, which it would ignore silently."""
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
