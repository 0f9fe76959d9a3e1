"""Life of a server process: start, serve until SIGTERM or SIGINT, stop; a second signal interrupts the stop.

Exit codes: 0 stopped cleanly; 1 could not start, or failed (the reason is the last line of the log); 2 wrong command
line; 130 the stop was interrupted.
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
from .log_output import log_to_stderr

logger = logging.getLogger("headrace.node")

#: Whether this is the node's own process; False in a program with nodes inside it, such as a test.
_owns_process = False

#: Serves until the event is set, then stops cleanly and returns.
Serve = Callable[[NodeConfig, asyncio.Event], Awaitable[None]]


def main(
    argv: Sequence[str],
    *,
    program: str,
    role: str,
    serve: Callable[[], Serve],
    write_voters: Callable[[], WriteVoters] | None = None,
) -> int:
    """Run the command line of a server; returns the exit code. ``serve`` and ``write_voters`` (a controller's, for
    ``format``) are loaders, so that configuration errors do not wait for the server's imports."""
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
    log_to_stderr(command.config.log_level)
    raise_descriptor_limit()
    for note in command.config.notes():
        logger.warning("%s", note)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run(serve(), command.config))


async def _run(serve: Serve, config: NodeConfig) -> int:
    stop = asyncio.Event()
    task: asyncio.Future[None] = asyncio.ensure_future(serve(config, stop))
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
    """A broker or a coordinator. ``stop`` is allowed at any time, also when ``start`` failed or was cancelled."""

    async def start(self) -> None: ...
    async def run(self, stop: asyncio.Event) -> None: ...
    async def stop(self, *, at_once: bool = False) -> None: ...


async def serve_until(server: Server, stop: asyncio.Event, *gc_thresholds: int) -> None:
    """Start the server, run it until ``stop`` is set, then stop it cleanly; at once when this is cancelled."""
    starting = asyncio.create_task(server.start())
    stopping = asyncio.create_task(stop.wait())
    at_once = False
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            settle_memory(*gc_thresholds)
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
        except asyncio.CancelledError:  # the clean stop takes too long
            await server.stop(at_once=True)
            raise


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard one: the usual 1,024 is for old programs with select(), and
    log.open.files.max alone would use it up, leaving none for connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # an infinite hard limit, above what the kernel allows
        logger.warning("the limit of %d file descriptors could not be raised to %d: %s", soft, hard, error)


def settle_memory(*thresholds: int) -> None:
    """Call once everything is imported and loaded: moves permanent objects out of the garbage collector's passes, which
    keeps them short; ``thresholds``: of ``gc.set_threshold``. Does nothing in a process that is not the node's own."""
    if not _owns_process:
        return
    gc.collect()
    gc.freeze()
    if thresholds:
        gc.set_threshold(*thresholds)
