"""``configs describe|alter``: the configuration of topics and brokers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .output import Output, OutputFormat, key_values, print_json, print_table

_Topic = Annotated[str | None, typer.Option("--topic", "-t", help="The topic.")]
_Broker = Annotated[str | None, typer.Option("--broker", help='A broker\'s id, or "" for the default of all brokers.')]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Describe and alter the configuration of topics and brokers.", no_args_is_help=True)
    group.command("describe")(describe)
    group.command("alter")(alter)
    app.add_typer(group, name="configs")


def describe(
    topic: _Topic = None,
    broker: _Broker = None,
    everything: Annotated[bool, typer.Option("--all", help="Defaults too, not only what was set.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show what was set for a topic or a broker; with --all the defaults as well. JSON has every key, always.

    \b
    Examples:
      headrace configs describe --topic orders
      headrace configs describe --broker 1 --all
    """
    resource = _resource(topic, broker)
    with admin(bootstrap) as client:
        entries = sorted(client.describe_configs([resource])[resource].values(), key=lambda entry: entry.name)
    if output is OutputFormat.JSON:
        rows = [
            {
                "name": entry.name,
                "value": entry.value,
                "source": entry.source,
                "read_only": entry.read_only,
                "documentation": entry.documentation,
            }
            for entry in entries
        ]
        print_json({"type": resource.type, "name": resource.name, "configs": rows})
        return
    shown = [entry for entry in entries if everything or entry.source != "default"]
    print_table(("KEY", "VALUE", "SOURCE"), [(entry.name, entry.value, entry.source) for entry in shown])


def alter(
    config: Annotated[
        list[str] | None, typer.Option("--set", "--config", "-c", metavar="KEY=VALUE", help="Repeatable.")
    ] = None,
    delete: Annotated[
        list[str] | None, typer.Option("--delete", metavar="KEY", help="Back to its default; repeatable.")
    ] = None,
    topic: _Topic = None,
    broker: _Broker = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Set keys, or put them back to their default; what is not named stays.

    \b
    Examples:
      headrace configs alter --topic orders --set retention.ms=3600000
      headrace configs alter --topic orders --delete retention.ms
    """
    resource = _resource(topic, broker)
    changes: dict[str, str | None] = dict(key_values(config or (), "--set"))
    changes |= dict.fromkeys(delete or ())
    if not changes:
        raise typer.BadParameter("nothing to change: give --set KEY=VALUE or --delete KEY")
    with admin(bootstrap) as client:
        client.alter_configs({resource: changes})
    if output is OutputFormat.JSON:
        print_json({"type": resource.type, "name": resource.name, "changed": changes})
        return
    for key, value in changes.items():
        print(f"{key}={value}" if value is not None else f"{key}: back to its default")


def _resource(topic: str | None, broker: str | None) -> Any:
    from .. import ConfigResource

    if (topic is None) == (broker is None):
        raise typer.BadParameter("give either --topic NAME or --broker ID")
    return ConfigResource("topic", topic) if topic is not None else ConfigResource("broker", broker or "")
