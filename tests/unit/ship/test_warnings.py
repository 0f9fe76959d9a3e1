"""Warnings of ``headrace ship`` on stderr."""

from __future__ import annotations

import logging

import pytest

from headrace_tools.ship.shipper import logger, warn_on_stderr


def test_a_files_name_is_one_line_of_visible_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "handlers", [])
    warn_on_stderr()
    logger.log(logging.WARNING, "%s cannot be read", "a\nship: all is well\x1b[2J.log")
    assert capsys.readouterr().err == "ship: a\\nship: all is well\\x1b[2J.log cannot be read\n"
