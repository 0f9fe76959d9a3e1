"""The recording in the README shows its commands. tests/docs/test_documented_runs.py draws the other pictures."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pictures

from tests.docs import documented_pages as pages


def test_the_recording_shows_the_commands_of_the_readme() -> None:
    typed = [line.partition("  ")[0] for block in pages.blocks("README.md")[:1] for line in block.text.splitlines()]
    assert list(pictures.RECORDED) == [line for line in typed if "headrace" in line]
    picture = (pages.ROOT / "docs" / "pictures" / "recording.svg").read_text()
    words = "".join(ElementTree.fromstring(picture).itertext()).replace("\xa0", " ")
    assert [line for line in re.findall(r"\$ (.+)", words) if line in pictures.RECORDED] == list(pictures.RECORDED)
    assert "headrace is up (3 controllers, 3 brokers, 1 coordinator" in words
    assert "<script" not in picture
