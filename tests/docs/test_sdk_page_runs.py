"""Runs the two blocks of the SDK's page as they are written; only the address differs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from headrace import Admin, LocalCluster, NewTopic
from tests.docs import documented_pages as pages

PAGE = Path(__file__).parents[2] / "docs" / "sdk" / "README.md"


def test_the_first_block_of_the_sdk_page_runs_as_it_is_written(headrace_cluster: LocalCluster, tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    block = found[1]
    run_too = [
        each
        for page in pages.SDK
        if page != "docs/sdk/schemas.md"  # test_documented_registry.py runs its blocks
        for each in pages.blocks(page)
        if each.language in ("sh", "python") and not each.not_run
    ]
    assert len(run_too) == 2, "a block that nothing runs"
    assert block.count("127.0.0.1:9095") == 3
    script = tmp_path / "block.py"
    script.write_text(block.replace("127.0.0.1:9095", headrace_cluster.bootstrap_servers))
    done = subprocess.run(
        [sys.executable, "-W", "error", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[:5] == [
        "acknowledged at 0",
        "0 b'customer-7' b'one crate'",
        "1 None b'two crates'",
        "2 b'customer-8' b'three'",
        "3 b'customer-9' b'four crates'",
    ]
    again = re.fullmatch(r"read again: (\d+) records, (\d+) rows", lines[5])
    assert again is not None, done
    assert all(1 <= int(count) <= 4 for count in again.groups())


def test_the_block_about_metrics_runs_as_it_is_written(headrace_cluster: LocalCluster, tmp_path: Path) -> None:
    (block,) = (each.text for each in pages.blocks("docs/sdk/README.md") if "PrometheusCollector" in each.text)
    shown = "from prometheus_client import generate_latest, REGISTRY\nprint(generate_latest(REGISTRY).decode())\n"
    script = tmp_path / "block.py"
    script.write_text(block + shown)
    with Admin(bootstrap_servers=headrace_cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("orders", 1)])
    environment = {**os.environ, "HEADRACE_BOOTSTRAP_SERVERS": headrace_cluster.bootstrap_servers}
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "Statistics(at_ms=" in done.stdout, "the end of the with block reports once more"
    assert 'kafka_producer_record_send_total{client_id="shop"} 1.0' in done.stdout
