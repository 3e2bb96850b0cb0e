"""The run-time type checker of the tests: beartype, where an int will do for a float."""

import typer
from beartype import BeartypeConf, FrozenDict, beartype

# Commands ask Typer for a `typer.Context`, and get one of the class that it is derived from.
_CONTEXTS = FrozenDict({typer.Context: typer.Context.__base__})
checked = beartype(conf=BeartypeConf(is_pep484_tower=True, hint_overrides=_CONTEXTS))
