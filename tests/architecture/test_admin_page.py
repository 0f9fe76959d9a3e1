"""docs/sdk/admin.md and the class Admin name the same calls."""

from __future__ import annotations

import re
from pathlib import Path

from headrace import Admin

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sdk" / "admin.md"


def test_the_page_names_every_call_and_no_other() -> None:
    calls = {name for name, value in vars(Admin).items() if callable(value) and name[0] != "_"} - {"close"}
    named = set(re.findall(r"`(?:admin\.)?([a-z_]+)\(", PAGE.read_text()))
    assert not calls - named, f"{calls - named}: describe these calls in docs/sdk/admin.md"
    assert not named - calls, f"{named - calls}: the class Admin has no such calls; correct docs/sdk/admin.md"
