"""Log lines of nodes within this process go to the nodes' files; a failed write loses the line, but the node continues
to work."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace_tools.local.inprocess_logs import NodeLog
from tests.worlds.this_process import logged

logger = logging.getLogger("headrace_core.test_inprocess_logs")


def as_a_node(log: NodeLog, work: Callable[[], object]) -> None:
    context = contextvars.copy_context()
    context.run(log.enter)
    context.run(work)


def test_lines_of_a_node_are_in_its_file_and_in_no_handler_around_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = NodeLog(tmp_path / "broker-1.log", "INFO")
    as_a_node(log, lambda: logger.info("one of %d", 2))
    as_a_node(log, lambda: logger.debug("too small"))
    log.close()
    assert (tmp_path / "broker-1.log").read_text().endswith("one of 2\n")
    assert "too small" not in (tmp_path / "broker-1.log").read_text()
    assert logged(caplog) == []


def test_a_line_that_cannot_be_worded_fails_nobodys_work(tmp_path: Path) -> None:
    log = NodeLog(tmp_path / "broker-1.log", "INFO")
    as_a_node(log, lambda: logger.info("%d of them", "two"))
    log.close()
    assert "'%d of them' (TypeError" in (tmp_path / "broker-1.log").read_text()


def test_a_full_disk_fails_nobodys_work() -> None:
    log = NodeLog(Path("/dev/full"), "INFO")
    as_a_node(log, lambda: logger.warning("no room for this"))
    log.close()


def test_a_thread_that_outlives_its_node_may_say_so(tmp_path: Path) -> None:
    log = NodeLog(tmp_path / "broker-1.log", "INFO")
    other = NodeLog(tmp_path / "broker-2.log", "INFO")  # another node still needs the handler
    log.close()
    as_a_node(log, lambda: logger.warning("too late"))
    other.close()
    assert (tmp_path / "broker-1.log").read_text() == ""


def test_a_module_that_is_imported_when_a_node_needs_it_logs_to_the_node_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = logging.Logger.manager.loggerClass
    log = NodeLog(tmp_path / "broker-1.log", "INFO")
    later = logging.getLogger("headrace_broker.test_inprocess_logs.imported_later")
    strangers = logging.getLogger("test_inprocess_logs.of_the_program")
    as_a_node(log, lambda: later.warning("first words"))
    as_a_node(log, lambda: strangers.warning("not a node's module"))
    log.close()
    assert (tmp_path / "broker-1.log").read_text().endswith("first words\n")
    assert [record.getMessage() for record in logged(caplog)] == ["not a node's module"]
    assert (later.filters, logging.Logger.manager.loggerClass) == ([], before)
