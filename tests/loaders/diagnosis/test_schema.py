"""The documented JSON schemas are those of the code, and what is printed keeps to them."""

import dataclasses
import json
import types
import typing
from dataclasses import replace

import pytest

from loaders.bench import run as bench_module
from loaders.diagnosis import findings as findings_module
from tests.support.findings import bench_table, diagnosis, transform_cost
from tests.support.markdown import ROOT

SCHEMAS = {
    "diagnose": (ROOT / "docs/diagnose.schema.json", findings_module.Diagnosis, findings_module),
    "bench": (ROOT / "docs/bench.schema.json", bench_module.BenchTable, bench_module),
}


def schema_of(kind, module):
    """What JSON schema says of a type; a dataclass of the module is named."""
    if typing.is_typeddict(kind):
        return {"type": "object"}
    if dataclasses.is_dataclass(kind):
        return {"$ref": f"#/$defs/{kind.__name__}"}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": schema_of(arguments[0], module)}
    if origin is dict:
        anything = arguments[1] in (typing.Any, object)
        return {"type": "object"} | ({} if anything else {"additionalProperties": schema_of(arguments[1], module)})
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [schema_of(each, module) for each in arguments]}
    return {"type": {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}[kind]}


def object_of(kind, module):
    hints = typing.get_type_hints(kind, vars(module))
    names = [field.name for field in dataclasses.fields(kind)]
    return {
        "type": "object",
        "properties": {name: schema_of(hints[name], module) for name in names},
        "required": names,
        "additionalProperties": False,
    }


def bare(schema):
    """Without the words."""
    if isinstance(schema, dict):
        return {name: bare(each) for name, each in schema.items() if name not in ("description", "$schema", "title")}
    return schema


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_documented_schema_is_that_of_the_code(name):
    path, kind, module = SCHEMAS[name]
    schema = json.loads(path.read_text())
    expected = object_of(kind, module)
    expected["properties"] = {"schema_version": {"const": module.SCHEMA_VERSION}, **expected["properties"]}
    expected["properties"]["comparison"] = {"type": "object"}
    expected["required"] = ["schema_version", *expected["required"]]
    kinds = {each.__name__: each for each in vars(module).values() if dataclasses.is_dataclass(each)}
    objects, asked = {}, json.dumps(expected)
    while left := [each for each in kinds if f'"#/$defs/{each}"' in asked and each not in objects]:
        objects |= {each: object_of(kinds[each], module) for each in left}
        asked += json.dumps(objects)
    expected["$defs"] = objects
    assert bare(schema) == expected
    described = [each for part in (schema, *schema["$defs"].values()) for each in part["properties"].values()]
    assert all(each.get("description") for each in described)


def mistakes(value, schema, defs, where="document"):
    """Where a JSON value is not what a schema of the form above says."""
    if "$ref" in schema:
        schema = defs[schema["$ref"].rpartition("/")[2]]
    if "const" in schema:
        return [] if value == schema["const"] else [where]
    if "enum" in schema:
        return [] if value in schema["enum"] else [where]
    if "anyOf" in schema:
        return [] if any(mistakes(value, each, defs) == [] for each in schema["anyOf"]) else [where]
    kinds = {"string": str, "integer": int, "number": (int, float), "null": type(None), "array": list, "object": dict}
    kinds["boolean"] = bool
    if not isinstance(value, kinds[schema["type"]]) or isinstance(value, bool) != (schema["type"] == "boolean"):
        return [where]
    if schema["type"] == "array":
        return [each for item in value for each in mistakes(item, schema["items"], defs, f"{where}[]")]
    if "properties" in schema:
        missing = [f"{where}.{name}" for name in set(schema["required"]) - value.keys()]
        missing += [f"{where}.{name}" for name in value.keys() - schema["properties"].keys()]
        known = value.keys() & schema["properties"].keys()
        inside = [mistakes(value[name], schema["properties"][name], defs, f"{where}.{name}") for name in known]
        return missing + [each for found in inside for each in found]
    return []


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("diagnose", lambda: findings_module.to_document(diagnosis())),
        ("diagnose", lambda: findings_module.to_document(replace(diagnosis(), applied=None, fixes=()))),
        ("diagnose", lambda: findings_module.to_document(replace(diagnosis(), transform=transform_cost()))),
        ("bench", lambda: bench_module.to_document(bench_table())),
    ],
)
def test_documents_conform_to_the_schema(name, document):
    schema = json.loads(SCHEMAS[name][0].read_text())
    value = json.loads(json.dumps(document(), allow_nan=False))
    assert mistakes(value, schema, schema["$defs"]) == []
    value["schema_version"] = 0
    value["machine"] = []
    assert sorted(mistakes(value, schema, schema["$defs"])) == ["document.machine", "document.schema_version"]
