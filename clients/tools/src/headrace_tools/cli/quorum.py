"""The commands ``quorum status``, ``add``, ``remove`` and ``transfer``: the voters of the controller quorum, as in
kafka-metadata-quorum."""

from __future__ import annotations

import dataclasses
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_core.errors import (
    DuplicateVoterError,
    HeadraceError,
    InvalidArgumentError,
    RequestTimedOutError,
    VoterNotFoundError,
)

from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .output import Output, OutputFormat, note, print_json, print_table, show
from .times import duration

if TYPE_CHECKING:
    from headrace.cluster_models import QuorumInfo, QuorumReplica

_WATCH_S = 1.0
_TIMEOUT_S = 30.0
#: Timeout of a status request in seconds: an election takes a second or two, but never ends without a majority of the
#: voters.
_STATUS_S = 5.0
_NO_LEADER = "no controller leads: a majority of the voters must run and reach each other"
_VOTER = re.compile(r"(?P<id>\d{1,10})(?:@(?P<directory>[A-Za-z0-9_-]{22}))?\Z")

_Timeout = Annotated[float, duration("--timeout", least_s=0.1, help="How long to wait for the change of the quorum.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Show, add and remove voting controllers; transfer leadership.", no_args_is_help=True)
    group.callback()(_group)
    group.command("status")(status)
    group.command("add")(add)
    group.command("remove")(remove)
    group.command("transfer")(transfer)
    app.add_typer(group, name="quorum")


def _group() -> None:
    """Show, add and remove voting controllers; transfer leadership. --bootstrap may name any node."""


def status(
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Repeat every second until Ctrl-C; with -o json one document per line."),
    ] = False,
    timeout: Annotated[float, duration("--timeout", least_s=0.1, help="How long to wait for a leader.")] = _STATUS_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the leader, the high watermark, and the log end offset of each voter and observer.

    \b
    Examples:
      headrace quorum status
      headrace quorum status --watch
      headrace quorum status -o json -b 127.0.0.1:9095
    """
    with admin(bootstrap) as client:
        while True:
            try:
                _show(_described(client, timeout), output)
            except HeadraceError as error:
                if not watch:
                    raise
                # Print a note and continue, because an election is temporary.
                note(f"headrace: {error.message} [{error.code}]")
            if not watch:
                return
            time.sleep(_WATCH_S)
            if output is OutputFormat.TEXT:
                print()


def add(
    node_id: Annotated[int | None, typer.Option("--node-id", min=0, help="The controller's node.id.")] = None,
    directory_id: Annotated[
        str | None,
        typer.Option(
            help="The directory.id in the controller's meta.properties; default: the one that the controller reports."
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The controller's internal listener; default: the address that the controller reports.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="The controller's properties file, in place of --node-id, --directory-id and --address.",
        ),
    ] = None,
    timeout: _Timeout = _TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Make a running controller a voter. Before you make a controller a voter, format it with --no-initial-controllers
    and start it.

    \b
    Examples:
      headrace quorum add --config controller4.properties
      headrace quorum add --node-id 4 --directory-id JEXY6aqzQY-32P5TStzaFg --address c4:19093
    """
    if (config is None) == (node_id is None):
        raise typer.BadParameter("pass either --config FILE or --node-id ID", param_hint="--node-id")
    if config is not None:
        if directory_id is not None or address is not None:
            raise typer.BadParameter(
                "--directory-id and --address cannot be combined with --config", param_hint="--directory-id, --address"
            )
        node_id, directory_id, address = _of_config(config)
    assert node_id is not None
    with admin(bootstrap) as client:
        try:
            client.add_voter(node_id, directory_id, address=address or "", timeout=timeout)
        except DuplicateVoterError as error:
            raise DuplicateVoterError(_why_duplicate(client, error, node_id, directory_id)) from None
        except RequestTimedOutError as error:
            raise RequestTimedOutError(_why_not_caught_up(client, error, node_id, directory_id)) from None
        _done(client, f"controller {node_id} is a voter", output)


def remove(
    voter: Annotated[
        str,
        typer.Argument(
            metavar="ID@DIRECTORY_ID", help="The voter to remove, as `quorum status` shows it, or only its ID."
        ),
    ],
    timeout: _Timeout = _TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Remove a controller from the voters, whether it is running or not. A running controller stays an observer until
    it is stopped.

    \b
    Examples:
      headrace quorum remove 2@MvDxzVmcRsaTz33bUuRU6A
    """
    match = _VOTER.match(voter)
    if match is None:
        raise typer.BadParameter(
            f"{voter!r}: must be ID@DIRECTORY_ID, such as 2@MvDxzVmcRsaTz33bUuRU6A", param_hint="ID@DIRECTORY_ID"
        )
    with admin(bootstrap) as client:
        try:
            client.remove_voter(int(match["id"]), match["directory"], timeout=timeout)
        except VoterNotFoundError as error:
            raise VoterNotFoundError(_no_voter(client, error, voter)) from None
        except RequestTimedOutError as error:
            raise RequestTimedOutError(_why_late(client, error)) from None
        _done(client, f"removed voter {voter}", output)


def transfer(
    node_id: Annotated[
        int | None,
        typer.Argument(
            metavar="ID", min=0, help="The voter that becomes leader; default: the voter with the longest log."
        ),
    ] = None,
    timeout: _Timeout = _TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Make another voter the leader without waiting for an election timeout. Use `headrace quorum transfer` before you
    stop the leader's machine.

    \b
    Examples:
      headrace quorum transfer 2
    """
    with admin(bootstrap) as client:
        try:
            leader = client.transfer_leadership(node_id, timeout=timeout)
        except VoterNotFoundError as error:
            raise VoterNotFoundError(_no_voter(client, error, str(node_id))) from None
        except RequestTimedOutError as error:
            raise RequestTimedOutError(_why_late(client, error)) from None
    show(output, {"leader_id": leader}, f"controller {leader} leads")


# -- output


def _document(quorum: QuorumInfo) -> dict[str, Any]:
    return {
        "leader_id": quorum.leader_id,
        "leader_epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "max_follower_lag": _max_lag(quorum),
        "max_follower_lag_time_ms": _max_lag_time_ms(quorum),
        "voters": [_replica(each) for each in quorum.voters],
        "observers": [_replica(each) for each in quorum.observers],
        "brokers": [dataclasses.asdict(each) for each in quorum.brokers],
    }


def _replica(replica: QuorumReplica) -> dict[str, Any]:
    return {
        "id": replica.replica_id,
        "directory_id": replica.directory_id_text,
        "address": replica.address,
        "log_end_offset": replica.log_end_offset,
        "lag": replica.lag,
        "last_fetch_timestamp_ms": replica.last_fetch_timestamp_ms,
        "last_caught_up_timestamp_ms": replica.last_caught_up_timestamp_ms,
        "is_outdated": replica.is_outdated,
    }


def _max_lag(quorum: QuorumInfo) -> int | None:
    """The largest lag of a voter; None when the lag of any voter is unknown, for example while that voter is down."""
    lags = [each.lag for each in quorum.voters]
    return None if None in lags else max((lag for lag in lags if lag is not None), default=None)


def _max_lag_time_ms(quorum: QuorumInfo) -> int | None:
    """How long ago the slowest voter had all of the leader's log (Kafka: MaxFollowerLagTimeMs). Returns None if a voter
    never had the whole log of the present leader."""
    times = {each.replica_id: each.last_caught_up_timestamp_ms for each in quorum.voters}
    now = times.get(quorum.leader_id)
    if now is None or None in times.values():
        return None
    return max(now - each for each in times.values() if each is not None)


def _show(quorum: QuorumInfo, output: OutputFormat) -> None:
    document = _document(quorum)
    if output is OutputFormat.JSON:
        print_json(document)
        return
    for name, key in (
        ("leader", "leader_id"),
        ("leader epoch", "leader_epoch"),
        ("high watermark", "high_watermark"),
        ("max follower lag", "max_follower_lag"),
        ("max follower lag time ms", "max_follower_lag_time_ms"),
    ):
        print(f"{name + ':':<26}{'-' if document[key] is None else document[key]}")
    print()
    rows = [(each, "leader" if each.replica_id == quorum.leader_id else "follower") for each in quorum.voters]
    rows += [(each, "observer") for each in quorum.observers]
    print_table(
        ("NODE", "DIRECTORY", "ADDRESS", "LOG END OFFSET", "LAG", "LAST HEARD", "LAST CAUGHT UP", "STATUS"),
        [
            (
                each.replica_id,
                each.directory_id_text,
                each.address or None,
                each.log_end_offset,
                each.lag,
                _time(each.last_fetch_timestamp_ms),
                _time(each.last_caught_up_timestamp_ms),
                "older copy" if each.is_outdated else role,
            )
            for each, role in rows
        ],
    )
    if quorum.brokers:
        print()
        print_table(
            ("BROKER", "METADATA OFFSET", "LAG", "LAG MS", "LAST HEARTBEAT"),
            [
                (
                    each.broker_id,
                    each.metadata_offset,
                    each.lag,
                    each.metadata_lag_ms,
                    _time(each.last_heartbeat_timestamp_ms),
                )
                for each in quorum.brokers
            ],
        )


def _time(timestamp_ms: int | None) -> str | None:
    if timestamp_ms is None:
        return None
    return datetime.fromtimestamp(timestamp_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _done(client: Any, what: str, output: OutputFormat) -> None:
    quorum = client.describe_quorum()
    show(output, _document(quorum), f"{what}; voters: {_voters(quorum)}")


def _voters(quorum: QuorumInfo) -> str:
    return ", ".join(_key(each) for each in quorum.voters)


def _key(replica: QuorumReplica) -> str:
    return f"{replica.replica_id}@{replica.directory_id_text}"


# -- refusals


def _described(client: Any, timeout_s: float) -> QuorumInfo:
    """Describe the quorum. Raises RequestTimedOutError, which says that the quorum has no leader."""
    try:
        quorum: QuorumInfo = client.describe_quorum(timeout=timeout_s)
    except RequestTimedOutError as error:
        raise RequestTimedOutError(
            f"{_NO_LEADER} ({error.message}); `headrace metadata cat DIRECTORY /local/quorum` shows the quorum on "
            "a node's disk"
        ) from None
    return quorum


def _no_voter(client: Any, error: HeadraceError, voter: str) -> str:
    try:
        there = _voters(client.describe_quorum(timeout=_STATUS_S))
    except HeadraceError:
        return error.message
    return f"{voter} is not a voter; the voters are {there}"


def _why_duplicate(client: Any, error: HeadraceError, node_id: int, directory_id: str | None) -> str:
    there = next((each for each in client.describe_quorum().voters if each.replica_id == node_id), None)
    if there is None:
        return error.message
    if directory_id == there.directory_id_text:
        return f"controller {node_id} is already a voter: {_key(there)}"
    where = "" if directory_id is None else ", with another directory"
    return (
        f"controller {node_id} is already a voter{where}: {_key(there)}; if that disk is lost, run "
        f"`headrace quorum remove {_key(there)}` first"
    )


def _why_late(client: Any, error: HeadraceError) -> str:
    try:
        client.describe_quorum(timeout=_STATUS_S)
    except HeadraceError:
        return f"{error.message}; {_NO_LEADER}"
    return f"{error.message}; `headrace quorum status` shows the voters now"


def _why_not_caught_up(client: Any, error: HeadraceError, node_id: int, directory_id: str | None) -> str:
    try:
        observers = client.describe_quorum(timeout=_STATUS_S).observers
    except HeadraceError:
        return f"{error.message}; {_NO_LEADER}"
    for each in observers:
        if each.replica_id == node_id and directory_id in (None, each.directory_id_text):
            behind = "" if each.lag is None else f", {each.lag} offsets behind"
            return f"{error.message}; it follows the quorum{behind}: retry, or pass a longer --timeout"
    return (
        f"{error.message}; no controller {node_id} follows the quorum: start it with "
        "controller.quorum.bootstrap.servers set to the voters; its log says why it cannot reach them"
    )


def _of_config(path: Path) -> tuple[int, str, str]:
    """(node id, directory id, address) of the controller that this file configures."""
    from headrace_core.node.arguments import own_address
    from headrace_core.node.config import NodeConfig
    from headrace_core.node.ids import id_to_text
    from headrace_core.node.meta_properties import read_meta
    from headrace_core.node.properties import read_properties

    config = NodeConfig.from_properties(read_properties(path), role="controller")
    address = own_address(config)
    if address is None:
        raise InvalidArgumentError(f"{path}: the internal listener has port 0 (any free one); set a fixed port")
    meta = read_meta(config.log_dirs[0], node_id=config.node_id, is_controller=True)
    return config.node_id, id_to_text(meta.directory_id), address
