"""Log lines as JSON (``log.format=json``)."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from headrace_core.errors import InvalidConfigError
from headrace_core.node import run
from headrace_core.node.config import NodeConfig
from headrace_core.node.logs import JsonFormatter, TextFormatter
from headrace_core.telemetry import Emitter, IsrShrunk, log_events
from headrace_core.types import TopicPartition


class Log:
    """A logger whose lines are JSON in memory."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        handler = logging.StreamHandler(self.stream)
        handler.setFormatter(JsonFormatter({"role": "broker", "node_id": 3}))
        self.logger = logging.Logger("headrace.test", logging.DEBUG)
        self.logger.addHandler(handler)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


def test_a_line_is_one_object_with_the_node() -> None:
    log = Log()
    log.logger.warning("disk %s is full\nsecond line", "é")
    (line,) = log.lines()
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "headrace.test",
        "message": "disk é is full\nsecond line",
        "role": "broker",
        "node_id": 3,
    }


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_a_name_that_a_client_has_chosen_begins_no_line_and_moves_no_cursor(formatter: logging.Formatter) -> None:
    name = "g\n2026-01-02 03:04:05,678 ERROR   faked\r\x1b[31m\x9b2J\u202e\u2028\ud800"
    record = logging.LogRecord("headrace.test", logging.INFO, "f.py", 1, "group %s", (name,), None)
    line = formatter.format(record)
    assert line.isprintable()
    assert "\\n2026-01-02" in line
    assert "\\u202e" in line


def test_an_event_keeps_its_fields() -> None:
    log, events = Log(), Emitter()
    events.subscribe(log_events(log.logger))
    events.emit(IsrShrunk(partition=TopicPartition("t", 1), removed=(2, 3), isr=(1,)))
    (line,) = log.lines()
    assert (line["event"], line["level"], line["removed"]) == ("IsrShrunk", "warning", [2, 3])
    assert line["partition"] == ["t", 1]
    assert line["message"].startswith("IsrShrunk partition=")


def test_an_exception_has_its_traceback() -> None:
    log = Log()
    try:
        raise ValueError("broken")
    except ValueError:
        log.logger.exception("it failed")
    (line,) = log.lines()
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: broken")


def test_the_key_has_two_values() -> None:
    properties = {"log.dirs": "/nowhere", "listeners": "internal://127.0.0.1:0", "node.id": "1"}
    assert NodeConfig.from_properties(properties, role="controller").values["log.format"] == "text"
    with pytest.raises(InvalidConfigError, match=r"log\.format='xml': must be one of text, json"):
        NodeConfig.from_properties(properties | {"log.format": "xml"}, role="controller")


def test_a_node_writes_the_lines_that_its_key_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def serve_until(work: object) -> int:
        logging.getLogger("headrace.test").info("it serves")
        return 0

    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(run, "run_until_signal", serve_until)
    monkeypatch.setattr(run, "raise_descriptor_limit", lambda: None)
    (tmp_path / "node.properties").write_text("log.format=json\nkafkastore.bootstrap.servers=127.0.0.1:1\n")
    given = ["--config", str(tmp_path / "node.properties")]
    monkeypatch.setattr(run, "_owns_process", False)
    assert run.main(given, program="headrace-registry", role="registry", serve=lambda: serve_until) == 0  # type: ignore[arg-type, return-value]
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (line["message"], line["role"]) == ("it serves", "registry")
