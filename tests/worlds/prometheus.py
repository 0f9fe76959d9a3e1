"""Debian's Prometheus and Alertmanager beside a cluster: scrapes each second, and the rules of deploy/observe."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace_tools.local import ports
from tests.worlds.waiting import until

ROOT = Path(__file__).resolve().parents[2]
OBSERVE = ROOT / "deploy" / "observe"
PROGRAMS = ("prometheus", "prometheus-alertmanager")


def is_installed() -> bool:
    return all(shutil.which(each) for each in PROGRAMS)


def quick_rules() -> str:
    """The alert rules with short waits and ranges, and with unchanged conditions."""
    text = (OBSERVE / "alerts.yml").read_text()
    text = re.sub(r"(?m)^( +for: ).*$", r"\g<1>2s", text)
    return text.replace("[2m]", "[8s]").replace("[10m]", "[8s]").replace("[1h]", "[20s]")


class Prometheus:
    """A running Prometheus with an Alertmanager."""

    def __init__(self, port: int, alertmanager_port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.alertmanager_url = f"http://127.0.0.1:{alertmanager_port}"

    def query(self, promql: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        found = _json(f"{self.url}/api/v1/query?query={urllib.parse.quote(promql)}")
        assert found["status"] == "success", found
        return list(found["data"]["result"])

    def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        return {each["labels"]["alertname"] for each in self._alerts()}

    def _alerts(self) -> list[dict[str, Any]]:
        alerts = _json(f"{self.url}/api/v1/alerts")["data"]["alerts"]
        return [each for each in alerts if each["state"] == "firing"]

    def wait_firing(self, *names: str, within_s: float = 60.0) -> None:
        self._wait(set(names), set(), within_s)

    def wait_clear(self, *names: str, within_s: float = 60.0) -> None:
        self._wait(set(), set(names), within_s)

    def _wait(self, firing: set[str], clear: set[str], within_s: float) -> None:
        until(
            lambda: firing <= (now := self.firing()) and not clear & now,
            lambda: (
                f"wanted {sorted(firing)}, not {sorted(clear)}; firing {[each['labels'] for each in self._alerts()]}"
            ),
            within_s,
            pause_s=0.25,
        )

    def delivered(self) -> set[str]:
        """The names of the alerts that have reached Alertmanager."""
        return {each["labels"]["alertname"] for each in _json(f"{self.alertmanager_url}/api/v2/alerts")}


def _json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


@contextlib.contextmanager
def prometheus(
    nodes: Iterable[Mapping[str, Any]], directory: Path, *, security: Path | None = None
) -> Iterator[Prometheus]:
    """Run both programs until the end of the block; every node has been scraped before it. ``nodes``: rows of ``ps``.
    ``security``: the directory with the certificates of a secure cluster."""
    rows = list(nodes)
    port, alertmanager_port = ports.pick(2)
    (directory / "alerts.yml").write_text(quick_rules())
    targets = json.dumps([urllib.parse.urlsplit(node["metrics"]).netloc for node in rows])
    tls = ""
    if security is not None:
        files = f"ca_file: {security}/ca.pem, cert_file: {security}/admin.pem, key_file: {security}/admin.pem"
        tls = f"    scheme: https\n    tls_config: {{{files}}}\n"
    relabel = (OBSERVE / "prometheus.yml").read_text().partition("    metric_relabel_configs:\n")[2]
    (directory / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        "rule_files: [alerts.yml]\n"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{alertmanager_port}']}}]}}]}}\n"
        "scrape_configs:\n"
        f"  - job_name: headrace\n{tls}    static_configs: [{{targets: {targets}}}]\n"
        f"    metric_relabel_configs:\n{relabel}"
    )
    commands = (
        [
            "prometheus",
            f"--config.file={directory}/prometheus.yml",
            f"--storage.tsdb.path={directory}/tsdb",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        [
            "prometheus-alertmanager",
            f"--config.file={OBSERVE}/alertmanager.yml",
            f"--storage.path={directory}/alertmanager",
            f"--web.listen-address=127.0.0.1:{alertmanager_port}",
            "--cluster.listen-address=",
        ],
    )
    running = []
    try:
        for command in commands:
            with open(directory / f"{command[0]}.log", "w") as log:
                running.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=directory))
        found = Prometheus(port, alertmanager_port)
        _wait_ready(found, running, directory)
        # Prometheus scrapes for the first time seconds later. An event before that is in no increase().
        until(lambda: len(found.query("up == 1")) == len(rows), "every node is scraped")
        yield found
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(20)


def _wait_ready(found: Prometheus, running: list[subprocess.Popen[bytes]], directory: Path) -> None:
    deadline_s = time.monotonic() + 30
    for url in (f"{found.url}/-/ready", f"{found.alertmanager_url}/-/ready"):
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1):
                break
            logs = "".join(path.read_text() for path in directory.glob("*.log"))
            assert all(process.poll() is None for process in running), logs
            assert time.monotonic() < deadline_s, logs
            time.sleep(0.1)
