"""bench/kafka_node.py: one warm process runs Kafka's tools one after another. A Python program replaces the JVM in this
test."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"

JVM = """
import os, sys, time
for line in sys.stdin:
    tool, *words = line.rstrip("\\n").split("\\t")
    if tool == "hang":
        time.sleep(600)
    if tool == "exit":
        sys.exit(1)
    print(os.getpid(), tool, *words)
    print("failed no such tool" if tool == "bad" else "done", flush=True)
"""


@pytest.fixture
def warmed() -> list[str]:
    return []


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, warmed: list[str]) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setenv("HEADRACE_BENCH_SETTLE", "0")

    def warm(client: Any) -> None:
        warmed.append(client.run("warm", timeout_s=30))

    found = importlib.import_module("kafka_node").WarmClient(
        lambda: [sys.executable, "-c", JVM], tmp_path / "log", warm
    )
    yield found
    found.close()


def pid_of(output: str) -> str:
    return output.split()[0]


def test_tools_run_in_one_process_which_is_warmed_up_once(client: Any, warmed: list[str]) -> None:
    first, second = (client.run("produce", "--topic", name, timeout_s=30) for name in ("a", "b"))
    assert first.split()[1:] == ["produce", "--topic", "a"]
    assert pid_of(first) == pid_of(second) == pid_of(warmed[0])
    assert len(warmed) == 1


def test_a_tool_that_fails_leaves_the_process_warm(client: Any, warmed: list[str]) -> None:
    with pytest.raises(RuntimeError, match="bad: failed no such tool"):
        client.run("bad", timeout_s=30)
    client.run("produce", timeout_s=30)
    assert len(warmed) == 1


@pytest.mark.parametrize(("tool", "timeout_s"), [("exit", 30), ("hang", 0.2)])
def test_a_process_that_ended_or_hung_is_started_and_warmed_up_again(
    client: Any, warmed: list[str], tool: str, timeout_s: float
) -> None:
    with pytest.raises(RuntimeError, match=f"{tool}: the client ended, or was not done after {timeout_s:g} s"):
        client.run(tool, timeout_s=timeout_s)
    client.run("produce", timeout_s=30)
    assert len(warmed) == 2
    assert pid_of(warmed[0]) != pid_of(warmed[1])
