"""Generate Grafana's dashboards, a JSON file for each, from the queries in this file.

tools/dashboards.py [DIR]    write them to DIR (deploy/observe/dashboards); other *.json in DIR are deleted

`make setup` and the service `dashboards` of compose.yaml run it; it needs only Python's standard library.

A dashboard consists of rows of panels. ``QUERIES`` has every query of every dashboard; tests/system/test_observe.py
runs each against a real Prometheus.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent.parent / "deploy" / "observe" / "dashboards"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24


@dataclass(frozen=True)
class Panel:
    """One panel. ``queries``: (PromQL, legend). ``red_above``: a single number is red from this value on;
    ``red_below``: a single number is also red below this value."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    red_above: float | None = None
    red_below: float | None = None


@dataclass(frozen=True)
class Dashboard:
    """One dashboard. ``variables`` maps a name to the metric and the label whose values the user can choose from."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[tuple[str, str, str], ...] = ()


def _number(title: str, query: str, *, red_above: float | None = None, red_below: float | None = None) -> Panel:
    return Panel(title, ((query, ""),), "short", "stat", 4, red_above, red_below)


def _p(share: float, metric: str, by: str, where: str = "") -> str:
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({metric}_bucket{{{where}}}[$__rate_interval])))"


_TOPIC = 'topic=~"$topic"'
_GROUP = 'consumergroup=~"$group"'
_NODE = 'instance=~"$broker"'
_RATE = "[$__rate_interval]"
_BTM = "kafka_server_brokertopicmetrics"

DASHBOARDS = (
    Dashboard(
        "cluster",
        "Headrace: cluster",
        (
            _number(
                "Active controllers",
                "sum(kafka_controller_kafkacontroller_activecontrollercount)",
                red_above=2,
                red_below=1,
            ),
            _number("Brokers", "max(kafka_brokers)"),
            _number("Fenced brokers", "max(kafka_controller_kafkacontroller_fencedbrokercount)", red_above=1),
            _number("Offline partitions", "max(kafka_controller_kafkacontroller_offlinepartitionscount)", red_above=1),
            _number("Under replicated", "sum(kafka_server_replicamanager_underreplicatedpartitions)", red_above=1),
            _number("Under min ISR", "sum(kafka_server_replicamanager_underminisrpartitioncount)", red_above=1),
            Panel("Records in", ((f'sum(rate({_BTM}_messagesin_total{{topic=""}}{_RATE}))', "records/s"),), "cps"),
            Panel(
                "Bytes in and out",
                (
                    (f'sum(rate({_BTM}_bytesin_total{{topic=""}}{_RATE}))', "in"),
                    (f'sum(rate({_BTM}_bytesout_total{{topic=""}}{_RATE}))', "out"),
                    (f"sum(rate({_BTM}_replicationbytesout_total{_RATE}))", "replication"),
                ),
                "Bps",
            ),
            Panel(
                "Produce requests: time",
                (
                    (_p(0.5, "headrace_request_seconds", "request", 'request="Produce"'), "p50"),
                    (_p(0.99, "headrace_request_seconds", "request", 'request="Produce"'), "p99"),
                ),
                "s",
            ),
            Panel("Lag of groups", (("headrace_group_lag_seconds_max", "{{consumergroup}}"),), "s"),
            Panel("Free bytes of the disks", (("headrace_log_dir_free_bytes", "{{instance}} {{dir}}"),), "bytes"),
            Panel("Processor time", ((f"rate(process_cpu_seconds_total{_RATE})", "{{instance}}"),), "percentunit"),
        ),
    ),
    Dashboard(
        "broker",
        "Headrace: broker",
        (
            Panel(
                "Records in", ((f'rate({_BTM}_messagesin_total{{topic="",{_NODE}}}{_RATE})', "{{instance}}"),), "cps"
            ),
            Panel(
                "Bytes in and out",
                (
                    (f'rate({_BTM}_bytesin_total{{topic="",{_NODE}}}{_RATE})', "in {{instance}}"),
                    (f'rate({_BTM}_bytesout_total{{topic="",{_NODE}}}{_RATE})', "out {{instance}}"),
                ),
                "Bps",
            ),
            Panel(
                "Requests",
                (
                    (
                        f"sum by (request) (rate(kafka_network_requestmetrics_requests_total{{{_NODE}}}{_RATE}))",
                        "{{request}}",
                    ),
                ),
                "reqps",
            ),
            Panel(
                "Produce: total and local time, p99",
                (
                    (
                        _p(0.99, "headrace_request_seconds", "instance", f'request="Produce",{_NODE}'),
                        "total {{instance}}",
                    ),
                    (_p(0.99, "headrace_request_local_seconds", "instance", _NODE), "local {{instance}}"),
                ),
                "s",
            ),
            Panel(
                "Flush of a disk, p99",
                ((_p(0.99, "headrace_log_fsync_seconds", "instance, dir", _NODE), "{{dir}}"),),
                "s",
            ),
            Panel(
                "Appends of a group commit, mean",
                (
                    (
                        f"rate(headrace_log_group_commit_appends_sum{{{_NODE}}}{_RATE}) / "
                        f"rate(headrace_log_group_commit_appends_count{{{_NODE}}}{_RATE})",
                        "{{instance}} {{dir}}",
                    ),
                ),
            ),
            Panel(
                "Delay of the event loop, p99",
                ((_p(0.99, "headrace_event_loop_delay_seconds", "instance", _NODE), "{{instance}}"),),
                "s",
            ),
            Panel("Memory", ((f"process_resident_memory_bytes{{{_NODE}}}", "{{instance}}"),), "bytes"),
            Panel(
                "Descriptors, part of the limit",
                ((f"process_open_fds{{{_NODE}}} / process_max_fds{{{_NODE}}}", "{{instance}}"),),
                "percentunit",
            ),
            Panel(
                "Bytes in memory",
                (
                    (f"headrace_produce_in_flight_bytes{{{_NODE}}}", "produce {{instance}}"),
                    (f"headrace_unread_answer_bytes{{{_NODE}}}", "unread answers {{instance}}"),
                ),
                "bytes",
            ),
            Panel(
                "Leaders and replicas",
                (
                    (f"kafka_server_replicamanager_leadercount{{{_NODE}}}", "leaders {{instance}}"),
                    (f"kafka_server_replicamanager_partitioncount{{{_NODE}}}", "replicas {{instance}}"),
                ),
            ),
            Panel(
                "Changes of in-sync sets",
                (
                    (f"rate(kafka_server_replicamanager_isrshrinks_total{{{_NODE}}}{_RATE})", "shrinks {{instance}}"),
                    (f"rate(kafka_server_replicamanager_isrexpands_total{{{_NODE}}}{_RATE})", "grows {{instance}}"),
                ),
                "cps",
            ),
        ),
        (("broker", "kafka_server_replicamanager_leadercount", "instance"),),
    ),
    Dashboard(
        "topics",
        "Headrace: topics",
        (
            Panel(
                "Records in",
                ((f"sum by (topic) (rate({_BTM}_messagesin_total{{{_TOPIC}}}{_RATE}))", "{{topic}}"),),
                "cps",
                width=12,
            ),
            Panel(
                "Bytes in",
                ((f"sum by (topic) (rate({_BTM}_bytesin_total{{{_TOPIC}}}{_RATE}))", "{{topic}}"),),
                "Bps",
                width=12,
            ),
            Panel(
                "Bytes out",
                ((f"sum by (topic) (rate({_BTM}_bytesout_total{{{_TOPIC}}}{_RATE}))", "{{topic}}"),),
                "Bps",
                width=12,
            ),
            Panel(
                "Bytes on disk, all replicas",
                ((f"sum by (topic) (headrace_topic_log_bytes{{{_TOPIC}}})", "{{topic}}"),),
                "bytes",
                width=12,
            ),
            Panel(
                "End of the partitions",
                ((f"kafka_topic_partition_current_offset{{{_TOPIC}}}", "{{topic}}-{{partition}}"),),
                width=12,
            ),
            Panel(
                "Records kept",
                (
                    (
                        f"sum by (topic) (kafka_topic_partition_current_offset{{{_TOPIC}}}) - "
                        f"sum by (topic) (kafka_topic_partition_oldest_offset{{{_TOPIC}}})",
                        "{{topic}}",
                    ),
                ),
                width=12,
            ),
            Panel(
                "Replicas not in sync",
                (
                    (
                        f"sum by (topic) (kafka_topic_partition_replicas{{{_TOPIC}}}) - "
                        f"sum by (topic) (kafka_topic_partition_in_sync_replica{{{_TOPIC}}})",
                        "{{topic}}",
                    ),
                ),
                width=12,
            ),
            Panel(
                "Partitions without a leader",
                ((f"headrace_topic_offline_partitions{{{_TOPIC}}}", "{{topic}}"),),
                width=12,
            ),
        ),
        (("topic", "kafka_topic_partitions", "topic"),),
    ),
    Dashboard(
        "groups",
        "Headrace: groups and lag",
        (
            Panel(
                "Lag in seconds", ((f"headrace_group_lag_seconds_max{{{_GROUP}}}", "{{consumergroup}}"),), "s", width=12
            ),
            Panel(
                "Lag in records",
                (
                    (
                        f"sum by (consumergroup, topic) (kafka_consumergroup_lag_sum{{{_GROUP}}})",
                        "{{consumergroup}} {{topic}}",
                    ),
                ),
                width=12,
            ),
            Panel(
                "Records read per second",
                (
                    (
                        "sum by (consumergroup, topic) "
                        f"(rate(kafka_consumergroup_current_offset_sum{{{_GROUP}}}{_RATE}))",
                        "{{consumergroup}} {{topic}}",
                    ),
                ),
                "cps",
                width=12,
            ),
            Panel(
                "Members",
                ((f"sum by (consumergroup) (kafka_consumergroup_members{{{_GROUP}}})", "{{consumergroup}}"),),
                width=12,
            ),
            Panel(
                "Verdict by Burrow's rules",
                ((f"headrace_group_status{{{_GROUP}}} == 1", "{{consumergroup}}: {{status}}"),),
                kind="table",
                width=12,
            ),
            Panel(
                "The ten partitions that are furthest behind",
                ((f"topk(10, headrace_group_lag_seconds{{{_GROUP}}})", "{{consumergroup}} {{topic}}-{{partition}}"),),
                "s",
                width=12,
            ),
            Panel(
                "Records lost unread", ((f"headrace_group_records_lost{{{_GROUP}}}", "{{consumergroup}}"),), width=12
            ),
            Panel(
                "Groups by state",
                (
                    ("sum(kafka_coordinator_group_groupmetadatamanager_numgroupsstable)", "stable"),
                    ("sum(kafka_coordinator_group_groupmetadatamanager_numgroupsempty)", "empty"),
                    (
                        "sum(kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance) + "
                        "sum(kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance)",
                        "in a rebalance",
                    ),
                ),
                width=12,
            ),
        ),
        (("group", "kafka_consumergroup_members", "consumergroup"),),
    ),
    Dashboard(
        "quorum",
        "Headrace: quorum",
        (
            _number("Leader", "max(kafka_server_raft_metrics_current_leader)"),
            _number("Epoch", "max(kafka_server_raft_metrics_current_epoch)"),
            _number("Voters", "max(kafka_server_raft_metrics_number_of_voters)"),
            Panel(
                "State of the controllers",
                (("kafka_server_raft_metrics_current_state_info == 1", "{{instance}}: {{state}}"),),
                kind="table",
                width=12,
            ),
            Panel("Lag in seconds", (("headrace_quorum_replica_lag_seconds", "{{kind}} {{controller}}"),), "s"),
            Panel("Lag in records", (("headrace_quorum_replica_lag_records", "{{kind}} {{controller}}"),)),
            Panel(
                "Metadata records per second",
                ((f"rate(kafka_server_raft_metrics_high_watermark{_RATE})", "{{instance}}"),),
                "cps",
            ),
            Panel(
                "Write and flush of the metadata log, p99",
                (
                    (
                        _p(0.99, "headrace_log_fsync_seconds", "instance", 'dir=~".*controller.*|.*metadata.*"'),
                        "{{instance}}",
                    ),
                ),
                "s",
            ),
            Panel(
                "Age of the metadata on the other nodes",
                (("kafka_server_broker_metadata_metrics_last_applied_record_lag_ms", "{{instance}}"),),
                "ms",
            ),
            Panel("Requests that wait for the controller", (("headrace_controller_queued_requests", "{{instance}}"),)),
            Panel(
                "Unclean elections",
                ((f"rate(kafka_controller_controllerstats_uncleanleaderelections_total{_RATE})", "{{instance}}"),),
                "cps",
            ),
        ),
    ),
    Dashboard(
        "transactions",
        "Headrace: transactions",
        (
            Panel("Transactional ids by state", (("sum by (state) (headrace_transactions)", "{{state}}"),), width=12),
            Panel(
                "Age of the oldest open transaction",
                (("max(headrace_transaction_oldest_seconds)", "age"),),
                "s",
                width=12,
            ),
            Panel(
                "Partitions with a hanging transaction",
                (("kafka_server_replicamanager_partitionswithlatetransactionscount", "{{instance}}"),),
                width=12,
            ),
            Panel("Prepared transactions", (("sum(headrace_transactions_prepared)", "prepared"),), width=12),
            Panel(
                "EndTransaction: time, p99",
                ((_p(0.99, "headrace_request_seconds", "request", 'request=~"EndTransaction|EndTxn"'), "{{request}}"),),
                "s",
                width=12,
            ),
            Panel(
                "Errors of transactional requests",
                (
                    (
                        "sum by (request, error) (rate(kafka_network_requestmetrics_errors_total"
                        f'{{request=~".*Trans.*|.*Txn.*|InitProducerId"}}{_RATE}))',
                        "{{request}} {{error}}",
                    ),
                ),
                "cps",
                width=12,
            ),
        ),
    ),
    Dashboard(
        "spark",
        "Headrace: Spark",
        (
            Panel(
                "Offsets that brokers sent to readers",
                ((f"sum by (topic) (rate(headrace_broker_records_out_total{{{_TOPIC}}}{_RATE}))", "{{topic}}"),),
                "cps",
                width=12,
            ),
            Panel(
                "Records that brokers appended",
                ((f"sum by (topic) (rate({_BTM}_messagesin_total{{{_TOPIC}}}{_RATE}))", "{{topic}}"),),
                "cps",
                width=12,
            ),
            Panel(
                "Fetch: time, p99 (with the wait for records)",
                ((_p(0.99, "headrace_request_seconds", "instance", 'request="Fetch"'), "{{instance}}"),),
                "s",
                width=12,
            ),
            Panel(
                "Transactions of exactly-once sinks",
                (("sum by (state) (headrace_transactions)", "{{state}}"),),
                width=12,
            ),
        ),
        (("topic", "kafka_topic_partitions", "topic"),),
    ),
)

#: Every query as (dashboard, panel, PromQL).
QUERIES = tuple(
    (board.name, panel.title, query) for board in DASHBOARDS for panel in board.panels for query, _ in panel.queries
)


def document(board: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana's JSON."""
    panels = []
    x = y = height = 0
    for number, panel in enumerate(board.panels, 1):
        if x + panel.width > _COLUMNS:
            x, y, height = 0, y + height, 0
        tall = 4 if panel.kind == "stat" else 8
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if panel.red_below is not None:
            steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.red_below}]
        if panel.red_above is not None:
            steps.append({"color": "red", "value": panel.red_above})
        panels.append(
            {
                "id": number,
                "title": panel.title,
                "type": panel.kind,
                "datasource": _SOURCE,
                "gridPos": {"x": x, "y": y, "w": panel.width, "h": tall},
                "fieldConfig": {
                    "defaults": {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
                    "overrides": [],
                },
                "targets": [
                    {
                        "refId": chr(ord("A") + index),
                        "expr": query,
                        "legendFormat": legend,
                        "datasource": _SOURCE,
                        "instant": panel.kind == "table",
                    }
                    for index, (query, legend) in enumerate(panel.queries)
                ],
            }
        )
        x, height = x + panel.width, max(height, tall)
    choices = [
        {
            "name": name,
            "type": "query",
            "datasource": _SOURCE,
            "query": f"label_values({metric}, {label})",
            "definition": f"label_values({metric}, {label})",
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "refresh": 2,
            "sort": 1,
            "current": {"text": "All", "value": "$__all"},
        }
        for name, metric, label in board.variables
    ]
    return {
        "uid": f"headrace-{board.name}",
        "title": board.title,
        "tags": ["headrace"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}, *choices]},
        "links": [{"type": "dashboards", "tags": ["headrace"], "title": "Headrace", "asDropdown": True}],
        "panels": panels,
    }


def generate(directory: Path) -> None:
    """Write every dashboard to ``directory``, and delete dashboards of other versions there."""
    directory.mkdir(parents=True, exist_ok=True)
    made = {directory / f"{board.name}.json": document(board) for board in DASHBOARDS}
    for path, content in made.items():
        path.write_text(json.dumps(content, indent=1) + "\n")
    for path in set(directory.glob("*.json")) - made.keys():
        path.unlink()


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HOME)
