"""Options of the command line for all methods, made from their fields: names, types, words and checks.

A field that is added to a method is an option of `plan`, `train` and `audit`, and nothing here changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, get_args, get_origin

import typer

from blindstep.cli import WHOLE
from blindstep.errors import InvalidArgument
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.directions import SAMPLERS
from blindstep.optimize.learners import Learner, learner_named
from blindstep.planning.auto import Auto
from blindstep.planning.method import (
    MechanismName,
    Method,
    SamplerName,
    field_types,
    one_of,
    words_of,
)
from blindstep.planning.paper import Klt, Paper
from blindstep.planning.tight import Tight
from blindstep.private.mechanisms import MECHANISMS

METHODS: dict[str, type[Method]] = {each.name: each for each in (Auto, Tight, Paper, Klt)}
# What bounds are on the command line.
_OF_BOUNDS = {"clip": float, "diff_clip": float}
_NAMES: dict[Any, Mapping[str, Any]] = {SamplerName: SAMPLERS, MechanismName: MECHANISMS}


def with_choices(
    command: Callable[..., None], also: Callable[..., None] | None = None
) -> Callable[..., None]:
    """The command, whose `**choices` are an option for each field of each method.

    With another command they are all of that one's options, none of which is required.
    """
    every = inspect.signature(command, eval_str=True).parameters.values()
    own = [each for each in every if each.kind is not each.VAR_KEYWORD]
    names = {parameter.name for parameter in own}
    others = _parameters() if also is None else inspect.signature(also).parameters.values()
    more = [each for each in others if each.name not in names]
    if also is not None:
        more = [each.replace(default=None) if each.default is each.empty else each for each in more]
    everything = sorted([*own, *more], key=lambda each: each.default is not each.empty)
    shown: Any = command
    shown.__signature__ = inspect.Signature(
        [each.replace(kind=each.KEYWORD_ONLY) for each in everything]
    )
    shown.__annotations__ = {each.name: each.annotation for each in everything}
    return command


def method_from(choices: Mapping[str, Any]) -> Method:
    """The method that the options describe: unnamed, `tight` if there is a radius, else `auto`."""
    given = {name: value for name, value in choices.items() if value is not None}
    name = method_name(given)
    given.pop("method", None)
    kind = METHODS[name]
    own = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]
    known = {*own, *_OF_BOUNDS} if "bounds" in own else set(own)
    if others := {each: value for each, value in given.items() if each not in known}:
        _refuse(name, kind, others)
    if parts := {each: given.pop(each) for each in _OF_BOUNDS if each in given}:
        if "clip" not in parts and "bounds" not in given:
            raise InvalidArgument(
                f"--diff-clip {parts['diff_clip']:g} needs --clip too: give both."
            )
        given["bounds"] = given.get("bounds", Bounds()) & Bounds(**parts)
    missing = [each for each, usual in own.items() if usual is MISSING and each not in given]
    if missing:
        listed = ", ".join(_option(each) for each in missing)
        raise InvalidArgument(f"method {name} needs {listed}: give them, or another --method.")
    if "learner" in given:
        given["learner"] = learner_named(given["learner"])
    return kind(**given)


def method_name(choices: Mapping[str, Any]) -> str:
    """The name of the method that the options ask for."""
    if choices.get("method") is not None:
        one_of("method", choices["method"], METHODS)
        return choices["method"]
    return Auto.name if choices.get("radius") is None else Tight.name


def _refuse(name: str, kind: type[Method], others: dict[str, Any]) -> None:
    """Raise: a length or a bound that was given would count for nothing, silently."""
    if "bounds" in others:
        bounds = others.pop("bounds").in_force
        others = {each: bounds[each] for each in _OF_BOUNDS if each in bounds} | others
    listed = ", ".join(f"{_option(each)} {value}" for each, value in others.items())
    if kind is Auto:
        raise InvalidArgument(
            f"{listed}: a run that finds its own scales takes no such choice. Leave it out, or give "
            "--radius, and no --method auto, for a plan in units of the parameters."
        )
    remedy = "Leave it out, or use --method tight."
    raise InvalidArgument(f"{listed}: method {name} takes no such choice. {remedy}")


def _parameters() -> list[inspect.Parameter]:
    """An option for each field of each method, in order; the first that has it describes it."""
    said: dict[str, tuple[Any, str]] = {}
    having: dict[str, list[str]] = {}
    for name, kind in METHODS.items():
        words = words_of(kind)
        for each, hint in field_types(kind).items():
            for option, type_, text in _options_of(each, hint, words[each]):
                said.setdefault(option, (type_, text))
                having.setdefault(option, []).append(name)
    listed = f"One of: {', '.join(METHODS)}. Default: tight with --radius, else auto."
    made = [_parameter("method", str, listed, None)]
    for option, (type_, text) in said.items():
        every = having[option] == list(METHODS)
        panel = None if "auto" in having[option] else "For a plan in units of the parameters"
        which = "" if every else f" ({', '.join(having[option])})"
        made.append(_parameter(option, type_, f"{text}{which}", panel))
    return made


def _options_of(name: str, hint: Any, words: str) -> list[tuple[str, Any, str]]:
    """The options of a field: their names, types and words."""
    text = words[0].upper() + words[1:]
    if hint is Bounds:
        said = {each: text.partition(". ")[0] for each, text in words_of(Bounds).items()}
        said = {each: text[0].upper() + text[1:].rstrip(".") + "." for each, text in said.items()}
        return [(each, type_, said[each]) for each, type_ in _OF_BOUNDS.items()]
    if hint is Learner:
        return [(name, str, text)]
    if hint in _NAMES:
        return [(name, str, f"{text} One of: {', '.join(_NAMES[hint])}.")]
    if get_origin(hint) is not Annotated and get_args(hint):  # a Literal
        return [(name, str, f"{text} One of: {', '.join(get_args(hint))}.")]
    return [(name, hint, text)]


def _parameter(name: str, type_: Any, words: str, panel: str | None) -> inspect.Parameter:
    read = WHOLE if type_ is int else {}
    option = typer.Option(_option(name), help=words, rich_help_panel=panel, **read)
    kind, annotation = inspect.Parameter.KEYWORD_ONLY, Annotated[type_ | None, option]
    return inspect.Parameter(name, kind, default=None, annotation=annotation)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
