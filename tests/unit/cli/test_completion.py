"""Shell completion of topics, partitions, groups and brokers."""

from __future__ import annotations

from types import SimpleNamespace as Of
from typing import Any

import pytest

import headrace
from headrace_core.errors import BootstrapError
from headrace_tools.cli.app import run


class Cluster:
    """An admin client of a small cluster."""

    made: list[dict[str, Any]]
    answers = True

    def __init__(self, config: dict[str, Any]) -> None:
        self.made.append(config)

    def __enter__(self) -> Cluster:
        if not self.answers:
            raise BootstrapError("no broker answered")
        return self

    def __exit__(self, *error: object) -> None: ...

    def describe_topics(self, **given: Any) -> list[Any]:
        return [Of(name=name, partitions=[Of(partition=0), Of(partition=1)]) for name in ("orders", "clicks")]

    def list_groups(self, **given: Any) -> list[Any]:
        return [Of(group_id="billing")]

    def describe_cluster(self, **given: Any) -> Any:
        return Of(brokers=[Of(broker_id=1), Of(broker_id=12)])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> type[Cluster]:
    kind = type("Cluster", (Cluster,), {"made": []})
    monkeypatch.setattr(headrace, "Admin", kind)
    monkeypatch.setenv("_HEADRACE_COMPLETE", "complete_bash")
    return kind


def completed(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    run([])
    output = capsys.readouterr()
    assert output.err == ""
    return output.out.split()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("headrace topics describe ", ["clicks", "orders"]),
        ("headrace topics delete clicks or", ["orders"]),
        ("headrace produce -t c", ["clicks"]),
        ("headrace consume -G b", ["billing"]),
        ("headrace groups describe ", ["billing"]),
        ("headrace partitions elect orders-", ["orders-0", "orders-1"]),
        ("headrace brokers drain 1", ["1", "12"]),
        ("headrace configs describe --broker ", ["1", "12"]),
        ("headrace topics create ", []),
    ],
)
def test_names_come_from_the_cluster(
    words: str,
    names: list[str],
    cluster: type[Cluster],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert completed(words, monkeypatch, capsys) == names


def test_the_cluster_is_the_one_that_the_command_line_names(
    cluster: type[Cluster], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    completed("headrace topics describe -b elsewhere:9 or", monkeypatch, capsys)
    assert cluster.made[-1]["bootstrap.servers"] == "elsewhere:9"
    assert cluster.made[-1]["bootstrap.timeout.ms"] <= 1_000
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "env:9")
    completed("headrace topics describe or", monkeypatch, capsys)
    assert cluster.made[-1]["bootstrap.servers"] == "env:9"


def test_no_cluster_is_no_message(
    cluster: type[Cluster], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.answers = False
    assert completed("headrace topics describe ", monkeypatch, capsys) == []
