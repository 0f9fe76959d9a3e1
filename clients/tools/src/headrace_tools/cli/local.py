"""The commands ``up``, ``ps``, ``down`` and ``restart``, for clusters on this machine. The module imports neither grpc
nor the client."""

from __future__ import annotations

import contextlib
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace_core.errors import InvalidArgumentError
from headrace_core.plurals import counted

from ..local import security
from ..local.directory import CONSOLE_PORT, KAFKA_PORT, REGISTRY_PORT, ClusterDirectory, Started, Topology
from ..local.finding import DATA_VARIABLE, DEFAULT_DATA
from ..local.state import ROLES, ClusterState, Node, plural
from .output import Output, OutputFormat, key_values, note, print_json, print_table, say, show
from .times import duration

_Data = Annotated[
    Path, typer.Option("--data", envvar=DATA_VARIABLE, help="The cluster's directory: data, logs and configuration.")
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
        int | None, typer.Option(min=1, help="Number of controllers (default 3); an existing cluster can only grow.")
    ] = None,
    brokers: Annotated[
        int | None, typer.Option(min=1, help="Number of brokers (default 3); an existing cluster can only grow.")
    ] = None,
    coordinators: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of group coordinators (default 1; 0: none); an existing cluster can only grow."
        ),
    ] = None,
    kafka_port: Annotated[
        int | None,
        typer.Option(
            help=f"Broker 1's port for Kafka's clients (default {KAFKA_PORT} for a new cluster; 0: any free one); "
            "broker N has the N-th free port from there."
        ),
    ] = None,
    no_kafka: Annotated[bool, typer.Option("--no-kafka", help="Do not listen for Kafka's clients.")] = False,
    gateways: Annotated[int | None, typer.Option(hidden=True)] = None,
    gateway_port: Annotated[int | None, typer.Option(hidden=True)] = None,
    registries: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of replicas of the schema registry (default 0); an existing cluster can only grow."
        ),
    ] = None,
    registry_port: Annotated[
        int | None, typer.Option(help=f"The first registry's port (default {REGISTRY_PORT}; 0: any free one).")
    ] = None,
    console: Annotated[
        bool, typer.Option("--console", help="Also start the console, the web pages of the cluster.")
    ] = False,
    console_port: Annotated[
        int | None, typer.Option(help=f"The console's port (default {CONSOLE_PORT}; 0: any free one).")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help=f"The first broker's port (default {_DEFAULT_PORT}; 0: any free one).")
    ] = None,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Run in the background: return when all nodes are ready.")
    ] = False,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="KEY=VALUE",
            help="Set a configuration key of every node. Later starts keep the value; KEY= removes it. Repeatable.",
        ),
    ] = None,
    secure: Annotated[
        bool | None,
        typer.Option(
            "--secure/--no-secure",
            help="Encrypt all connections; clients log in with DIR/security/client.properties. Later starts keep this "
            "setting.",
        ),
    ] = None,
    racks: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME...",
            help="Names of racks or zones: broker N and coordinator N are in the N-th rack, and the list "
            "repeats. Later starts keep the racks; an empty value removes them.",
        ),
    ] = None,
    timeout: Annotated[float, duration("--timeout", help="How long to wait until a node is ready.")] = 60.0,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Start a cluster of real processes on this machine, or start an existing cluster again.

    Without -d the command stays in the foreground, and Ctrl-C stops the cluster cleanly.

    \b
    Examples:
      headrace up --data ./cluster                 3 controllers, 3 brokers from 127.0.0.1:9095 on, 1 coordinator
      headrace up --data ./cluster -d              in the background; `headrace down` stops it
      headrace up --data ./small --brokers 1 --controllers 1 --port 0 -c log.flush=os
      headrace up --data ./small --controllers 3 -d        adds controllers to an existing cluster
      headrace up --data ./cluster --kafka-port 19092 -d   Kafka's clients connect to 127.0.0.1:19092 (default: 9092)
      headrace up --data ./cluster --secure -d             TLS, users and access control; prints how clients connect
      headrace up --data ./cluster --racks a,b,c -d        consumers read from the replica in their rack
      headrace up --data ./cluster --registries 1 -d       a schema registry at http://127.0.0.1:8081
      headrace up --data ./cluster --console -d            a console at http://127.0.0.1:9090
    """
    for flag, value in (("--gateways", gateways), ("--gateway-port", gateway_port)):
        if value is not None:
            raise InvalidArgumentError(
                f"{flag}: brokers serve Kafka's clients themselves, broker 1 on --kafka-port (default {KAFKA_PORT}); "
                "leave the flag out"
            )
    if no_kafka and kafka_port is not None:
        raise InvalidArgumentError("--no-kafka and --kafka-port contradict each other; leave one out")
    cluster = ClusterDirectory(data, start_timeout_s=timeout)
    is_new = not cluster.exists()
    topology = Topology(
        brokers=brokers,
        controllers=controllers,
        coordinators=coordinators,
        kafka=False if no_kafka else True if is_new or kafka_port is not None else None,
        kafka_port=KAFKA_PORT if kafka_port is None and is_new else kafka_port,
        registries=registries,
        registry_port=REGISTRY_PORT if registry_port is None else registry_port,
        console=console or None,
        console_port=CONSOLE_PORT if console_port is None else console_port,
        port=_DEFAULT_PORT if port is None and is_new else port,
        config=key_values(config or [], "--config"),
        secure=secure,
        racks=None if racks is None else [each.strip() for each in racks.split(",")] if racks.strip() else [],
    )
    begun = time.monotonic()
    started = cluster.up(topology)
    watches = bool(started.nodes) and not detach
    with _stopped_by_signals(cluster) if watches else contextlib.nullcontext():
        _print_up(cluster, started, time.monotonic() - begun, detach, output)
        for role, asked in (("registry", registry_port), ("console", console_port)):
            _note_port(started.state, role, asked)
        _note_kafka(started, topology)
        given = {"-c": config, "--racks": racks is not None, "--kafka-port": kafka_port, "--no-kafka": no_kafka}
        flags = [flag for flag, is_given in given.items() if is_given]
        if (flags or started.dropped) and started.behind:
            _tell_behind(cluster, started, " and ".join(flags) or "the new listeners")
        if watches:
            _watch(cluster)
    if not started.nodes and not detach:
        note("another `headrace up` runs this cluster, or it runs in the background; this command ends")


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
    names = {f"{node.role} {node.id}": node for node in state.nodes}
    width = max(21, *(len(node.address) for node in state.nodes))
    for name, node in names.items():
        say(f"  {name:<{max(map(len, names))}}  {node.address:<{width}}  pid {node.pid()}")
    if state.kafka_bootstrap_servers:
        say(f"\nKafka's clients: bootstrap.servers={state.kafka_bootstrap_servers}")
    if state.registry_urls:
        say(f"\nThe schema registry: schema.registry.url={state.registry_urls}")
    if state.console_url:
        say(f"\nThe console: {state.console_url}/")
        if state.secure:
            path = shlex.quote(str(security.admin_password_path(cluster.directory)))
            say(f"  Sign in as {security.ADMIN}, with the password in {path}")
            say(f"  Browsers must trust {shlex.quote(str(security.ca_path(cluster.directory)))}")
    flag = "" if state.bootstrap_servers == f"127.0.0.1:{_DEFAULT_PORT}" else f" -b {state.bootstrap_servers}"
    if state.secure:
        path = shlex.quote(str(security.client_properties_path(cluster.directory)))
        say(f"\nClients need the keys in {path}")
        say(f"  Producer.from_properties({str(security.client_properties_path(cluster.directory))!r})")
        flag += f" --command-config {path}"
    say("\nTo paste:")
    if state.bootstrap_servers != f"127.0.0.1:{_DEFAULT_PORT}":
        say(f"  export HEADRACE_BOOTSTRAP_SERVERS={state.bootstrap_servers}")
    say(f"  headrace topics create orders -p 6{flag}")
    say(f"  echo hello | headrace produce -t orders{flag}")
    say(f"  headrace consume -t orders -e{flag}")
    say(f"  headrace ps --data {data}")
    say(f"  headrace down --data {data}" if detach or not started.nodes else "Ctrl-C stops the cluster.")


def _note_kafka(started: Started, wanted: Topology) -> None:
    """Say where Kafka's clients connect, if that is not where the user expects it."""
    first = started.state.of_role("broker")[0]
    if started.dropped:
        note(
            f"headrace: brokers serve Kafka's clients themselves: the gateways are gone, and broker {first.id} has "
            f"{first.kafka_address} for them"
        )
    elif wanted.kafka_port and first.kafka_port != wanted.kafka_port:
        note(
            f"headrace: broker {first.id} has port {first.kafka_port} for Kafka's clients, not {wanted.kafka_port}: "
            "another program uses that one, or the cluster keeps the port of its first start"
        )


def _note_port(state: ClusterState, role: str, asked: int | None) -> None:
    """Print a note if the first node of ``role`` has another port than the user ``asked`` for."""
    nodes = state.of_role(role)
    if not asked or not nodes or nodes[0].port == asked:
        return
    note(
        f"headrace: {role} {nodes[0].id} has port {nodes[0].port}, not {asked}: a node keeps the port of its first "
        "start, which is the next free one if another program used the port then"
    )


def _tell_behind(cluster: ClusterDirectory, started: Started, flags: str) -> None:
    data = shlex.quote(str(cluster.directory))
    names = ", ".join(f"{node.role} {node.id}" for node in started.behind)
    note(
        f"headrace: kept {flags} for the next start; these nodes still run without: {names}; restart the cluster, or "
        f"a node with `headrace restart --data {data} {started.behind[-1].role} {started.behind[-1].id}`"
    )


def _counted(state: ClusterState) -> str:
    counts = ((role, len(state.of_role(role))) for role in ROLES)
    return ", ".join(counted(count, role, plural(role)) for role, count in counts if count)


@contextlib.contextmanager
def _stopped_by_signals(cluster: ClusterDirectory) -> Iterator[None]:
    """Stop the cluster when Ctrl-C, SIGTERM or a closing terminal ends the block."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as end:
        # Ignore further signals: a second Ctrl-C, or a closing terminal, must not leave nodes behind.
        previous = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDS}
        note("headrace: stopping the cluster ...")
        cluster.down()
        for number, handler in previous.items():
            signal.signal(number, handler)
        note("headrace: stopped; the data is kept")
        raise typer.Exit(130 if isinstance(end, KeyboardInterrupt) else 0) from None


def _watch(cluster: ClusterDirectory) -> None:
    """Report nodes that die; return when another command has stopped the cluster."""
    dead: set[tuple[str, int]] = set()
    while cluster.exists():
        nodes = cluster.state().nodes
        if all(node.process is None for node in nodes):  # `headrace down` stopped the cluster
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


def ps(data: _Data = DEFAULT_DATA, output: Output = OutputFormat.TEXT) -> None:
    """List the nodes of a cluster on this machine. A stopped or dead node has no pid.

    \b
    Examples:
      headrace ps --data ./cluster
      headrace ps --data ./cluster -o json        [{"role", "id", "pid", "address", "data_dirs", "metrics"}]
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
    """The pid of the node; "stopped", or "dead" if the process ended without `headrace down` (its log says why)."""
    return node.pid() or ("stopped" if node.process is None else "dead")


def down(
    data: _Data = DEFAULT_DATA,
    delete: Annotated[bool, typer.Option("--delete", help="Also delete the cluster's data.")] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Stop a cluster cleanly: the console first, controllers last. The data are kept, unless --delete is given.

    \b
    Examples:
      headrace down --data ./cluster
      headrace down --data ./cluster --delete
    """
    cluster = ClusterDirectory(data)
    stopped = cluster.down()
    if delete:
        cluster.delete()
    what = f"stopped {counted(len(stopped), 'node')}" if stopped else "no node was running"
    show(
        output,
        {"stopped": [{"role": node.role, "id": node.id} for node in stopped], "deleted": delete},
        f"{what}; the data is {'deleted' if delete else 'kept'} ({cluster.directory})",
    )


def restart(
    role: Annotated[str, typer.Argument(help=f"The node's role: {', '.join(ROLES[:-1])} or {ROLES[-1]}.")],
    node_id: Annotated[int, typer.Argument(metavar="ID", help="The node's id, as `headrace ps` shows it.")],
    data: _Data = DEFAULT_DATA,
    timeout: Annotated[float, duration("--timeout", help="How long to wait until the node is ready.")] = 60.0,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Start a dead node again, with the same directories and ports; the command returns when the node serves. A running
    node is first stopped cleanly.

    \b
    Examples:
      headrace restart --data ./cluster broker 1
    """
    if role not in ROLES:
        raise typer.BadParameter(f"role {role!r}: must be one of {', '.join(ROLES)}", param_hint="ROLE")
    node = ClusterDirectory(data, start_timeout_s=timeout).restart(role, node_id)
    row: dict[str, Any] = {
        "role": node.role,
        "id": node.id,
        "pid": node.pid(),
        "address": node.address,
        "data_dirs": list(node.data_dirs),
        "metrics": node.metrics_url,
    }
    show(output, row, f"{role} {node_id} serves at {node.address} (pid {row['pid']})")
