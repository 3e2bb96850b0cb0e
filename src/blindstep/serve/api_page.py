"""The page about the API, made from its machine-readable description: nothing from other hosts."""

from __future__ import annotations

from typing import Any


def operations(described: dict[str, Any]) -> list[dict[str, Any]]:
    """Every operation: method, path, what it does, and the fields of what is sent."""
    found = []
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            sent = operation.get("requestBody", {}).get("content", {})
            schema = sent.get("application/json", {}).get("schema", {})
            found.append(
                {
                    "method": method.upper(),
                    "path": path,
                    "says": operation.get("description", operation.get("summary", "")),
                    "fields": _fields(schema, described["components"]["schemas"]),
                }
            )
    return found


def _fields(schema: dict[str, Any], known: dict[str, Any]) -> list[dict[str, Any]]:
    """Name, type and meaning of each field of an object."""
    schema = _named(schema, known)
    needed = schema.get("required", [])
    return [
        {
            "name": name,
            "type": _type(each, known) + ("" if name in needed else ", may be left out"),
            "says": each.get("description", ""),
        }
        for name, each in schema.get("properties", {}).items()
    ]


def _named(schema: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return known[name] if name else schema


def _type(schema: dict[str, Any], known: dict[str, Any]) -> str:
    """A type in words."""
    if "anyOf" in schema:
        return " or ".join(_type(each, known) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if "items" in schema:
        return f"list of {_type(schema['items'], known)}"
    schema = _named(schema, known)
    if "properties" in schema:
        return f"object ({', '.join(schema['properties'])})"
    words = {"null": "nothing", "integer": "whole number", "string": "text"}
    kind = str(schema.get("type", "anything"))
    return words.get(kind, kind)
