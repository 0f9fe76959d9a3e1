"""The command ``cluster roll``: restart a local cluster node by node while clients use it."""

from __future__ import annotations

import contextlib
import enum
import os
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace_core.plurals import counted

from .client import client_config
from .output import Output, OutputFormat, note, print_json
from .progress import HowFar, progress
from .times import duration

if TYPE_CHECKING:
    from ..local.directory import ClusterDirectory
    from ..rolling.restarting import Rolled

#: Seconds for a node to stop before it is killed: controllers and brokers hand their leaderships over, coordinators
#: write their state.
_STOP_S = 60.0


class Role(enum.StrEnum):
    CONTROLLER = "controller"
    BROKER = "broker"
    COORDINATOR = "coordinator"
    REGISTRY = "registry"


def roll(
    data: Annotated[
        Path, typer.Option("--data", envvar="HEADRACE_DATA", help="The cluster's directory, as with `headrace up`.")
    ] = Path("headrace-data"),
    role: Annotated[
        list[Role] | None, typer.Option("--role", help="Restart only nodes of this role; repeatable.")
    ] = None,
    timeout: Annotated[
        float,
        duration(
            "--timeout",
            least_s=1.0,
            help="How long to wait until a restarted node is ready, and then until all replicas are in sync.",
        ),
    ] = 300.0,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Restart the nodes of a cluster on this machine one by one, while clients use it.

    Controllers are restarted first, the active controller last of them; then brokers, coordinators and
    registries.
    Before each stop, and at the end, four conditions must hold: all nodes are alive, all replicas are in sync, all
    controllers are caught up, and all groups have a coordinator. If one of the four conditions does not hold in
    time, the command fails with the reason (exit code 1) and stops no further node. Ctrl-C ends the command after
    the restart of the current node. Configuration keys that `headrace up -c KEY=VALUE` has stored take effect.

    \b
    Examples:
      headrace cluster roll --data ./cluster
      headrace cluster roll --data ./cluster --role broker
      headrace cluster roll --data ./cluster -o json
          {"restarted": [{"role", "id", "pid", "away_s", "whole_s"}], "left": [{"role", "id"}], "notes", "seconds"}
    """
    from headrace import Admin

    from ..local import security
    from ..local.directory import ClusterDirectory
    from ..rolling.looking import Looking
    from ..rolling.restarting import RollingRestart

    cluster = ClusterDirectory(data, start_timeout_s=timeout, stop_timeout_s=_STOP_S)
    begun = time.monotonic()
    state = cluster.state()
    secured = security.client_keys(cluster.directory) if state.secure else {}
    with (
        Admin(client_config(state.bootstrap_servers, ()) | secured) as client,
        _ends_between_nodes() as ended,
        progress(lines_s=None) as shown,
    ):

        def at(done: int, total: int, what: str) -> None:
            shown.at(lambda: HowFar(done, total, what))

        rolling = RollingRestart(
            cluster, Looking(client), timeout_s=timeout, tell=note, at=at, ends=lambda: bool(ended)
        )
        rolled = rolling.run([each.value for each in role or Role])
    _show(cluster, rolled, time.monotonic() - begun, output)
    if rolled.left or (ended and rolled.restarted[-1].whole_s is None):
        raise typer.Exit(128 + ended[0])


@contextlib.contextmanager
def _ends_between_nodes() -> Iterator[list[signal.Signals]]:
    """Collect the signals that would end the process, so that no node is left half restarted."""
    came: list[signal.Signals] = []

    def on_signal(number: int, frame: object) -> None:
        if not came:  # write without a buffer: the signal may interrupt a write to the buffer
            with contextlib.suppress(OSError):
                os.write(2, b"headrace: it ends as soon as the node that is being restarted serves\n")
        came.append(signal.Signals(number))

    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(cluster: ClusterDirectory, rolled: Rolled, seconds: float, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(
            {
                "restarted": [
                    {
                        "role": each.node.role,
                        "id": each.node.node_id,
                        "pid": each.pid,
                        "away_s": round(each.away_s, 3),
                        "whole_s": None if each.whole_s is None else round(each.whole_s, 3),
                    }
                    for each in rolled.restarted
                ],
                "left": [{"role": each.role, "id": each.node_id} for each in rolled.left],
                "notes": list(rolled.notes),
                "seconds": round(seconds, 3),
            }
        )
        return
    nodes = counted(len(rolled.restarted), "node")
    print(f"restarted {nodes} of {shlex.quote(str(cluster.directory))} in {seconds:.1f} s")
    if rolled.left:
        print(f"not restarted: {', '.join(map(str, rolled.left))}")
