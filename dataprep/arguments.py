"""One request for each command: a frozen dataclass that both the command line and the Python function are made from.

    @request
    class Verify(Request):
        '''Compare every byte of a dataset with its manifest.'''

        url: str = option("Root of the dataset.", metavar="URL", kw_only=False)
        deep: bool = option("Decode every image completely as well.", default=False)

    verify = function_of(Verify, run)            # verify("shards", deep=True); help(verify) says every meaning
    command = command_of(Verify, run_and_print)  # dataprep verify shards --deep

The field `shard_bytes` is the option --shard-bytes. Texts name the field, `shard_bytes`; the command line shows the
option instead.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import textwrap
import types
import typing
from collections.abc import Callable, Container, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, ParamSpec, Self, TypeVar, dataclass_transform

import click
from click.core import ParameterSource

from dataprep.errors import DataprepError, UsageError
from dataprep.messages import counted, did_you_mean, shell_words

if TYPE_CHECKING:
    from click.types import OptionHelpExtra

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
READ, WRITE, IMAGES, LABELS, WHERE, OTHER = GROUPS = (
    "What to read",
    "What to write",
    "Images",
    "Splits and labels",
    "Where to run",
    "Other",
)
"""Headings of options in --help, in their order."""
Texts = str | Sequence[str]
"""Type of an option that may be repeated; `texts` makes a tuple of it."""
Place = str | PathLike[str]
"""Type of a folder, a file or a URL; the request holds a str."""
Places = str | PathLike[str] | Sequence[str | PathLike[str]]
"""Type of an option for folders, files or URLs that may be repeated."""
Pairs = Mapping[str, str]
"""Type of an option NAME=VALUE that may be repeated."""
Functions = Mapping[str, str | Callable[..., Any]]
"""Type of an option NAME=FUNCTION that may be repeated; the request holds texts."""
MOST_COUNT = 2**31 - 1
"""Largest count that an option accepts: no machine has this many threads, images or pixels."""
MOST_SEED = 2**64 - 1
_MOST_BYTES = 2.0**63
_PREFIXES = ("k", "M", "G", "T", "P")
_SIZES = {f"{prefix}B": 1000**power for power, prefix in enumerate(_PREFIXES, start=1)} | {
    f"{prefix.upper()}iB": 1024**power for power, prefix in enumerate(_PREFIXES, start=1)
}
_UNITS = {"": 1} | {unit.lower(): size for unit, size in _SIZES.items()}
_FIELD = re.compile(r"`([a-z][a-z0-9_]*)`")


# The command line: types of values


class Whole(click.IntRange):
    """A whole number; help shows only its lower bound, because no sensible value reaches the upper one."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number: int = click.INT.convert(value, param, ctx)
        if (self.min is not None and number < self.min) or (self.max is not None and number > self.max):
            self.fail(f"{number} is not in the range {super()._describe_range()}.", param, ctx)
        return number

    def _describe_range(self) -> str:
        return "" if self.min is None or self.min < -MOST_COUNT else f"x>={self.min}"


class Finite(click.FloatRange):
    """A number within a range. `nan` and infinity, which a range check may accept, are refused."""

    name = "number"

    def _describe_range(self) -> str:
        return "" if self.min is None and self.max is None else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"got {value!r}, expected a finite number", param, ctx)
        return number


class Bytes(click.ParamType[int]):
    """A size such as `256MiB`, `2 TB` or `1048576`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(value).lower())
        if match is None or match[2] not in _UNITS:
            self.fail(
                f"got {value!r}, expected a size such as 256MiB, 2 TB or 1048576; its unit is bytes, or one of "
                f"{', '.join(_SIZES)}",
                param,
                ctx,
            )
        size = float(match[1]) * _UNITS[match[2]]
        if size > _MOST_BYTES:
            self.fail(f"got {value!r}, expected 8 EiB at most", param, ctx)
        return int(size)


class NamedDefaultOption(click.Option):
    """An option whose default is shown in words, as `[default: 256MiB]`; click would put them in parentheses."""

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        return extra


# Fields of a request


@dataclass(frozen=True, kw_only=True, slots=True)
class _Spec:
    """Arguments of `option`: the option of one field."""

    help: str
    """Meaning in one line, with its unit."""
    group: str = OTHER
    """Heading of the option in --help: one of the request's `headings`."""
    metavar: str | None = None
    """Name of the value in help."""
    low: float | None = None
    """Smallest number; it is allowed itself unless `open_low`."""
    high: float | None = None
    """Largest number; it is allowed itself unless `open_high`."""
    open_low: bool = False
    open_high: bool = False
    unset: float | None = None
    """Number outside the range that means "not given", e.g. -1."""
    size: bool = False
    """Whether it is a number of bytes that may be written as `256MiB`."""
    choices: tuple[str, ...] = ()
    """Allowed values of a repeated option; a single option has a Literal as type."""
    shown: str = ""
    """Default in words."""
    example: str = ""
    """Example of a value, for errors."""
    flag: str = ""
    """Spelling on the command line if it differs from the field's name; a positional field is an option with it."""
    also: tuple[str, ...] = ()
    """More spellings on the command line."""
    envvar: str = ""
    """Environment variable from which the command line takes a missing value."""
    either: bool = False
    """Whether a boolean also has `--no-NAME`."""
    valued: bool = False
    """Whether the command line may write a boolean as `--NAME=True` or `--NAME=False`."""
    rare: bool = False
    """Whether only `--help-all` shows it."""
    rest: bool = False
    """Whether the option takes all further words of the command line."""
    only: Literal["", "cli", "python"] = ""
    """The one interface that has the option, command line or Python; empty for both."""


def option(
    text: str,
    *,
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
    kw_only: bool = True,
    **about: Any,
) -> Any:
    """Make a field that is an option of a request.

    Args:
        text: Line of help.
        default: Value if the option is not given; without one the option is required.
        default_factory: Function that returns that value.
        kw_only: Keyword-only in Python. If False, the option is positional, both in Python and on the command line.
        about: Fields of `_Spec`.
    """
    return dataclasses.field(
        default=default,
        default_factory=default_factory,
        kw_only=kw_only,
        metadata={"option": _Spec(help=text, **about)},
    )


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
def request(kind: type[R]) -> type[R]:
    """Make a class with fields of `option` a request: a frozen dataclass whose values are checked."""
    return dataclass(frozen=True, kw_only=True)(kind)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Base of all requests. Values are checked when a request is made, so every request is valid."""

    headings: ClassVar[tuple[str, ...]] = GROUPS
    """Headings of its options in --help, in their order."""

    @staticmethod
    def option_of(name: str) -> str:
        """Return the option of a field on the command line; `except_` is --except."""
        return f"--{name.rstrip('_').replace('_', '-')}"

    @classmethod
    def of_command_line(cls, given: Container[str], **values: Any) -> Self:
        """Make the request of a command line.

        Args:
            given: Names of the fields that the command line gives; the others have their defaults.
            values: Values of all fields.
        """
        return cls(**values)

    def __post_init__(self) -> None:
        """Check every value, and bring it into the form of its type.

        Raises:
            UsageError: A value has another type or is out of its range; the text names the field.
        """
        for name, key in _keys(type(self)).items():
            object.__setattr__(self, name, key.checked(getattr(self, name)))


_FORMS: dict[Any, tuple[Any, str]] = {
    str: (str | PathLike, "a text"),
    Path: (str | Path, "a path"),
    bool: (bool, "True or False"),
}
"""Allowed types of values by the kind of a field, and the words for them in errors."""


@dataclass(frozen=True, slots=True)
class _Key:
    """A field of a request, and the type of its value."""

    name: str
    spec: _Spec
    hint: Any
    """Annotation of the field."""
    kind: Any
    """bool, int, float, str, Path, `Texts`, `Pairs`, or Any for a value that is not checked."""
    choices: tuple[str, ...]
    default: Any
    is_optional: bool
    is_positional: bool
    count: int
    """Number of values: 2 for `tuple[float, float]`, whose `kind` is float."""
    spelling: str
    """The option on the command line, or the argument."""

    def checked(self, value: Any) -> Any:
        """Return a value in the form of its type. Raises UsageError if it has another type or is out of range."""
        if value is None and self.is_optional:
            return None
        if self.kind is Texts:
            found = texts(value)
            if wrong := [each for each in found if not isinstance(each, str)]:
                raise UsageError(f"`{self.name}` must be a text or several texts, got {wrong[0]!r}")
            for each in found:
                self._check_choice(each)
            return found
        if self.kind is Pairs:
            if not isinstance(value, Mapping) or not all(
                isinstance(each, str) for pair in value.items() for each in pair
            ):
                raise UsageError(f"`{self.name}` must be a mapping of names to texts, got {value!r}")
            return dict(value)
        if self.kind in _FORMS:
            form, noun = _FORMS[self.kind]
            if not isinstance(value, form):
                raise UsageError(f"`{self.name}` must be {noun}, got {value!r}")
            if self.kind is not str:
                return self.kind(value)
            self._check_choice(fspath(value))
            return fspath(value)
        if self.kind not in (int, float):
            return value
        if self.count == 1:
            return self._number(value)
        if not isinstance(value, tuple | list) or len(value) != self.count:
            raise UsageError(f"`{self.name}` must be {self.count} numbers, got {value!r}")
        return tuple(map(self._number, value))

    def _check_choice(self, value: str) -> None:
        if self.choices and value not in self.choices:
            hint = did_you_mean(value, self.choices)
            raise UsageError(f"`{self.name}` must be one of {', '.join(self.choices)}, got {value!r}{hint}")

    def _number(self, value: Any) -> Any:
        if self.spec.size and isinstance(value, str):
            try:
                return Bytes().convert(value, None, None)
            except click.BadParameter as error:
                raise UsageError(f"`{self.name}`: {error.message}") from None
        noun = "a whole number" if self.kind is int else "a number"
        numbers = int if self.kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, numbers) or not abs(value) < math.inf:
            raise UsageError(f"`{self.name}` must be {noun}, got {value!r}")
        low, high = self.spec.low, self.spec.high
        is_low = low is not None and (value <= low if self.spec.open_low else value < low)
        is_high = high is not None and (value >= high if self.spec.open_high else value > high)
        if (is_low or is_high) and value != self.spec.unset:
            raise UsageError(f"`{self.name}` must be {self._range()}, got {value}")
        return value

    def _range(self) -> str:
        spec = self.spec
        low, high = (None if end is None else f"{end:,}" for end in (spec.low, spec.high))
        above = "" if low is None else f"above {low}" if spec.open_low else f"{low} or more"
        below = "" if high is None else f"below {high}" if spec.open_high else f"at most {high}"
        both = f"{low} to {high}" if low and high and not (spec.open_low or spec.open_high) else ""
        text = both or " and ".join(part for part in (above, below) if part)
        return text if spec.unset is None else f"{text}, or {spec.unset:,}"


def texts(value: Places) -> tuple[str, ...]:
    """Return the values of a repeated option."""
    several = (value,) if isinstance(value, str | PathLike) else value
    return tuple(fspath(each) if isinstance(each, PathLike) else each for each in several)


_KEYS: dict[type, dict[str, _Key]] = {}


def _keys(kind: type[Any]) -> dict[str, _Key]:
    """Return the options of a request by name: positional and required ones first, and a class's options before its
    bases'."""
    if kind in _KEYS:
        return _KEYS[kind]
    hints = typing.get_type_hints(kind)
    order = [each.name for each in dataclasses.fields(kind)]  # the order in the class: its bases' fields first
    declared = {each.name: each for each in dataclasses.fields(kind) if "option" in each.metadata}
    own_first = dict.fromkeys(name for base in kind.__mro__ for name in vars(base).get("__annotations__", ()))
    keys = [_key(declared[name], hints[name], kind.option_of(name)) for name in own_first if name in declared]
    keys.sort(
        key=lambda key: (
            not key.is_positional,
            order.index(key.name) if key.is_positional else key.default is not dataclasses.MISSING,
        )
    )
    return _KEYS.setdefault(kind, {key.name: key for key in keys})


def _key(field: dataclasses.Field[Any], hint: Any, spelling: str) -> _Key:
    spec, choices = field.metadata["option"], field.metadata["option"].choices
    parts = [part for part in typing.get_args(hint) if part is not types.NoneType]
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    is_optional = is_union and type(None) in typing.get_args(hint)
    plain = parts[0] if is_optional and len(parts) == 1 else hint
    count = 1
    if typing.get_origin(plain) is Literal:
        plain, choices = str, typing.get_args(plain)
    elif typing.get_origin(plain) is tuple:
        plain, count = typing.get_args(plain)[0], len(typing.get_args(plain))
    if spec.size:
        plain = int
    elif plain == Places:
        plain = Texts
    elif plain == Functions:
        plain = Pairs
    elif plain == Place or {str, PathLike[str]} <= {*parts}:
        plain = str
    elif is_union and Path in parts:
        plain = Path
    # Evaluating a hint makes another object of an equal type.
    plain = next((each for each in (bool, int, float, str, Path, Texts, Pairs) if plain == each), Any)
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory
    is_argument = (not field.kw_only and not spec.flag) or spec.rest
    spelling = field.name.upper() if is_argument else spec.flag or spelling
    return _Key(field.name, spec, hint, plain, choices, default, is_optional, not field.kw_only, count, spelling)


# The door of Python


def function_of(kind: Callable[P, R], run: Callable[[R], T], name: str) -> Callable[P, T]:
    """Make a function whose arguments are the fields of a request.

    Args:
        kind: Class of the request.
        run: Does what the request asks for.
        name: Name of the function.
    """

    def called(*arguments: P.args, **values: P.kwargs) -> T:
        _refuse_unknown(name, fields, len(positional), arguments, values)
        return run(kind(*arguments, **values))

    fields = {each: key for each, key in _keys(typing.cast(type, kind)).items() if key.spec.only != "cli"}
    positional = [each for each, key in fields.items() if key.is_positional]
    called.__name__ = called.__qualname__ = name
    called.__module__ = "dataprep"
    called.__doc__ = _function_doc(inspect.cleandoc(kind.__doc__ or ""), fields)
    parameters = [_parameter(key) for key in fields.values()]
    returns = typing.get_type_hints(run).get("return", inspect.Signature.empty)
    called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        sorted(parameters, key=lambda each: each.kind), return_annotation=returns
    )
    return called


def _refuse_unknown(
    name: str, fields: Mapping[str, _Key], positional: int, arguments: Sequence[object], values: Mapping[str, object]
) -> None:
    """Raise UsageError for an argument that a function does not have, or that it needs and is not given."""
    for given in values:
        if given not in fields:
            hint = did_you_mean(given, fields) or f"; help(dataprep.{name}) lists them"
            raise UsageError(f"{name} has no argument {given!r}{hint}")
    if len(arguments) > positional:
        takes = counted(positional, "positional argument")
        raise UsageError(f"{name} takes {takes}, got {len(arguments)}; pass the others by name")
    have = {*list(fields)[: len(arguments)], *values}
    missing = [each for each, key in fields.items() if key.default is dataclasses.MISSING and each not in have]
    if missing:
        raise UsageError(f"{name} needs {' and '.join(f'`{each}`' for each in missing)}")


def _parameter(key: _Key) -> inspect.Parameter:
    how = inspect.Parameter.POSITIONAL_OR_KEYWORD if key.is_positional else inspect.Parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if key.default is dataclasses.MISSING else key.default
    if callable(default) and default is not inspect.Parameter.empty:
        default = default()
    return inspect.Parameter(key.name, how, default=default, annotation=key.hint)


def _function_doc(text: str, fields: Mapping[str, _Key]) -> str:
    lines = [text.replace("\b\n", ""), "", "Args:"]
    for heading in GROUPS:
        for key in fields.values():
            if key.spec.group == heading:
                lines += _argument_lines(f"{key.name}: {key.spec.help}")
    lines += ["", "Raises:", "    DataprepError: The call failed; the message says why, and what to do."]
    return "\n".join(lines)


@cache
def _argument_lines(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="        ")


# The door of the command line


class RequestCommand(click.Command):
    """A command whose options are the fields of a request, shown in groups; errors name the options.

    It refuses different values for an option that takes one. Click itself would take the last value and silently drop
    the others.
    """

    kind: type[Request] = Request
    has_json: ClassVar[bool] = True
    """Whether the command has the option --json."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; in its errors, `shard_bytes` becomes --shard-bytes."""
        try:
            return super().invoke(ctx)
        except DataprepError as error:
            error.args = (spelled(self.kind, str(error)), *error.args[1:])
            raise

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments, and refuse those that contradict each other.

        Raises:
            UsageError: An option that takes one value has several.
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
            collecting.add_to_parser(parser, ctx)  # replaces the option, because the parser keeps only its last value
        found, _, _ = parser.parse_args(args)
        for option in single:
            values = list(dict.fromkeys(found.get(str(option.name), ())))
            if len(values) > 1:
                raise UsageError(_several(option, values))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options group by group; rare ones only for --help-all."""
        keys, show_all = _keys(self.kind), bool(ctx.meta.get("dataprep.help_all"))
        records: dict[str, list[tuple[str, str]]] = {heading: [] for heading in self.kind.headings}
        hidden = 0
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or isinstance(parameter, click.Argument):
                continue
            key = keys.get(str(parameter.name))
            if key is not None and key.spec.rare and not show_all:
                hidden += 1
                continue
            records[OTHER if key is None else key.spec.group].append(record)
        for heading, found in records.items():
            if found:
                with formatter.section(heading):
                    formatter.write_dl(found)
        if hidden:
            formatter.write_paragraph()
            formatter.write_text(f"--help-all shows {counted(hidden, 'rare option')}.")


def command_of(
    kind: type[R],
    run: Callable[..., object],
    name: str,
    *,
    epilog: str,
    opening: str = "",
    cls: type[RequestCommand] = RequestCommand,
    **fixed: Any,
) -> RequestCommand:
    """Make a command whose options are the fields of a request.

    Args:
        kind: Class of the request; its docstring is the command's help.
        run: Gets the request, and `as_json` if the command has the option --json; returns an exit code, or None for 0.
        name: Name of the command.
        epilog: Examples, and exit codes.
        opening: First line of help, in place of the docstring's.
        cls: Class of the command.
        fixed: Values of fields that the command's name implies.
    """

    @click.pass_context
    def callback(context: click.Context, /, **values: Any) -> object:
        shown = {"as_json": values.pop("as_json")} if cls.has_json else {}
        given = {name for name in values if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
        asked = typing.cast(type[Request], kind).of_command_line(given, **_collected(kind, values), **fixed)
        code = run(asked, **shown)
        if isinstance(code, int) and code:
            context.exit(code)
        return code

    keys = [key for key in _keys(kind).values() if key.spec.only != "python" and key.name not in fixed]
    parameters: list[click.Parameter] = [_click_parameter(key, partial(spelled, kind)) for key in keys]
    parameters.sort(key=lambda each: isinstance(each, click.Option))
    if cls.has_json:
        parameters.append(click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object on stdout."))
    if any(key.spec.rare for key in keys):
        parameters.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all_help,
                help="Show this message with all options and exit.",
            )
        )
    text = spelled(kind, inspect.cleandoc(kind.__doc__ or ""))
    if opening:
        text = opening + "\n\n" + text.partition("\n\n")[2]
    command = cls(name, params=parameters, callback=callback, help=text, epilog=epilog)
    command.kind = typing.cast(type[Request], kind)
    return command


def _several(option: click.Option, values: list[Any]) -> str:
    """Return the error for an option that takes one value; who repeats --source wants to build from several sources."""
    name = option.opts[0]
    if option.is_flag:
        return f"{name} and {option.secondary_opts[0]} are both given; leave one of them out"
    *first, last = (" ".join(value) if isinstance(value, tuple) else str(value) for value in values)
    given = f"{', '.join(first)} and {last}"
    error = f"{name} takes one value and is given {len(values)}: {given}; give one of them"
    if name != "--source" or any("://" in value for value in values):
        return error
    return f"{error}, or a folder that holds them: mkdir all && mv {shell_words(*values)} all, and then --source all"


def _show_all_help(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta["dataprep.help_all"] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _collected(kind: type, values: dict[str, Any]) -> Mapping[str, Any]:
    """Return the values of a command line in the form of a request's fields."""
    for name, key in _keys(kind).items():
        if key.kind is Pairs and name in values:
            pairs = {text: text.partition("=")[::2] for text in values[name]}
            for text, (word, _) in pairs.items():
                if not word or "=" not in text:
                    such = f", such as {key.spec.example}" if key.spec.example else ""
                    raise UsageError(f"{key.spelling} {text}: expected {key.spec.metavar or 'NAME=VALUE'}{such}")
            values[name] = dict(pairs.values())
            if len(values[name]) < len(pairs):
                raise UsageError(f"{key.spelling}: two values for one name among {', '.join(pairs)}")
    return values


def _click_parameter(key: _Key, spell: Callable[[str], str]) -> click.Parameter:
    spec, text, shown = key.spec, spell(key.spec.help), spell(key.spec.shown)
    if spec.rest:
        is_needed = key.default is dataclasses.MISSING
        return click.Argument([key.name], nargs=-1, type=click.UNPROCESSED, metavar=spec.metavar, required=is_needed)
    if key.is_positional and not spec.flag:
        count, is_needed = -1 if key.kind is Texts else 1, key.default is dataclasses.MISSING
        return click.Argument([key.name], type=_click_type(key), metavar=spec.metavar, nargs=count, required=is_needed)
    is_many, default = key.kind in (Texts, Pairs), key.default
    if key.kind is bool:
        words, how = [key.spelling, *spec.also], dict[str, Any](is_flag=True, flag_value=not default)
        if spec.either:
            words, how = [f"{key.spelling}/--no-{key.spelling[2:]}"], {"show_default": True}
        elif spec.valued:
            how = {"is_flag": False, "flag_value": "True", "type": bool, "show_default": True}
        return click.Option([*words, key.name], default=default, help=text, **how)
    is_required = default is dataclasses.MISSING
    shows = shown or not (is_required or is_many or (default in (None, "", 0.0) and not isinstance(default, int)))
    given: Any = {} if is_required else {"default": None if is_many else default}  # to click, None is a value
    return NamedDefaultOption(
        [key.spelling, *spec.also, key.name],
        type=_click_type(key),
        nargs=key.count,
        required=is_required,
        multiple=is_many,
        show_default=shown or bool(shows),
        metavar=spec.metavar,
        envvar=spec.envvar or None,
        show_envvar=bool(spec.envvar),
        help=text,
        **given,
    )


def _click_type(key: _Key) -> Any:
    spec = key.spec
    if key.choices:
        return click.Choice(list(key.choices))
    if spec.size:
        return Bytes()
    if spec.unset is not None:  # the request checks the range, and the number outside it
        return Whole() if key.kind is int else Finite()
    if key.kind is int:
        high = MOST_COUNT if spec.high is None else int(spec.high)
        return Whole(None if spec.low is None else int(spec.low), high)
    if key.kind is float:
        return Finite(spec.low, spec.high, min_open=spec.open_low, max_open=spec.open_high)
    if key.kind is Path:
        return click.Path(path_type=Path)
    return str


def spelled(kind: type, text: str) -> str:
    """Write the fields of a request in a text as options of its command: `shard_bytes` becomes --shard-bytes."""
    keys = _keys(kind).values()
    words = {word.lstrip("-").replace("-", "_"): word for key in keys for word in key.spec.also}
    words |= {key.name: key.spelling for key in keys}
    return _FIELD.sub(lambda match: words.get(match[1], match[0]), text)


def spelled_document(kind: type, value: Any) -> Any:
    """Return a JSON value in whose texts the fields of a request are written as options of its command."""
    if isinstance(value, Mapping):
        return {name: spelled_document(kind, each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [spelled_document(kind, each) for each in value]
    return spelled(kind, value) if isinstance(value, str) else value
