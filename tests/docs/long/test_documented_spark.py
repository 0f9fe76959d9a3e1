"""Runs the blocks of the Spark page in order, in one session, on a separate cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace import LocalCluster
from tests.docs import documented_pages as pages
from tests.docs.documented_site import Site

pytestmark = pytest.mark.timeout(480)


@pytest.fixture
def site(headrace_cluster: LocalCluster, tmp_path: Path) -> Site:
    """A topic ``orders`` with records."""
    made = Site(tmp_path, headrace_cluster.bootstrap_servers)
    made.bash("headrace topics create orders -p 6\nseq 20 | sed 's/.*/&:order &/' | headrace produce -t orders -K :")
    return made


def test_the_blocks_of_spark(site: Site, tmp_path: Path) -> None:
    """Create the topics that the page reads and writes."""
    (first_minutes,) = [block for block in pages.blocks("README.md") if "headrace_spark" in block.text]
    script = [first_minutes.text]
    found = [
        block
        for page in ("docs/spark.md", "docs/spark-exactly-once.md", "docs/spark-running.md")
        for block in pages.blocks(page)
        if not block.not_run
    ]
    for block in found:
        text = block.text.replace("/data/checkpoints", str(tmp_path / "checkpoints"))
        if block.language == "python":
            script.append(re.sub(r"^\(stream\.", "query = (stream.", text, flags=re.MULTILINE))
        else:
            script.append(f"subprocess.run({text!r}, shell=True, check=True)")
        if "spark.dataSource.register" in text:
            script.append("frame = spark.createDataFrame([('a', 'one')], ['key', 'value'])")
        if "hourly-report" in text and block.language == "python":
            script.append(
                "stream = orders.select('key', 'value')\n"
                "stream.writeStream.format('noop').trigger(availableNow=True)"
                f".option('checkpointLocation', {str(tmp_path / 'noop')!r}).start().awaitTermination()"
            )
        if "(stream." in text:
            script.append("query.processAllAvailable(); query.stop()")
    program = "import subprocess\n" + "\n".join(script).replace("127.0.0.1:9095", site.address)
    (tmp_path / "page.py").write_text(program)
    output = site.bash(f"python {tmp_path / 'page.py'}\nheadrace consume -t alarms -e -q\nheadrace topics list")
    assert "order 7" in output
    assert re.search(r"^hourly-report +orders", output, re.MULTILINE)
    assert re.search(r"^one$", output, re.MULTILINE)
    assert "orders-copy" in output
