"""Shapes and types are checked at run time: beartype, where an int will do for a float.

Of functions that stand in a module or a class. One that is defined inside another is made anew at each
call, and to check it took longer than to run it. Where annotations speak of plain values alone, there
is no shape to keep in mind, and beartype alone checks.
"""

import ast
from collections.abc import Sequence
from typing import Any

import jaxtyping._import_hook as hook
import typer
from beartype import BeartypeConf, FrozenDict, beartype

# Commands ask Typer for a `typer.Context`, and get one of the class that it is derived from.
_CONTEXTS = FrozenDict({typer.Context: typer.Context.__base__})
by_types = by_shapes = beartype(conf=BeartypeConf(is_pep484_tower=True, hint_overrides=_CONTEXTS))

# What annotations are made of that hold no array, and no name that may stand for one.
_PLAIN = {"None", "bool", "bytes", "float", "int", "object", "str"}
_PLAIN |= {"Any", "Path", "PathLike", "dict", "list", "set", "tuple"}


class _Checks(hook.JaxtypingTransformer):
    """Marks what is to be checked, when a module is imported."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """A function: by shapes, by types, or not at all."""
        inner = any(isinstance(each, ast.FunctionDef) for each in self._parents)
        plain = not inner and not self._no_type_check_level and _is_plain(node)
        self._no_type_check_level += inner or plain
        made = super().visit_FunctionDef(node)
        self._no_type_check_level -= inner or plain
        if plain and not any(hook._is_no_type_check(each) for each in node.decorator_list):
            check = ast.parse("__import__('typechecking').by_types", mode="eval").body
            made.decorator_list.append(ast.copy_location(check, node))
        return made


def _is_plain(node: ast.FunctionDef) -> bool:
    hints = [each.annotation for each in ast.walk(node.args) if isinstance(each, ast.arg)]
    parts = [part for hint in (*hints, node.returns) if hint for part in ast.walk(hint)]
    return all(part.id in _PLAIN for part in parts if isinstance(part, ast.Name)) and not any(
        isinstance(part, ast.Attribute | ast.Constant) and part.value is not None for part in parts
    )


def check_at_run_time(packages: Sequence[str]) -> None:
    """Check the functions of these packages and modules, which must not have been imported."""
    hook.JaxtypingTransformer = _Checks
    hook.install_import_hook(list(packages), "typechecking.by_shapes")
