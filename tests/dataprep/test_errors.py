"""The exception tree: its exit codes, and the hint that names this project's distribution."""

import re

from dataprep import errors
from dataprep.errors import DataprepError, install_hint


def test_the_docstring_draws_every_exception_with_its_exit_code():
    drawn = {name: int(code) for name, code in re.findall(r"(\w+Error)\s+(\d)", errors.__doc__ or "")}
    classes = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert {name: kind.exit_code for name, kind in classes.items()} == drawn
    assert all(issubclass(kind, DataprepError) for kind in classes.values())


def test_an_install_hint_is_a_command_line_that_a_shell_takes_as_it_is():
    assert install_hint("laion") == "pip install 'tpu-dataprep[laion]'"
