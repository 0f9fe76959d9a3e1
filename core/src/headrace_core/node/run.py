"""Run a server process: start, serve until SIGTERM or SIGINT, stop. A second signal interrupts the stop.

Exit codes: 0 after a clean stop; 1 if the process could not start or failed (the last line of the log says why); 2 for
a wrong command line; 130 if a signal interrupted the stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from ..errors import HeadraceError
from ..rpc.event_loop import new_event_loop
from .arguments import FormatCommand, parse_command
from .config import NodeConfig
from .first_voters import WriteVoters
from .logs import log_to_stderr

logger = logging.getLogger("headrace.node")

#: Whether this process runs only one node; False in a program that contains nodes, such as a test.
_owns_process = False

#: Thresholds of the garbage collector in a broker and in a coordinator. Requests create few reference cycles, so rare
#: garbage collections of many objects cost less than frequent collections of few objects. (By default, Python starts a
#: garbage collection after 700 allocations.) The product of the first two thresholds bounds the pause of a collection
#: of young objects. A collection of 50,000 objects takes about 30 ms, and 8,000 unfinished calls have 260,000 objects.
#: The last threshold decides how long unreachable objects that live for minutes stay in memory, such as the log of a
#: deleted topic with its file descriptor.
GC_THRESHOLDS = (5_000, 10, 20)

#: Function that runs a server until the event is set, then stops the server cleanly and returns.
Serve = Callable[[NodeConfig, asyncio.Event], Awaitable[None]]


def main(
    argv: Sequence[str],
    *,
    program: str,
    role: str,
    serve: Callable[[], Serve],
    write_voters: Callable[[], WriteVoters] | None = None,
) -> int:
    """Run a server program's command line; returns the exit code. ``serve`` and ``write_voters`` (for ``format`` of a
    controller) import the server's code when they are called, so that configuration errors are reported before the
    imports."""
    global _owns_process
    _owns_process = True
    log_to_stderr("info")
    try:
        command = parse_command(argv, program=program, role=role, write_voters=write_voters)
        if isinstance(command, FormatCommand):
            command.run(write_voters() if write_voters is not None and command.first is not None else None)
            return 0
    except (HeadraceError, OSError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    config = command.config
    log_to_stderr(config.log_level, form=config.values["log.format"], fields=log_fields(config))
    raise_descriptor_limit()
    for note in config.notes():
        logger.warning("%s", note)
    served = serve()
    return run_until_signal(lambda stop: served(config, stop))


def run_until_signal(serve: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    """Run a server in an event loop until SIGTERM or SIGINT sets the event; return the exit code."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run(serve))


def log_fields(config: NodeConfig) -> dict[str, str | int]:
    """The fields that identify the node in each JSON line of its log."""
    return {"role": config.role} | ({"node_id": config.node_id} if config.node_id >= 0 else {})


async def _run(serve: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    stop = asyncio.Event()
    task: asyncio.Future[None] = asyncio.ensure_future(serve(stop))
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            logger.warning("received %s again: stopping without a clean shutdown", number.name)
            task.cancel()
        else:
            logger.info("%s: stopping", number.name)
            stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        await task
    except asyncio.CancelledError:
        return 130
    except (HeadraceError, OSError) as error:
        logger.critical("%s", error)
        return 1
    except Exception:
        logger.critical("the node failed and stops", exc_info=True)
        return 1
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError, RuntimeError):
                loop.remove_signal_handler(number)
    return 0


class Server(Protocol):
    """A broker or a coordinator. ``stop`` may be called at any time, also when ``start`` failed or was cancelled."""

    async def start(self) -> None: ...
    async def run(self, stop: asyncio.Event) -> None: ...
    async def stop(self, *, at_once: bool = False) -> None: ...


async def serve_until(server: Server, stop: asyncio.Event) -> None:
    """Start the server, run it until ``stop`` is set, then stop it cleanly. If the task of ``run`` is cancelled, the
    server stops at once."""
    starting = asyncio.create_task(server.start())
    stopping = asyncio.create_task(stop.wait())
    at_once = False
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            settle_memory(*GC_THRESHOLDS)
            await server.run(stop)
    except asyncio.CancelledError:
        at_once = True
        raise
    finally:
        stopping.cancel()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        try:
            await server.stop(at_once=at_once)
        except asyncio.CancelledError:  # the clean stop takes too long: stop at once
            await server.stop(at_once=True)
            raise


def raise_descriptor_limit() -> None:
    """Raise the soft limit of file descriptors to the hard limit. The usual soft limit of 1,024 is meant for old
    programs with select(). log.open.files.max alone would use up 1,024 descriptors and leave no descriptor for
    connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # the hard limit is infinite, which is more than the kernel allows
        logger.warning("the limit of %d file descriptors could not be raised to %d: %s", soft, hard, error)


def settle_memory(*thresholds: int) -> None:
    """Exclude permanent objects from garbage collection, so that collections are short. Call ``settle_memory`` after
    all imports and loads. ``thresholds``: arguments of ``gc.set_threshold``. ``settle_memory`` has no effect in a
    process that ``main`` has not started, such as a test with several nodes."""
    if not _owns_process:
        return
    gc.collect()
    gc.freeze()
    # Python starts a full collection only when the new objects are a quarter of the objects that survived the last full
    # collection. Run a second full collection, so that the frozen objects do not count as survivors of the last full
    # collection.
    gc.collect()
    if thresholds:
        gc.set_threshold(*thresholds)
