"""Typed reading and comparison of JSON documents that anyone may have written.

A document's type is a dataclass, a TypedDict or a msgspec.Struct; msgspec reads it. Each error says where in the
document the fault is, what was expected there and what was got: `$.splits[0].shards[3].bytes: expected int, got "x"`.
"""

from __future__ import annotations

import json
import re
import threading
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from dataprep.errors import DataprepError, FormatError
from dataprep.messages import one_line, shortened

T = TypeVar("T")
JsonObject: TypeAlias = dict[str, Any]
"""An object whose fields others define: the answer of another program, another tool's JSON next to an image, options
that only one recipe knows, the values of a page. Objects that this project defines have their own types.
scripts/house.py lists the modules that use it, each with a reason.
"""
MAX_COUNT = 1 << 53
"""Upper bound of samples or bytes: JSON carries integers below it exactly, and sums of them fit in 64 bits."""
Count = Annotated[int, msgspec.Meta(ge=0, lt=MAX_COUNT)]
_VALUE_CHARACTERS = 80
_MAX_QUOTED_BYTES = 8 << 20
"""Documents up to this size are decoded again, without types, to quote a value: that takes 25 times as much memory."""
_FAULT = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_EXPECTED_GOT = re.compile(r"Expected (?P<expected>.*?)(?:, got `.*`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_decoders: dict[tuple[Any, bool], msgspec.json.Decoder[Any]] = {}
_one_maker = threading.Lock()
_STEP = re.compile(r"\.(?P<name>\w+)|\[(?P<position>\d+)\]|\[\.\.\.\]")
MAX_CHARACTERS = 60


def decoder(kind: type[T], *, lax: bool = False) -> msgspec.json.Decoder[T]:
    """Return the decoder of a type; threads that read documents must take it from here.

    Decoders are created one at a time. msgspec 0.22 caches type information on the class before that information is
    complete, and a second thread that uses it crashes the process.
    """
    found = _decoders.get((kind, lax))
    if found is None:
        with _one_maker:
            found = _decoders[kind, lax] = msgspec.json.Decoder(kind, strict=not lax)
    return found


def decode(
    data: bytes, kind: type[T], *, where: str, advice: str, error: type[DataprepError] = FormatError, lax: bool = False
) -> T:
    """Read a JSON document.

    Args:
        kind: Type to decode to. Fields that the type does not have are ignored.
        where: URL of the document, for the error.
        advice: What the user should do about a damaged document; it ends the error's text.
        lax: Accept numbers written as strings, as in protobuf's JSON.

    Raises:
        FormatError, or `error`: The document is not JSON, or a value is missing, of another type or out of range.
    """
    try:
        return decoder(kind, lax=lax).decode(data)
    except msgspec.ValidationError as fault:
        text = str(fault) if len(data) > _MAX_QUOTED_BYTES else _located(str(fault), _values_in(data))
        raise error(f"{where}: {text}; {advice}") from fault
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as fault:
        raise error(f"{where}: {one_line(fault)}; {advice}") from fault


def convert(
    values: Any, kind: type[T], *, where: str, advice: str, at: str = "$", error: type[DataprepError] = FormatError
) -> T:
    """Read a part of a document that was decoded already, at a path in it; see `decode` for errors."""
    decoder(kind)  # msgspec knows the type afterwards
    try:
        return msgspec.convert(values, type=kind)
    except msgspec.ValidationError as fault:
        raise error(f"{where}: {at}{_located(str(fault), values)[1:]}; {advice}") from fault
    except (RecursionError, UnicodeEncodeError) as fault:  # UnicodeEncodeError: half a surrogate pair in a text
        raise error(f"{where}: {one_line(fault)}; {advice}") from fault


def json_text(value: Any) -> str:
    """Quote a value as JSON on one line of ASCII, cut where it is long."""
    return shortened(json.dumps(value, default=repr), _VALUE_CHARACTERS)


def _values_in(data: bytes) -> Any:
    """Decode a document again, to quote one of its values in an error; None if what follows the fault is not JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _located(text: str, values: Any) -> str:
    """Reorder an error text of msgspec: the path first, the value found at the path last."""
    fault = _FAULT.fullmatch(text)
    if fault is None:
        return one_line(ValueError(text))
    path, what = fault["path"] or "", fault["what"]
    missing = _MISSING.fullmatch(what)
    if missing is not None:
        return f"${path}: the field {missing['name']} is missing"
    expected = _EXPECTED_GOT.fullmatch(what)
    if expected is None:
        return f"${path}: {one_line(ValueError(what))}"
    value, found = _value_at(values, path)
    return f"${path}: expected {expected['expected'].replace('`', '')}, {'got' if found else 'in'} {json_text(value)}"


def _value_at(values: Any, path: str) -> tuple[Any, bool]:
    """Return the value at a path such as `.splits[0].name`, and whether every step of the path could be followed.

    msgspec writes `[...]` for some key of a mapping; this step is followed if exactly one key leads to the path's end.
    """
    at = 0
    while step := _STEP.match(path, at):
        name, position = step["name"], step["position"]
        if isinstance(values, dict) and name in values:
            values = values[name]
        elif isinstance(values, list | tuple) and position is not None and int(position) < len(values):
            values = values[int(position)]
        elif isinstance(values, dict) and step[0] == "[...]":
            ends = [
                value for value, found in (_value_at(inner, path[step.end() :]) for inner in values.values()) if found
            ]
            return (ends[0], True) if len(ends) == 1 else (values, False)
        else:
            break
        at = step.end()
    return values, at == len(path)


def differences(ours: JsonObject, theirs: JsonObject, path: str = "", *, where: str = "there") -> list[str]:
    """Return a line for each difference between two documents, for the user.

    `plan_hash` is left out, because it only says that something differs; `splits` are compared by name. A line has the
    names of the enclosing fields, `path`, with a dot after each, and words for the place of the other document.
    """
    lines: list[str] = []
    for name in sorted(ours.keys() | theirs.keys()):
        here, there = ours.get(name), theirs.get(name)
        if name == "plan_hash" or here == there:
            continue
        label = f"{path}{name}"
        if isinstance(here, dict) and isinstance(there, dict):
            lines += differences(here, there, f"{label}.", where=where)
        elif name == "splits" and here and there:
            by_name, theirs_by_name = ({split["name"]: split for split in splits} for splits in (here, there))
            lines += differences(by_name, theirs_by_name, f"{label}.", where=where)
        else:
            got, expected = (shortened(json.dumps(value), MAX_CHARACTERS) for value in (there, here))
            lines.append(f"{label} is {got} {where}, {expected} here")
    return lines
