"""Plans out of JSON: every value is checked against the type that its field has."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, get_type_hints

from blindstep.errors import InvalidArgument, count, finite
from blindstep.trusted import sealed_json
from blindstep.trusted.bounds import Bounds

_REMEDY = "make it anew with blindstep.plan, or restore the file that to_json wrote"


def read_fields(text: str, plan_type: type) -> dict[str, Any]:
    """The fields of a plan from the JSON that `to_json` wrote.

    Unknown names, missing ones (those with a default apart) and values of another type are refused.
    Whether the numbers make a plan is for `Plan.build` to say: it computes the privacy anew.
    """
    try:
        raw = sealed_json.parse(text)
    except ValueError as error:
        raise InvalidArgument(f"this is not a plan ({error}): {_REMEDY}.") from error
    if not isinstance(raw, dict):
        raise InvalidArgument(f"this is not a plan (it is no JSON object): {_REMEDY}.")
    names = {field.name for field in fields(plan_type)}
    needed = {field.name for field in fields(plan_type) if field.default is MISSING}
    if not needed <= raw.keys() <= names:
        missing, unknown = sorted(needed - raw.keys()), sorted(raw.keys() - names)
        raise InvalidArgument(
            f"this is not a plan (missing {missing}, unknown {unknown}): {_REMEDY}."
        )
    hints = get_type_hints(plan_type)
    return {name: _value(name, value, hints[name]) for name, value in raw.items()}


def _value(name: str, value: Any, hint: Any) -> Any:
    """The value as a field of this type has it."""
    if hint is int:
        return count(name, value)
    if hint is float or (hint == float | None and value is not None):
        return finite(name, value)
    if hint is Bounds and isinstance(value, dict) and value.keys() <= Bounds.__annotations__.keys():
        return Bounds(**{each: finite(each, number) for each, number in value.items()})
    if hint == tuple[str, ...] and isinstance(value, list):
        return tuple(_value(name, each, str) for each in value)
    if (hint == float | None) or (hint in (bool, str) and isinstance(value, hint)):
        return value
    raise InvalidArgument(f"this is not a plan ({name} cannot be {value!r}): {_REMEDY}.")
