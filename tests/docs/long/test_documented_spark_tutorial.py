"""Runs the blocks of the tutorial in order, on the cluster that the tutorial starts. Only the port differs from the
page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace_tools.local import ports
from tests.docs import documented_pages as pages
from tests.docs.documented_site import Site

pytestmark = pytest.mark.timeout(480)
PAGE = "docs/tutorial.md"


def test_the_tutorial_ends_with_a_chart(tmp_path: Path) -> None:
    port = ports.pick(1)[0]
    site = Site(tmp_path, f"127.0.0.1:{port}")
    script = ["trap 'headrace down --data ./tutorial --delete >/dev/null 2>&1 || true' EXIT\n"]
    for block in pages.blocks(PAGE):
        text = block.text.replace("127.0.0.1:9095", site.address).replace(
            "headrace up ", f"headrace up --port {port} --kafka-port 0 "
        )
        script.append(pages.shell(text if block.language == "sh" else f"python - <<'END'\n{text}END\n", str(block)))
    output = site.bash("".join(script))
    assert "a first record" in output
    assert "published 30000" in output
    counted = re.search(r"'EWR': (\d+)", output)
    assert counted is not None
    assert 8_000 < int(counted[1]) < 15_000
    assert re.search(r"^counters +flights", output, re.MULTILINE)
    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG")
    assert "the data is deleted" in output
