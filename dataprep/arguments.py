"""The command class of every program: it refuses an option for one value that is given twice with different values."""

from __future__ import annotations

from copy import copy
from typing import Any

import click

from dataprep.errors import UsageError
from dataprep.messages import shell_words


class StrictCommand(click.Command):
    """A command whose options for one value may not be given twice with different values.

    Click takes the last value and says nothing of the others.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments, and refuse those that contradict each other.

        Raises:
            UsageError: An option for one value has several.
        """
        given = list(args)  # click takes arguments out of the list as it reads them
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            self._refuse_several(ctx, given)
        return rest

    def _refuse_several(self, ctx: click.Context, args: list[str]) -> None:
        parser = self.make_parser(ctx)
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        single = [option for option in options if not (option.multiple or option.count)]
        for option in single:
            collecting = copy(option)
            collecting.multiple = True
            collecting.add_to_parser(parser, ctx)  # in place of the option, of which the parser keeps the last value
        found, _, _ = parser.parse_args(args)
        for option in single:
            values = list(dict.fromkeys(found.get(str(option.name), ())))
            if len(values) > 1:
                raise UsageError(_several(option, values))


def _several(option: click.Option, values: list[Any]) -> str:
    name = option.opts[0]
    if option.is_flag:
        return f"{name} and {option.secondary_opts[0]} are both given; leave one of them out"
    *first, last = (" ".join(value) if isinstance(value, tuple) else str(value) for value in values)
    given = f"{', '.join(first)} and {last}"
    return f"{name} takes one value and is given {len(values)}: {given}; give one of them{_or_both(name, values)}"


def _or_both(name: str, values: list[Any]) -> str:
    """Return how to build from several sources, for which one would give --source again."""
    if name != "--source" or any("://" in value for value in values):
        return ""
    return f", or a folder that holds them: mkdir all && mv {shell_words(*values)} all, and then --source all"
