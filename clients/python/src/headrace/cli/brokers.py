"""``brokers list|drain|unregister``: who is there, with how much, and how one of them goes for good."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from headrace_core.errors import InvalidRequestError

from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .output import Output, OutputFormat, note, print_json, print_table

_LOOK_S = 0.5
_TELL_S = 2.0

_Id = Annotated[int, typer.Argument(metavar="ID", min=0, help="The broker's id, as `headrace brokers list` shows it.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List brokers, empty one of them, forget one that is gone.", no_args_is_help=True)
    group.command("list")(list_brokers)
    group.command("drain")(drain)
    group.command("unregister")(unregister)
    app.add_typer(group, name="brokers")


def list_brokers(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TEXT) -> None:
    """Show every broker that is registered: does it live, what does it lead, which of its replicas lag.

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
    broker: _Id,
    cancel: Annotated[bool, typer.Option("--cancel", help="Let it have replicas again.")] = False,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Until it has none, with progress on stderr.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Empty a broker: its replicas move to others a few at a time, and it gets no new ones.

    \b
    Examples:
      headrace brokers drain 3 --wait
      headrace brokers drain 3 --cancel
    """
    if cancel and wait:
        raise typer.BadParameter("--wait: there is nothing to wait for with --cancel")
    with admin(bootstrap) as client:
        left = client.drain_broker(broker, cancel=cancel)
        told = time.monotonic()
        while wait and left:
            time.sleep(_LOOK_S)
            left = client.drain_broker(broker)
            if left and time.monotonic() - told >= _TELL_S:
                told = time.monotonic()
                note(f"broker {broker} has {left} replica{'' if left == 1 else 's'} still")
    if output is OutputFormat.JSON:
        print_json({"broker": broker, "draining": not cancel, "replicas_left": left})
    elif cancel:
        print(f"broker {broker} may have replicas again; what has moved stays where it is")
    elif left:
        print(
            f"broker {broker} is being emptied, replicas left: {left}; the same command shows how many are still there"
        )
    else:
        print(f"broker {broker} is empty: stop it, then `headrace brokers unregister {broker}`")


def unregister(
    broker: _Id,
    wait: Annotated[
        float, typer.Option("--wait", "-w", metavar="SECONDS", min=0, help="For a broker that has just been stopped.")
    ] = 0.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Forget a broker that has stopped, has no replicas, and will not come back.

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
    if output is OutputFormat.JSON:
        print_json({"unregistered": broker})
    else:
        print(f"broker {broker} is forgotten")
