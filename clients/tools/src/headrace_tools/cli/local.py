"""``up``, ``ps``, ``down``, ``restart``: clusters on this machine. Imports neither grpc nor the client."""

from __future__ import annotations

import shlex
import signal
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..local.directory import ClusterDirectory, Started, Topology
from ..local.finding import DATA_VARIABLE, DEFAULT_DATA
from ..local.state import ROLES, ClusterState, Node
from .output import Output, OutputFormat, key_values, note, print_json, print_table, say

_Data = Annotated[
    Path, typer.Option("--data", envvar=DATA_VARIABLE, help="The cluster's directory: data, logs, configuration.")
]
_DEFAULT_PORT = 9095
_WATCH_S = 0.5
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def register(app: typer.Typer) -> None:
    app.command("up")(up)
    app.command("ps")(ps)
    app.command("down")(down)
    app.command("restart")(restart)


def up(
    data: _Data = DEFAULT_DATA,
    controllers: Annotated[
        int | None, typer.Option(help="How many controllers (default 3); of a cluster that is there: more than it has.")
    ] = None,
    brokers: Annotated[int | None, typer.Option(help="How many brokers (default 3); as with controllers.")] = None,
    coordinators: Annotated[
        int | None,
        typer.Option(help="How many coordinators of consumer groups (default 1; 0: none); as with controllers."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help=f"The first broker's port (default {_DEFAULT_PORT}; 0: any free one).")
    ] = None,
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Return when all nodes serve; they go on.")] = False,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", "-c", help="KEY=VALUE for every node's configuration, kept; KEY= removes it. Repeatable."
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a node may take until it serves.")] = 60.0,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Start a cluster of real processes, or start an existing one again.

    Without -d it stays in the foreground, and Ctrl-C stops the cluster cleanly.

    \b
    Examples:
      headrace up --data ./cluster                 3 controllers, 3 brokers from 127.0.0.1:9095 on, 1 coordinator
      headrace up --data ./cluster -d              in the background; `headrace down` stops it
      headrace up --data ./small --brokers 1 --controllers 1 --port 0 -c log.flush=os
      headrace up --data ./small --controllers 3 -d        a cluster that is there gets more controllers
    """
    cluster = ClusterDirectory(data, start_timeout_s=timeout)
    topology = Topology(
        brokers=brokers,
        controllers=controllers,
        coordinators=coordinators,
        port=_DEFAULT_PORT if port is None and not cluster.exists() else port,
        config=key_values(config or [], "--config"),
    )
    begun = time.monotonic()
    started = cluster.up(topology)
    _print_up(cluster, started, time.monotonic() - begun, detach, output)
    if config and started.behind:
        _tell_behind(cluster, started)
    if not detach:
        if not started.nodes:
            note("it belongs to another `headrace up`, or was started with -d; this one ends")
            return
        _stay(cluster)


def _print_up(cluster: ClusterDirectory, started: Started, seconds: float, detach: bool, output: OutputFormat) -> None:
    state, data = started.state, shlex.quote(str(cluster.directory))
    if output is OutputFormat.JSON:
        print_json(
            {
                "bootstrap_servers": state.bootstrap_servers,
                "data": str(cluster.directory),
                "cluster_id": state.cluster_id,
                "already_running": not started.nodes,
                "seconds": round(seconds, 3),
                "nodes": cluster.ps(),
            }
        )
        return
    if started.nodes:
        say(f"headrace is up ({_counted(state)}, {seconds:.2f} s)")
    else:
        say(f"headrace is already running in {cluster.directory} ({_counted(state)})")
    for node in state.nodes:
        say(f"  {node.role} {node.id:<3} {node.address:<21} pid {node.pid()}")
    flag = "" if state.bootstrap_servers == f"127.0.0.1:{_DEFAULT_PORT}" else f" -b {state.bootstrap_servers}"
    say("\nTo paste:")
    if flag:
        say(f"  export HEADRACE_BOOTSTRAP_SERVERS={state.bootstrap_servers}")
    say(f"  headrace topics create orders -p 6{flag}")
    say(f"  echo hello | headrace produce -t orders{flag}")
    say(f"  headrace consume -t orders -e{flag}")
    say(f"  headrace ps --data {data}")
    say(f"  headrace down --data {data}" if detach or not started.nodes else "Ctrl-C stops the cluster.")


def _tell_behind(cluster: ClusterDirectory, started: Started) -> None:
    data = shlex.quote(str(cluster.directory))
    names = ", ".join(f"{node.role} {node.id}" for node in started.behind)
    note(
        f"headrace: -c: kept, but running already: {names}; it takes effect when the cluster (or a node: "
        f"`headrace restart --data {data} {started.behind[-1].role} {started.behind[-1].id}`) is started next"
    )


def _counted(state: ClusterState) -> str:
    counts = ((role, len(state.of_role(role))) for role in ROLES)
    return ", ".join(f"{count} {role}{'s' if count > 1 else ''}" for role, count in counts if count)


def _stay(cluster: ClusterDirectory) -> None:
    """Stay until Ctrl-C or SIGTERM, then stop the cluster; end by ourselves when somebody else stopped it."""
    dead: set[tuple[str, int]] = set()
    try:
        while cluster.exists():
            nodes = cluster.state().nodes
            if all(node.process is None for node in nodes):  # `headrace down` from elsewhere
                note("headrace: stopped by another command")
                return
            now_dead = {(node.role, node.id) for node in nodes if not node.alive()}
            for role, number in sorted(now_dead - dead):
                note(
                    f"headrace: {role} {number} died (log: {cluster.log_path(role, number)}); start it again with: "
                    f"headrace restart --data {shlex.quote(str(cluster.directory))} {role} {number}"
                )
            dead = now_dead
            time.sleep(_WATCH_S)
    except (KeyboardInterrupt, SystemExit) as end:
        # An impatient second Ctrl-C, or the terminal that closes meanwhile, must not leave nodes behind.
        previous = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDS}
        note("headrace: stopping the cluster ...")
        cluster.down()
        for number, handler in previous.items():
            signal.signal(number, handler)
        note("headrace: stopped; the data is kept")
        raise typer.Exit(130 if isinstance(end, KeyboardInterrupt) else 0) from None


def ps(data: _Data = DEFAULT_DATA, output: Output = OutputFormat.TEXT) -> None:
    """List the nodes of a cluster; one that was stopped, or is dead, has no pid.

    \b
    Examples:
      headrace ps --data ./cluster
      headrace ps --data ./cluster -o json        [{"role", "id", "pid", "address", "data_dirs"}]
    """
    cluster = ClusterDirectory(data)
    if output is OutputFormat.JSON:
        print_json(cluster.ps())
        return
    print_table(
        ("ROLE", "ID", "PID", "ADDRESS", "DATA"),
        [
            (node.role, node.id, _pid_or_state(node), node.address, ",".join(node.data_dirs))
            for node in cluster.state().nodes
        ],
    )


def _pid_or_state(node: Node) -> int | str:
    """Nobody has to look into the log of a node that was stopped: only of one that ended by itself."""
    return node.pid() or ("stopped" if node.process is None else "dead")


def down(
    data: _Data = DEFAULT_DATA,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the data as well.")] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Stop a cluster cleanly: brokers first, then controllers. The data stays, unless --delete.

    \b
    Examples:
      headrace down --data ./cluster
      headrace down --data ./cluster --delete
    """
    cluster = ClusterDirectory(data)
    stopped = cluster.down()
    if delete:
        cluster.delete()
    if output is OutputFormat.JSON:
        print_json({"stopped": [{"role": node.role, "id": node.id} for node in stopped], "deleted": delete})
        return
    what = f"stopped {len(stopped)} node{'s' if len(stopped) != 1 else ''}" if stopped else "it was not running"
    print(f"{what}; {'the data is deleted' if delete else 'the data is kept'} ({cluster.directory})")


def restart(
    role: Annotated[str, typer.Argument(help="controller, broker or coordinator")],
    node_id: Annotated[int, typer.Argument(metavar="ID", help="Its id, as `headrace ps` shows it.")],
    data: _Data = DEFAULT_DATA,
    timeout: Annotated[float, typer.Option(help="Seconds that the node may take until it serves.")] = 60.0,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Start a dead node again, with the same directories and ports; returns when it serves. A running node is stopped
    cleanly first.

    \b
    Examples:
      headrace restart --data ./cluster broker 1
    """
    if role not in ROLES:
        raise typer.BadParameter(f"{role!r}: must be one of {', '.join(ROLES)}", param_hint="ROLE")
    node = ClusterDirectory(data, start_timeout_s=timeout).restart(role, node_id)
    row: dict[str, Any] = {
        "role": node.role,
        "id": node.id,
        "pid": node.pid(),
        "address": node.address,
        "data_dirs": list(node.data_dirs),
    }
    if output is OutputFormat.JSON:
        print_json(row)
    else:
        print(f"{role} {node_id} serves at {node.address} (pid {row['pid']})")
