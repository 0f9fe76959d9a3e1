"""Runs the blocks of pages that create clusters, as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace_tools.local import ports
from tests.docs import documented_pages as pages
from tests.docs.documented_site import Site, about_disks

pytestmark = pytest.mark.timeout(480)


def test_a_broker_with_several_disks_as_the_page_says(tmp_path: Path) -> None:
    disks = [block for block in pages.blocks("docs/operations/disks.md") if about_disks(block)]
    kinds = [(block.heading, block.language) for block in disks]
    several = "A broker with several disks"
    assert kinds == [("Disks", "sh"), *((several, kind) for kind in ("properties", "properties", "sh", "sh", "sh"))]
    moves, controller, broker, format_both, start_both, format_new = [block.text for block in disks]
    free = dict(zip(("9094", "19094", "9095", "19095"), map(str, ports.pick(4)), strict=True))

    def here(text: str) -> str:
        text = re.sub(r"\b(9094|19094|9095|19095)\b", lambda found: free[found[1]], text)
        return re.sub(r"/disk(\d)", lambda found: str(tmp_path / f"disk{found[1]}"), text)

    for name, text in (("controller", controller), ("broker", broker)):
        (tmp_path / f"{name}.properties").write_text(here(text))
    start_controller, start_broker = here(start_both).splitlines()
    site = Site(tmp_path, f"127.0.0.1:{free['9095']}")
    output = site.bash(
        "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n"
        "served() { for _ in $(seq 100); do headrace log-dirs describe && return; done 2>/dev/null; false; }\n"
        f"{here(format_both)}"
        f"{start_controller} >controller.log 2>&1 &\n{start_broker} >broker.log 2>&1 & BROKER=$!\n"
        f"served\nheadrace topics create orders -p 2 -r 1\n{here(moves)}"
        "echo 'one more disk'\nkill $BROKER; wait $BROKER || true\n"
        f"sed -i 's|^log.dirs=.*|&,{tmp_path}/disk3/headrace/broker|' broker.properties\n"
        f"{here(format_new)}{start_broker} >broker.log 2>&1 &\nserved\n"
    )
    before, after = output.split("one more disk")
    assert f"moved orders-0 on broker 1 to {tmp_path}/disk2" in before
    assert f"{tmp_path}/disk3/headrace/broker" not in before
    assert f"{tmp_path}/disk3/headrace/broker" in after


def test_the_page_of_a_cluster_in_your_tests(tmp_path: Path) -> None:
    found = [block for block in pages.blocks("docs/embedding.md") if not block.not_run]
    assert [block.language for block in found] == ["python", "ini", "python", "python"]
    first, configuration, own_cluster, without_pytest = [block.text for block in found]
    (tmp_path / "test_pasted.py").write_text(f"import pytest\n\n{first}\n\n{own_cluster}")
    (tmp_path / "pytest.ini").write_text(configuration)
    (tmp_path / "pasted.py").write_text(without_pytest)
    site = Site(tmp_path, "")
    output = site.bash("python -m pytest -q -p no:cacheprovider test_pasted.py\npython pasted.py")
    assert "2 passed" in output
