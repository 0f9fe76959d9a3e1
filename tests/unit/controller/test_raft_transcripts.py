"""Transcripts: each file in raft_transcripts/ is a script with its output. The transcripts also show how Headrace's
Raft works.

After an intended change of Raft, ``HEADRACE_RECORD=1 pytest tests/unit/controller/test_raft_transcripts.py`` rewrites
the files; review the difference. raft_teller.py has the commands.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.controller.raft_teller import Teller

HERE = Path(__file__).parent / "raft_transcripts"


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_a_script_leads_to_its_transcript(path: Path) -> None:
    recorded = path.read_text()
    story, _, _ = recorded.partition("\n> ")
    commands = [line[2:] for line in recorded.splitlines() if line.startswith("> ")]
    assert commands, f"{path.name} has no commands"
    transcript = f"{story.rstrip()}\n\n{Teller().run(commands)}"
    if os.environ.get("HEADRACE_RECORD"):
        path.write_text(transcript)
    assert transcript == recorded
