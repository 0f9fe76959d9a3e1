"""Debian's Prometheus and Alertmanager against 3 controllers, 3 brokers, 2 coordinators and a registry.

Every query of every dashboard and rule returns data, and alerts fire on real faults and clear after them. CI runs this
file (step ``observe``); it needs the packages prometheus and prometheus-alertmanager."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace.errors import HeadraceError
from headrace_core.testing.verdicts import NotInTimeError
from headrace_tools.certs.authority import Authority
from headrace_tools.local import ports
from tests.worlds.broker_world import Cluster as TwoNodes
from tests.worlds.waiting import until
from tools import dashboards

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


pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not is_installed(), reason="needs Debian's prometheus and prometheus-alertmanager"),
]

#: Queries of kafka_exporter's overview dashboard (7589 on grafana.com). $instance, $topic and the range are filled in.
EXPORTER_OVERVIEW = (
    "sum(kafka_brokers)",
    'sum(rate(kafka_topic_partition_current_offset{instance=~"headrace",topic=~".*"}[8s])) by (topic)',
    'sum(delta(kafka_topic_partition_current_offset{instance=~"headrace",topic=~".*"}[8s])/5) by (topic)',
    'sum(kafka_consumergroup_lag{instance="headrace",topic=~".*"}) by (consumergroup, topic)',
    'sum(delta(kafka_consumergroup_current_offset{instance=~"headrace",topic=~".*"}[8s])/5) by (consumergroup, topic)',
    'sum by(topic) (kafka_topic_partitions{instance=~"headrace",topic=~".*"})',
)
#: Metrics that have rows only where TLS is on.
_ONLY_SECURE = ("headrace_certificate_not_after_seconds",)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(controllers=3, brokers=3, coordinators=2, kafka=True, registries=1) as running:
        yield running


@pytest.fixture(scope="module")
def observed(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with prometheus(cluster.ps(), Path(tmp_path_factory.mktemp("prometheus"))) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as client:
        client.create_topics(
            [
                NewTopic("safe", partitions=3, replication_factor=3),
                NewTopic("strict", partitions=3, replication_factor=3, config={"min.insync.replicas": "3"}),
                NewTopic("single", partitions=3, replication_factor=1),
            ]
        )
        yield client


@contextlib.contextmanager
def _repeated(work: Callable[[], None], every_s: float = 0.05) -> Iterator[None]:
    """Call ``work`` again and again in a thread during the block; errors of the cluster are part of the faults."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(every_s):
            with contextlib.suppress(HeadraceError):
                work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


@contextlib.contextmanager
def _load(cluster: LocalCluster, topic: str, size: int = 100) -> Iterator[None]:
    """Send records of ``size`` bytes to the three partitions during the block, and wait for their answers each time."""

    def send() -> None:
        sent = [producer.send(topic, value=b"x" * size, partition=number) for number in range(3)]
        for each in sent:
            each.result(timeout=30)

    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer, _repeated(send, 0.02):
        yield


def _until_data(observed: Prometheus, query: str, within_s: float = 30.0) -> None:
    until(lambda: observed.query(query), f"data of {query}", within_s, pause_s=0.25)


def test_every_query_returns_data(cluster: LocalCluster, observed: Prometheus, admin: Admin) -> None:
    group = Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id="readers", auto_offset_reset="earliest")

    def transact() -> None:
        with Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="queries") as producer:
            with producer.transaction():
                producer.send("safe", value=b"x")
            with contextlib.suppress(HeadraceError):
                admin.abort_transaction("nobody")  # so that a request of transactions fails

    with group, _load(cluster, "safe"), _repeated(transact, 0.5):
        group.subscribe(["safe"])
        with _repeated(lambda: bool(group.poll(timeout=0.1)) and group.commit()):
            for board, panel, query in dashboards.QUERIES:
                filled = re.sub(r"\$(topic|group|broker)", ".*", query).replace("$__rate_interval", "8s")
                try:
                    _until_data(observed, filled)
                except NotInTimeError as error:
                    raise NotInTimeError(f"{board}: {panel}: {error}") from None
            for query in EXPORTER_OVERVIEW:
                _until_data(observed, query)
            rules = (OBSERVE / "alerts.yml").read_text()
            for name in sorted(set(re.findall(r"\b(?:kafka|headrace)_[a-z0-9_]+", rules)) - set(_ONLY_SECURE)):
                _until_data(observed, name)
    assert observed.query("count(up == 1)")[0]["value"][1] == str(len(cluster.ps()))


def test_a_dead_broker(cluster: LocalCluster, observed: Prometheus, admin: Admin) -> None:
    alerts = (
        "HeadraceNodeDown", "HeadraceUnderReplicatedPartitions", "HeadraceUnderMinIsr", "HeadraceOfflinePartitions"
    )  # fmt: skip
    observed.wait_clear(*alerts)
    with cluster.killed("broker", 2):
        observed.wait_firing(*alerts, within_s=90)
        until(lambda: set(alerts) <= observed.delivered())
    observed.wait_clear(*alerts, within_s=90)


def test_an_unclean_election(cluster: LocalCluster, observed: Prometheus, admin: Admin) -> None:
    """Broker 3 lacks records that broker 2 has acknowledged, and leads while broker 2 is dead."""
    part = TopicPartition("lossy", 0)
    admin.create_topics([NewTopic("lossy", assignments={0: [2, 3]}, config={"min.insync.replicas": "1"})])
    observed.wait_clear("HeadraceUncleanElection")
    try:
        with cluster.killed("broker", 3):
            with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
                producer.send("lossy", value=b"lost", partition=0).result(timeout=30)
            cluster.kill("broker", 2)
        until(lambda: admin.elect_leaders("unclean", [part])[part] is None)
        observed.wait_firing("HeadraceUncleanElection")
    finally:
        cluster.restart("broker", 2)
    observed.wait_clear("HeadraceUncleanElection")
    with Consumer(bootstrap_servers=cluster.bootstrap_servers) as consumer:
        assert consumer.end_offsets([part])[part] == 0, "the acknowledged record is lost: the alert is right"


def test_dead_controllers(cluster: LocalCluster, observed: Prometheus, admin: Admin) -> None:
    observed.wait_clear("HeadraceQuorumLag", "HeadraceNoController")
    leader = admin.describe_cluster().controller_id
    first, second = [number for number in (1, 2, 3) if number != leader]
    with cluster.killed("controller", first):
        observed.wait_firing("HeadraceQuorumLag")
        with cluster.killed("controller", second):
            observed.wait_firing("HeadraceNoController")
        observed.wait_clear("HeadraceNoController")
    observed.wait_clear("HeadraceQuorumLag")


def test_a_slow_follower(cluster: LocalCluster, observed: Prometheus, admin: Admin) -> None:
    """A broker that stands still for 0.4 s again and again, and stays in sync: acks=all waits for it."""
    over_s = time.monotonic() + 60
    with _load(cluster, "safe"):
        while "HeadraceSlowProduce" not in observed.firing():
            if time.monotonic() >= over_s:
                raise NotInTimeError("slow requests raised no alert")
            cluster.pause("broker", 3)
            time.sleep(0.4)
            cluster.resume("broker", 3)
            time.sleep(0.1)
        observed.wait_clear("HeadraceSlowProduce")


def test_a_disk_that_fills(cluster: LocalCluster, observed: Prometheus, admin: Admin) -> None:
    observed.wait_clear("HeadraceDiskFullSoon", within_s=120)
    with _load(cluster, "single", 100_000):
        observed.wait_firing("HeadraceDiskFullSoon")
    observed.wait_clear("HeadraceDiskFullSoon", within_s=120)


def test_groups_that_lag_and_stall(cluster: LocalCluster, observed: Prometheus, admin: Admin) -> None:
    part = TopicPartition("single", 0)
    with (
        Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
        Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id="held", enable_auto_commit=False) as consumer,
    ):
        for _ in range(20):
            producer.send("single", value=b"x", partition=0)
        producer.flush(timeout=30)
        consumer.subscribe(["single"])
        consumer.poll(timeout=10)
        end = consumer.end_offsets([part])[part]
        with _repeated(lambda: consumer.commit({part: end - 10}), 1.1):
            observed.wait_firing("HeadraceGroupStopped", "HeadraceGroupLag", within_s=120)
        consumer.commit({part: 0})
        admin.delete_records({part: 10})
        observed.wait_firing("HeadraceGroupRecordsLost")
        consumer.commit({part: end})
        observed.wait_clear("HeadraceGroupStopped", "HeadraceGroupLag", "HeadraceGroupRecordsLost")


def test_a_hanging_transaction(cluster: LocalCluster, observed: Prometheus, admin: Admin) -> None:
    an_hour_ago_ms = time.time_ns() // 1_000_000 - 3_600_000
    with Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="hangs") as producer:
        with contextlib.suppress(LookupError), producer.transaction():
            producer.send("safe", value=b"x", partition=0, timestamp_ms=an_hour_ago_ms)
            producer.flush(timeout=30)
            observed.wait_firing("HeadraceHangingTransactions")
            raise LookupError
        observed.wait_clear("HeadraceHangingTransactions")


def test_a_certificate_that_expires(tmp_path: Path) -> None:
    """A secure cluster: the nodes read a renewed certificate while they run."""
    with LocalCluster(controllers=1, brokers=1, coordinators=1, secure=True) as cluster:
        security = cluster.directory / "security"
        with prometheus(cluster.ps(), tmp_path, security=security) as observed:
            for name in _ONLY_SECURE:
                _until_data(observed, name)
            observed.wait_clear("HeadraceCertificateExpires")
            Authority(security).renew(security / "broker-1.pem", days=5)
            observed.wait_firing("HeadraceCertificateExpires")
            assert len(observed.query("headrace_certificate_not_after_seconds - time() < 14 * 86400")) == 1
            Authority(security).renew(security / "broker-1.pem", days=365)
            observed.wait_clear("HeadraceCertificateExpires")
            assert observed.query("count(up == 1)")[0]["value"][1] == str(len(cluster.ps()))


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_disk_that_is_slow_and_fails_and_a_clock_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker with two directories, and a library (observed_faults.c) between it and the kernel."""
    library, faults = tmp_path / "faults.so", tmp_path / "faults"
    faults.mkdir()
    source = Path(__file__).with_name("observed_faults.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"], check=True)
    monkeypatch.setenv("OBSERVED_FAULTS", str(faults))
    keys = {
        "log.dirs": f"{tmp_path}/first,{tmp_path}/second",
        "metrics.listener": f"http://127.0.0.1:{ports.pick(1)[0]}",
    }
    with TwoNodes(tmp_path / "cluster", **keys) as nodes:
        nodes.broker.terminate()
        with monkeypatch.context() as loaded:  # the broker alone, not the Prometheus that measures its clock
            loaded.setenv("LD_PRELOAD", str(library))
            nodes.restart()
        assert nodes.broker.state is not None
        assert nodes.controller.state is not None
        rows = [{"metrics": each.state.metrics} for each in (nodes.broker, nodes.controller) if each.state]
        with prometheus(rows, tmp_path) as observed:
            alerts = ("HeadraceClockSkew", "HeadraceSlowFsync", "HeadraceDirectoryOffline")
            _until_data(observed, "headrace_log_dir_offline == 0")
            observed.wait_clear(*alerts)

            (faults / "clock").write_text("5")
            observed.wait_firing("HeadraceClockSkew")
            (faults / "clock").unlink()
            observed.wait_clear("HeadraceClockSkew")

            nodes.topic("t", 4)
            with (
                Producer(
                    bootstrap_servers=nodes.broker.address(), request_timeout_ms=2_000, delivery_timeout_ms=5_000
                ) as producer,
                _repeated(lambda: _send_to_all(producer, "t", 4)),
            ):
                (faults / "slow").write_text("150")
                observed.wait_firing("HeadraceSlowFsync")
                (faults / "slow").unlink()
                observed.wait_clear("HeadraceSlowFsync")
                (faults / "fail").write_text(f"{tmp_path}/second/")
                observed.wait_firing("HeadraceDirectoryOffline")
            (faults / "fail").unlink()
            nodes.broker.terminate()
            nodes.restart()
            observed.wait_clear(*alerts)


def _send_to_all(producer: Producer, topic: str, partitions: int) -> None:
    for each in [producer.send(topic, value=b"x", partition=number) for number in range(partitions)]:
        each.result(timeout=30)


def test_lag_in_seconds_is_the_age_of_the_first_unread_record(
    cluster: LocalCluster, observed: Prometheus, admin: Admin
) -> None:
    """A consumer that commits what is HELD_S old: the metric is within 10 %."""
    held_s, part = 10.0, TopicPartition("timed", 0)
    admin.create_topics([NewTopic("timed", partitions=1, replication_factor=3)])
    sent_s: list[float] = []  # when the record at each offset was sent
    with (
        Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=0) as producer,
        Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id="timed", enable_auto_commit=False) as consumer,
    ):
        consumer.assign([part])
        seen: list[float] = []
        over_s = time.monotonic() + 3 * held_s
        while time.monotonic() < over_s:
            producer.send("timed", value=b"x", partition=0).result(timeout=10)
            sent_s.append(time.monotonic())
            first_unread = next((n for n, at in enumerate(sent_s) if at > time.monotonic() - held_s), 0)
            if first_unread and len(sent_s) % 5 == 0:
                consumer.commit({part: first_unread})
            if time.monotonic() > over_s - held_s and len(sent_s) % 10 == 0:
                found = observed.query('headrace_group_lag_seconds_max{consumergroup="timed"}')
                seen.append(float(found[0]["value"][1]))
            time.sleep(0.05)
    seen.sort()
    middle = seen[len(seen) // 2]
    assert abs(middle - held_s) <= 0.1 * held_s, seen
