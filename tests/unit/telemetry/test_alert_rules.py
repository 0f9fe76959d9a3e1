"""The alert rules, their promtool tests, their runbooks and the dashboards agree with each other and the catalog.

promtool runs the rules' tests if Debian's package prometheus is installed, as in CI.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace_core.metrics import catalog
from headrace_core.metrics.model import Kind
from tools import dashboards

ROOT = Path(__file__).resolve().parents[3]
OBSERVE = ROOT / "deploy" / "observe"

#: By alert: the expression and the whole rule.
RULES = dict(
    re.findall(
        r"(?ms)^      - alert: (\w+)\n(.*?)(?=^      - alert: |^  - name: |\Z)", (OBSERVE / "alerts.yml").read_text()
    )
)
TESTS = re.split(r"(?m)^- name: ", (OBSERVE / "alerts_test.yml").read_text())[1:]
PAGE = (ROOT / "docs" / "alerts.md").read_text()
#: What operators of Kafka watch, and the alert for it.
WANTED = {
    "offline partitions": "HeadraceOfflinePartitions",
    "under-replicated partitions": "HeadraceUnderReplicatedPartitions",
    "partitions under min ISR": "HeadraceUnderMinIsr",
    "unclean elections": "HeadraceUncleanElection",
    "no controller": "HeadraceNoController",
    "quorum lag": "HeadraceQuorumLag",
    "a disk that will be full, by its slope": "HeadraceDiskFullSoon",
    "slow fsync": "HeadraceSlowFsync",
    "p99 of requests": "HeadraceSlowProduce",
    "lag": "HeadraceGroupLag",
    "STALL and STOP": "HeadraceGroupStopped",
    "hanging transactions": "HeadraceHangingTransactions",
    "expiring certificates": "HeadraceCertificateExpires",
    "clock skew": "HeadraceClockSkew",
}
#: Labels that Prometheus or the rules add.
_OTHER_LABELS = {"instance", "job", "le", "quantile"}


def test_what_operators_watch_has_an_alert() -> None:
    assert set(WANTED.values()) <= RULES.keys()


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_has_a_runbook_a_line_of_the_table_and_tests_of_both_kinds(alert: str) -> None:
    rule = RULES[alert]
    (anchor,) = re.findall(r"runbook: docs/alerts\.md#(\S+)", rule)
    assert anchor == alert.lower()
    assert f"\n## {alert}\n" in PAGE
    (severity,) = re.findall(r"severity: (\w+)", rule)
    assert re.search(rf"(?m)^\| \[{alert}\]\(#{anchor}\) \|.*\| {severity} \|$", PAGE), "the table of docs/alerts.md"
    tests = [each for each in TESTS if f"alertname: {alert}\n" in each]
    assert any("exp_alerts: []" in each for each in tests), "a test in which it is silent"
    assert any("exp_alerts:\n" in each for each in tests), "a test in which it fires"
    for each in tests:
        if "exp_alerts:\n" in each:
            assert f"severity: {severity}\n" in each
            assert f"runbook: docs/alerts.md#{anchor}" in each


def _names_of(promql: str) -> set[str]:
    return set(re.findall(r"\b(?:kafka|headrace|process|python)_[a-z0-9_]+", promql))


def _selectors_of(promql: str) -> list[tuple[str, set[str]]]:
    """(metric, labels) of the selectors with labels."""
    found = re.findall(r"\b((?:kafka|headrace|process)_[a-z0-9_]+)\{([^}]*)\}", promql)
    return [(name, set(re.findall(r"(\w+)\s*[=!]", labels))) for name, labels in found]


EXPRESSIONS = [
    *((alert, re.split(r"\n        (?:for|labels|annotations):", rule)[0]) for alert, rule in RULES.items()),
    *((f"{board}: {panel}", query) for board, panel, query in dashboards.QUERIES),
]


@pytest.mark.parametrize(("where", "promql"), EXPRESSIONS)
def test_an_expression_names_metrics_and_labels_that_exist(where: str, promql: str) -> None:
    names = _names_of(promql) | {name for name, _ in _selectors_of(promql)}
    assert names or "up{" in promql, where
    series = {
        **{metric.sample_name: metric for metric in catalog.METRICS.values()},
        **{
            f"{metric.name}_{part}": metric
            for metric in catalog.METRICS.values()
            if metric.kind in (Kind.HISTOGRAM, Kind.SUMMARY)
            for part in ("bucket", "sum", "count")
        },
    }
    for name in names:
        assert name in series, f"{where}: {name} is in no catalog"
    for name, labels in _selectors_of(promql):
        assert labels <= set(series[name].labels) | _OTHER_LABELS, f"{where}: {name}{{{labels}}}"


def test_a_rate_is_of_a_counter_and_a_quantile_of_buckets() -> None:
    """``rate`` of a gauge is meaningful only for offsets, which grow like a counter."""
    counters = {each.sample_name for each in catalog.METRICS.values() if each.kind is Kind.COUNTER}
    for where, promql in EXPRESSIONS:
        for name in re.findall(r"\b(?:rate|increase)\((\w+)", promql):
            is_counted = name in counters or name.endswith(("_bucket", "_sum", "_count", "_offset_sum"))
            assert is_counted or name.endswith("_high_watermark"), f"{where}: {name}"
        if "histogram_quantile" in promql:
            assert "_bucket" in promql, where
            assert re.search(r"by \([^)]*\ble\)", promql), where


def test_the_variables_of_a_dashboard_have_values() -> None:
    for board in dashboards.DASHBOARDS:
        for name, metric, label in board.variables:
            assert metric in catalog.METRICS, (board.name, name)
            assert label in catalog.METRICS[metric].labels or label in _OTHER_LABELS, (board.name, name)
        used = set(re.findall(r"\$(\w+)", " ".join(query for panel in board.panels for query, _ in panel.queries)))
        assert used - {"__rate_interval"} == {name for name, *_ in board.variables}, board.name


def test_generated_dashboards_have_every_query_and_replace_those_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "removed.json").write_text("{}")
    dashboards.generate(tmp_path)
    made = {path.stem: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert made.keys() == {board.name for board in dashboards.DASHBOARDS}
    assert len({each["uid"] for each in made.values()}) == len(made)
    assert sorted(dashboards.QUERIES) == sorted(
        (name, panel["title"], target["expr"])
        for name, each in made.items()
        for panel in each["panels"]
        for target in panel["targets"]
    )
    for name, each in made.items():
        cells = [
            (x, y)
            for panel in each["panels"]
            for place in [panel["gridPos"]]
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(set(cells)) == len(cells), f"{name}: panels overlap"
        assert max(x for x, _ in cells) < 24, f"{name}: wider than Grafana's grid"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool of Debian's package prometheus")
def test_promtool_agrees() -> None:
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=OBSERVE, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
