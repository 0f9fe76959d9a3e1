"""Runs the blocks of the page about columns with a schema registry, in order, in one session, on a separate cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace import LocalCluster
from tests.docs import documented_pages as pages
from tests.docs.documented_site import Site

pytestmark = pytest.mark.timeout(480)

PAGE = "docs/spark-schemas.md"
#: After the page's first block: a record that is no Avro, which must become a dead letter.
BAD = """
from headrace import Producer

with Producer(bootstrap_servers="127.0.0.1:9095") as producer:
    producer.send("orders", b"{} is no Avro")
"""


def test_the_blocks_of_columns_with_schemas(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, registries=1) as cluster:
        site = Site(tmp_path, cluster.bootstrap_servers)
        site.bash("headrace topics create orders -p 2\nheadrace topics create orders-clean -p 2")
        first, *others = [block for block in pages.blocks(PAGE) if block.language == "python" and not block.not_run]
        program = "\n".join([first.text, BAD, *[each.text for each in others]])
        program = program.replace("/data/checkpoints", str(tmp_path / "checkpoints"))
        program = program.replace("127.0.0.1:9095", site.address).replace(
            "http://127.0.0.1:8081", cluster.registry_urls
        )
        (tmp_path / "page.py").write_text(program)
        output = site.bash(
            f"python {tmp_path / 'page.py'}\n"
            "headrace consume -t orders-clean -e -q -f '%o\\n' | wc -l\n"
            "headrace consume -t orders.dead-letters -e -q -f '%h\\n'"
        )
    assert re.search(r"^\|\s*995\|\s*c-7\|$", output, re.MULTILINE)
    assert "[{'id': 1, 'customer': 'c-7'}]" in output
    assert re.search(r"^1000$", output, re.MULTILINE)
    assert "the first byte is 123, not the magic byte 0" in output
