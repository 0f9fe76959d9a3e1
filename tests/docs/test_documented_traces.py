"""Runs the program of docs/traces.md: its trace reaches a collector, with the spans of the brokers."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from headrace import LocalCluster
from headrace_core.config.client_keys import PRODUCER
from headrace_core.config.server_keys import SERVER
from tests.docs import documented_pages as pages
from tests.worlds.telemetry_world import collector
from tests.worlds.waiting import until

PAGE = "docs/traces.md"
pytestmark = pytest.mark.timeout(300)


def test_the_program_of_the_page_sends_its_trace_to_the_collector() -> None:
    program = next(block.text for block in pages.blocks(PAGE) if block.language == "python")
    with collector() as collecting:
        config = {"otel.exporter.otlp.endpoint": collecting.url}
        with LocalCluster(controllers=1, brokers=3, coordinators=0, config=config) as cluster:
            environment = {
                **os.environ,
                "HEADRACE_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
                "OTEL_EXPORTER_OTLP_ENDPOINT": collecting.url,
            }
            subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120)
            until(lambda: len(collecting.spans()) >= 4, lambda: str(collecting.spans()))
            spans = collecting.spans()
    names = sorted(re.sub(r"\d+$", "P", span.name) for span in spans)
    assert names == ["append orders-P", "replicate orders-P", "replicate orders-P", "send orders"]
    assert len({span.trace_id for span in spans}) == 1


def test_the_keys_of_the_page_have_the_defaults_that_it_says() -> None:
    text = (pages.ROOT / PAGE).read_text()
    rows = re.findall(r"^\| `(otel[a-z.]+)` \| ([^|]*) \|", text, re.MULTILINE)
    assert len(rows) == 6
    for name, default in rows:
        key = PRODUCER.keys.get(name) or SERVER.keys[name]
        shown = "(none)" if key.default is None else "(empty)" if key.default == "" else str(key.default)
        assert default.lower() == shown.lower(), name
