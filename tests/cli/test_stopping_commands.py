"""Ctrl-C in a command: one line, and the exit code that shells expect."""

import os
import signal
import sys
import warnings

import pytest
from typer.testing import CliRunner

from blindstep import cli


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_ctrl_c_while_a_command_is_loaded_or_runs(name, monkeypatch):
    monkeypatch.setattr(cli, "load", lambda _: signal.raise_signal(signal.SIGINT))
    said = CliRunner().invoke(cli.app, [name])
    assert said.exit_code == 130
    assert said.stderr == (
        "blindstep: Stopped; the same command starts again, and a run that had begun goes on where "
        "it was.\n"
    )
    assert said.stdout == ""


@pytest.mark.parametrize(("code", "left"), [(130, [130]), (2, []), (0, [])])
def test_a_stopped_command_does_not_wait_for_what_still_computes(code, left, monkeypatch):
    ended = []
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(cli, "app", lambda: sys.exit(code))
    if code == 130:
        cli.main()
    else:
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == code
    assert ended == left
