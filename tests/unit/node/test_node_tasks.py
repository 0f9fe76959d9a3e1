"""The background tasks of a node, and the state file of a node whose disk fails."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from headrace_core.errors import HeadraceError, StorageError
from headrace_core.node.state_file import RuntimeState, remove_state, write_state
from headrace_core.node.tasks import NodeTasks
from tests.worlds.this_process import logged
from tests.worlds.waiting import in_loop


async def _forever() -> None:
    await asyncio.Event().wait()


async def _fail() -> None:
    raise StorageError("the disk failed")


async def _return() -> None:
    return


@in_loop
async def test_a_result_is_returned_while_all_tasks_run() -> None:
    tasks = NodeTasks("broker")
    tasks.start(_forever(), "heartbeats")
    assert await tasks.unless_failed(asyncio.sleep(0, "applied")) == "applied"
    assert not tasks.has_failed
    await tasks.cancel()


@pytest.mark.parametrize("wait", ["unless_failed", "run_until"])
@in_loop
async def test_the_error_of_a_task_is_raised_to_the_node(wait: str) -> None:
    tasks = NodeTasks("broker")
    tasks.start(_forever(), "heartbeats")
    tasks.start(_fail(), "metadata")
    waiting = tasks.unless_failed(_forever()) if wait == "unless_failed" else tasks.run_until(asyncio.Event())
    with pytest.raises(StorageError, match="the disk failed"):
        await waiting
    assert tasks.has_failed
    await tasks.cancel()


@in_loop
async def test_a_task_that_returns_ends_the_node_with_its_name() -> None:
    tasks = NodeTasks("coordinator")
    tasks.start(_return(), "high watermarks")
    with pytest.raises(HeadraceError, match=r"the coordinator's high watermarks task ended unexpectedly"):
        await tasks.run_until(asyncio.Event())
    await tasks.cancel()


@in_loop
async def test_a_set_stop_event_ends_the_wait_without_an_error() -> None:
    tasks, stop = NodeTasks("broker"), asyncio.Event()
    tasks.start(_forever(), "heartbeats")
    stop.set()
    await tasks.run_until(stop)
    await tasks.cancel()


def test_a_state_file_that_cannot_be_written_or_removed_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The state file is a convenience: a full disk must neither stop a node nor hide why it stops."""
    (tmp_path / "plain").write_text("")
    path = str(tmp_path / "plain" / "node.json")  # a file is in the place of the directory
    with caplog.at_level(logging.WARNING, "headrace.node"):
        write_state(path, RuntimeState.of("controller", 1, 0, ()))
        remove_state(path)
    assert [record.message.partition(": ")[0] for record in logged(caplog)] == [
        f"runtime.state.file={path} could not be written",
        f"runtime.state.file={path} could not be removed",
    ]
