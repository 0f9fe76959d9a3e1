"""tools/pictures.py: the recording in the README. tests/docs/test_documented_runs.py draws the other pictures."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pictures

from tests.docs import documented_pages as pages


def test_each_line_of_a_recording_is_hidden_until_its_command_has_ended() -> None:
    steps = [("0123456789", "one\ntwo\n", 2.0), ("01234", "three\n", 0.5)]  # 20 characters are typed in a second
    drawn = pictures.svg(*((command, shown) for command, shown, _ in steps), style=pictures._RECORDING_STYLE)
    styles = {
        text.text: text.attrib["style"]
        for text in ElementTree.fromstring(pictures.animated(drawn, steps)).iter("{http://www.w3.org/2000/svg}text")
        if (text.text or "").strip()
    }
    assert styles["0123456789"] == "animation:typed 0.5s steps(10) 0.5s backwards"
    assert styles["one"] == styles["two"] == "animation:hidden 3.0s"
    assert styles["01234"] == "animation:typed 0.2s steps(5) 4.0s backwards"
    assert styles["three"] == "animation:hidden 4.8s"


def test_the_recording_shows_the_commands_of_the_readme() -> None:
    typed = [line.partition("  ")[0] for block in pages.blocks("README.md")[:1] for line in block.text.splitlines()]
    assert list(pictures.RECORDED) == [line for line in typed if "headrace" in line]
    picture = (pages.ROOT / "docs" / "pictures" / "recording.svg").read_text()
    words = "".join(ElementTree.fromstring(picture).itertext()).replace("\xa0", " ")
    assert [line for line in re.findall(r"\$ (.+)", words) if line in pictures.RECORDED] == list(pictures.RECORDED)
    assert "headrace is up (3 controllers, 3 brokers, 1 coordinator" in words
    assert "<script" not in picture
