"""When tests run the blocks of pages, a command may fail only with the expected complaint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.documented_site import MAY_NAME, ONCE, Site


def followed(tmp_path: Path, said: str, code: int) -> str:
    """A page with ``headrace doctor``, which prints this output and exits with this code."""
    program = tmp_path / "bin" / "headrace"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit {code}\n")
    program.chmod(0o755)
    typed = "headrace doctor -o json          # a remark\n"
    for pattern, run in ONCE:
        typed = re.sub(pattern, run, typed, flags=re.MULTILINE)
    return Site(tmp_path, "127.0.0.1:1").bash(f"PATH={program.parent}:$PATH\n{MAY_NAME}{typed}echo went on")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("healthy: 3 brokers", 0),
        ("warning: slow syncs [disk-slow]\n    where: broker 1\n\n0 errors, 1 warning; 3 brokers", 1),
        ('{"healthy": false, "findings": [{"rule": "disk-full", "what": "full"}]}', 1),
    ],
)
def test_a_page_goes_on_where_the_machine_is_to_blame(tmp_path: Path, said: str, code: int) -> None:
    output = followed(tmp_path, said, code)
    assert said in output
    assert output.endswith("went on\n")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("error: no node of the cluster answers [no-cluster]", 1),
        ("warning: slow [disk-slow]\nerror: gone [broker-down]", 1),
        ('[{"rule": "disk-slow"}, {"rule": "min-isr"}]', 1),
        ("something", 1),
        ("no such option [disk-slow]", 2),
    ],
)
def test_a_page_ends_where_anything_else_is_wrong(tmp_path: Path, said: str, code: int) -> None:
    with pytest.raises(AssertionError, match="exit code"):
        followed(tmp_path, said, code)
