"""The program ``python -m headrace_gateway``."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from confluent_kafka.admin import AdminClient

from headrace import LocalCluster
from headrace_core.node.state_file import read_state
from tests.worlds.gateways import gateway_config
from tests.worlds.waiting import WAIT_S, until


def test_a_gateway_serves_until_sigterm_and_stops_cleanly(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, mode="inprocess") as cluster:
        config = gateway_config(cluster)
        keys = {key: ",".join(value) if isinstance(value, list) else str(value) for key, value in config.given.items()}
        file = tmp_path / "gateway.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        process = subprocess.Popen([sys.executable, "-m", "headrace_gateway", "--config", str(file)])
        try:
            state = until(lambda: process.poll() is None and read_state(config.state_file))
            assert (state.role, state.node_id, state.pid) == ("gateway", 1, process.pid)
            admin = AdminClient({"bootstrap.servers": state.listeners["PLAINTEXT"]})
            assert list(admin.list_topics(timeout=20).brokers) == [1]
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
            assert read_state(config.state_file) is None
        finally:
            process.kill()
            process.wait()
