"""Runs the shell and Python blocks of the pages unchanged and in their order, on one cluster of three brokers.

Two things differ from what a reader does: the tests use a free port, and commands that would run forever print once. A
block that says ``not run`` says why, and which test runs it instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headrace_tools.local import ports
from tests.docs import documented_pages as pages
from tests.docs.documented_site import Site, about_disks

pytestmark = pytest.mark.timeout(480)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three brokers in ``./cluster``, a topic ``orders`` with records, a group ``billing`` that has read them."""
    port = ports.pick(1)[0]
    made = Site(tmp_path_factory.mktemp("pages"), f"127.0.0.1:{port}")
    try:
        made.bash(
            f"headrace up --data ./cluster --port {port} --kafka-port 0 -d\n"
            "headrace topics create orders -p 6\n"
            "seq 20 | sed 's/.*/&:order &/' | headrace produce -t orders -K :\n"
            "headrace consume -q -G billing orders -e"
        )
        yield made
    finally:
        made.bash("headrace down --data ./cluster --delete")


def test_the_page_of_the_command_line(site: Site) -> None:
    output = site.follow(*pages.CLI)
    assert "bootstrap.servers=stage-1:9095,stage-2:9095" in output
    assert "current profile: local" in output
    assert (site.directory / "before.csv").read_text().count("orders,") == 6
    assert not list((site.directory / "profiles").glob("staging*"))


def test_the_page_of_operations(site: Site) -> None:
    output = site.follow(*pages.OPERATIONS, but=about_disks)
    assert re.search(r"^BROKER +ADDRESS", output, re.MULTILINE)
    assert "no damage" in output


def test_the_page_for_those_who_come_from_kafka(site: Site) -> None:
    output = site.follow("docs/migrating.md")
    assert "b'one crate'" in output


def test_the_pictures_are_what_our_commands_show_of_a_cluster(site: Site, tmp_path: Path) -> None:
    tool = pages.ROOT / "tools" / "pictures.py"
    site.bash(f"python {tool} --bootstrap {site.address} --to {tmp_path}")
    shown = {"top": "UNDER\xa0REPLICATED", "topics": "LEADER\xa0EPOCH", "groups": "LOG\xa0END\xa0OFFSET"}
    for name, heading in shown.items():
        words = "".join(ElementTree.parse(tmp_path / f"{name}.svg").getroot().itertext())
        assert heading in words
        assert "orders" in words
        assert f"headrace\xa0{name}" in words
    committed = pages.ROOT / "docs" / "pictures"
    assert {path.stem for path in committed.glob("*.svg")} == {*shown, "recording", "trace"}
    for path in committed.glob("*.svg"):
        text = path.read_text()
        assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"], "it loads from another host"
        assert len(text) < 40_000


def test_some_page_shows_each_picture() -> None:
    text = "".join(path.read_text() for path in [pages.ROOT / "README.md", *(pages.ROOT / "docs").rglob("*.md")])
    for path in (pages.ROOT / "docs" / "pictures").iterdir():
        assert f"pictures/{path.name})" in text
