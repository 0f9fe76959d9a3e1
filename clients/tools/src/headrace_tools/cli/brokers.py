"""The commands ``brokers list``, ``brokers drain`` (move all replicas to other brokers) and ``brokers unregister``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from headrace_core.errors import HeadraceError, InvalidRequestError
from headrace_core.plurals import counted
from headrace_core.types import TopicPartition

from . import complete
from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .draining import obstacles, words
from .each import change_each, end_with_failures
from .output import Output, OutputFormat, note, print_json, print_table, show
from .progress import HowFar, progress
from .times import duration

_LOOK_S = 0.5
#: If no replica can move for this number of seconds, `drain --wait` fails. A restart of a broker, or a new plan of the
#: controller, takes less time.
_STUCK_S = 10.0

_Ids = Annotated[
    list[int],
    typer.Argument(
        metavar="ID...",
        min=0,
        help="The brokers' ids, as `headrace brokers list` shows them.",
        autocompletion=complete.brokers,
    ),
]
_Id = Annotated[
    int,
    typer.Argument(
        metavar="ID",
        min=0,
        help="The broker's id, as `headrace brokers list` shows it.",
        autocompletion=complete.brokers,
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List, drain and unregister brokers.", no_args_is_help=True)
    group.command("list")(list_brokers)
    group.command("drain")(drain)
    group.command("unregister")(unregister)
    app.add_typer(group, name="brokers")


def list_brokers(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TEXT) -> None:
    """Show every registered broker: its state, and its numbers of leaders, replicas and replicas that are not in sync.

    \b
    Examples:
      headrace brokers list
      headrace brokers list -o json
    """
    with admin(bootstrap) as client:
        brokers = client.describe_cluster(include_fenced_brokers=True).brokers
        partitions = [each for topic in client.describe_topics() for each in topic.partitions]
    rows = [
        {
            "id": each.broker_id,
            "address": each.address,
            "rack": each.rack,
            "fenced": each.fenced,
            "draining": each.draining,
            "leaders": sum(part.leader == each.broker_id for part in partitions),
            "replicas": sum(each.broker_id in part.replicas for part in partitions),
            "not_in_sync": sum(
                each.broker_id in part.replicas and each.broker_id not in part.isr for part in partitions
            ),
        }
        for each in brokers
    ]
    if output is OutputFormat.JSON:
        print_json(rows)
        return
    print_table(
        ("BROKER", "ADDRESS", "RACK", "STATE", "LEADERS", "REPLICAS", "NOT IN SYNC"),
        [
            (
                row["id"],
                row["address"],
                row["rack"] or None,
                _state(row),
                row["leaders"],
                row["replicas"],
                row["not_in_sync"],
            )
            for row in rows
        ],
    )


def _state(row: dict[str, Any]) -> str:
    return ("fenced" if row["fenced"] else "live") + (", draining" if row["draining"] else "")


def drain(
    brokers: _Ids,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End the drain; the brokers can get replicas again.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until the brokers have no replicas; show progress on stderr.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Move all replicas away from brokers, a few at a time. A draining broker gets no new replicas.

    `headrace cluster drain` and `headrace brokers drain` are the same command. To remove several brokers, drain all of
    them in one command, so that no replica moves from one of them to another. With --wait the command fails when no
    remaining replica can move; the error names the partitions of these replicas.

    \b
    Examples:
      headrace brokers drain 3 --wait
      headrace cluster drain 4 5 --wait         before two of five are removed
      headrace cluster drain 5 --cancel
    """
    if cancel and wait:
        raise typer.BadParameter("--wait cannot be combined with --cancel", param_hint="--wait")
    ids = list(dict.fromkeys(brokers))
    left: dict[int, int] = {}
    failed: dict[int, HeadraceError] = {}
    with admin(bootstrap) as client:
        if cancel:
            left, failed = change_each(ids, lambda broker: client.drain_broker(broker, cancel=True))
        try:
            for broker in () if cancel else ids:
                left[broker] = client.drain_broker(broker)
        except HeadraceError:
            if left:  # one broker's error does not end the drains that have begun
                note(f"already draining: broker {', '.join(map(str, left))}; pass --cancel to end that")
            raise
        if wait and any(left.values()):
            _wait(client, left)
    if output is OutputFormat.JSON:
        rows = [{"broker": broker, "draining": not cancel, "replicas_left": count} for broker, count in left.items()]
        print_json(rows[0] if len(ids) == 1 else rows)
    else:
        for broker, count in left.items():
            print(_drained(broker, cancel, count))
    end_with_failures(failed)


def _wait(client: Any, left: dict[int, int]) -> None:
    """Wait until no broker in ``left`` (broker id -> replicas) has replicas. Raises InvalidRequestError when no
    remaining replica can move."""

    def how_far() -> HowFar:
        words = (f"broker {broker}: {counted(count, 'replica')} left" for broker, count in left.items() if count)
        return HowFar(most - sum(left.values()), most, ", ".join(words))

    most = sum(left.values())
    could_move_at = looked_at = time.monotonic()
    with progress() as shown:
        while any(left.values()):
            time.sleep(_LOOK_S)
            if time.monotonic() - looked_at > _STUCK_S / 5:
                stuck = _obstacles(client, left)
                looked_at = time.monotonic()
                if not stuck:
                    could_move_at = looked_at
                elif looked_at - could_move_at > _STUCK_S:
                    raise InvalidRequestError(words([each for each, count in left.items() if count], stuck))
            for broker in [each for each, count in left.items() if count]:
                left[broker] = client.drain_broker(broker)
            most = max(most, sum(left.values()))
            if any(left.values()):
                shown.at(how_far)


def _obstacles(client: Any, left: Mapping[int, int]) -> dict[TopicPartition, str]:
    """For each remaining replica, the reason why it cannot move; empty if at least one replica can move."""
    return obstacles(
        [broker for broker, count in left.items() if count],
        client.describe_cluster(include_fenced_brokers=True).brokers,
        client.describe_topics(),
        client.list_partition_reassignments(),
    )


def _drained(broker: int, cancel: bool, left: int) -> str:
    if cancel:
        return f"broker {broker} gets replicas again; replicas that have moved stay where they are"
    if left:
        return (
            f"broker {broker} is draining, {counted(left, 'replica')} left; run the same command again to see how many"
        )
    return f"broker {broker} has no replicas: stop it, then run `headrace brokers unregister {broker}`"


def unregister(
    broker: _Id,
    wait: Annotated[
        float, duration("--wait", "-w", help="How long to wait until a stopped broker is no longer alive.")
    ] = 0.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Remove the registration of a broker that has stopped, has no replicas, and will not come back.

    \b
    Examples:
      headrace brokers unregister 3
    """
    deadline = time.monotonic() + wait
    with admin(bootstrap) as client:
        while True:
            try:
                client.unregister_broker(broker)
                break
            except InvalidRequestError as error:
                if "alive" not in error.message or time.monotonic() >= deadline:
                    raise
            time.sleep(_LOOK_S)
    show(output, {"unregistered": broker}, f"unregistered broker {broker}")
