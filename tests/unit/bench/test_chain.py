"""The chain of small programs, which measures the machine without a system (bench/chain.py)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("chain")


def test_every_portion_is_acknowledged_and_received_and_the_files_are_removed(chain: Any, tmp_path: Path) -> None:
    found = chain.measure(tmp_path, size=100, every_s=0.001, count=20)
    for quantiles in found.values():
        assert 0 < quantiles["p50"] <= quantiles["p99"] <= quantiles["max"]
    assert list(tmp_path.iterdir()) == []


def test_the_processor_time_of_the_nodes_and_the_clients_is_in_the_time_of_a_portion(
    chain: Any, tmp_path: Path
) -> None:
    found = chain.measure(tmp_path, size=100, every_s=0, count=5, busy_ms=2, client_ms=1)
    assert found["acked"]["p50"] >= 1 + 2  # the sender's, then the leader's and the followers' at the same time


def test_a_process_that_cannot_write_its_file_is_named(chain: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="chain"):
        chain.measure(tmp_path / "missing", size=100, every_s=0, count=5)
