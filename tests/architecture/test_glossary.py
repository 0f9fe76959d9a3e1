"""The check of identifiers finds the retired words of docs/glossary.md, and refuses no other text."""

from __future__ import annotations

from pathlib import Path

import glossary
import pytest

WORDS = {"pursuit": "leader discovery", "ShardLogic": "StateMachine"}


@pytest.mark.parametrize("line", ["def pursuit(): ...", "in_pursuit = 1", "class LostPursuit: ...", "PURSUIT_MS = 1"])
def test_a_retired_word_is_found_in_any_part_of_a_name(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.py").write_text(f"import os\n{line}\n")
    (use,) = glossary.uses(tmp_path / "a.py", WORDS)
    assert "a.py:2" in use
    assert "leader discovery" in use


@pytest.mark.parametrize(
    ("line", "found"),
    [("x: ShardLogic", 1), ("x: MyShardLogic", 0), ("# a pursuit", 0), ("x = 'pursuit'", 0), ("pursuits = 1", 0)],
)
def test_text_and_other_names_are_not_refused(tmp_path: Path, line: str, found: int) -> None:
    (tmp_path / "a.py").write_text(line + "\n")
    assert len(list(glossary.uses(tmp_path / "a.py", WORDS))) == found


def test_the_page_names_what_each_retired_word_is_called_now() -> None:
    assert glossary.retired()["pursuit"] == "leader discovery"
