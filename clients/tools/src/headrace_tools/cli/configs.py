"""The commands ``configs describe`` and ``configs alter``, for the configuration of topics and brokers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from . import complete
from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .output import Output, OutputFormat, key_values, print_json, print_table, tell_notes

_Topic = Annotated[
    str | None, typer.Option("--topic", "-t", metavar="NAME", help="The topic.", autocompletion=complete.topics)
]
_Broker = Annotated[
    str | None, typer.Option("--broker", metavar="ID", help="The broker.", autocompletion=complete.brokers)
]
_BrokerDefault = Annotated[bool, typer.Option("--broker-default", help="The default configuration of all brokers.")]

#: Matches the commas between KEY=VALUE pairs, but not the commas inside [...].
_BETWEEN_KEYS = re.compile(r",(?![^\[]*\])(?=[^,=\[\]]+=)")

#: Maps (resource type, whether the resource has a name) to the source of a value that is set on the resource.
_SOURCES = {
    ("topic", True): "dynamic_topic",
    ("broker", True): "dynamic_broker",
    ("broker", False): "dynamic_default_broker",
}


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Describe and alter the configuration of topics and brokers.", no_args_is_help=True)
    group.command("describe")(describe)
    group.command("alter")(alter)
    app.add_typer(group, name="configs")


def describe(
    topic: _Topic = None,
    broker: _Broker = None,
    broker_default: _BrokerDefault = False,
    everything: Annotated[bool, typer.Option("--all", help="Also show keys that have their default.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the keys that were set for a topic or a broker; with --all also the keys that have their default. JSON
    output always has all keys.

    \b
    Examples:
      headrace configs describe --topic orders
      headrace configs describe --broker 1 --all
      headrace configs describe --broker-default
    """
    resource = _resource(topic, broker, broker_default)
    with admin(bootstrap) as client:
        found = client.describe_configs([resource], include_synonyms=True)[resource]
    entries = sorted(found.values(), key=lambda entry: entry.name)
    if output is OutputFormat.JSON:
        rows = [
            {
                "name": entry.name,
                "value": None if entry.is_sensitive else entry.value,
                "source": entry.source,
                "read_only": entry.read_only,
                "sensitive": entry.is_sensitive,
                "type": entry.type,
                "allowed": entry.allowed,
                "synonyms": [
                    {"name": each.name, "value": None if entry.is_sensitive else each.value, "source": each.source}
                    for each in entry.synonyms
                ],
                "documentation": entry.documentation,
            }
            for entry in entries
        ]
        print_json({"type": resource.type, "name": resource.name, "configs": rows})
        return
    shown = [entry for entry in entries if everything or entry.source != "default"]
    lines = [
        (entry.name, "[hidden]" if entry.is_sensitive else entry.value, entry.source, _hidden_by(entry))
        for entry in shown
    ]
    if any(line[3] for line in lines):
        print_table(("KEY", "VALUE", "SOURCE", "INSTEAD OF"), lines)
    else:
        print_table(("KEY", "VALUE", "SOURCE"), [line[:3] for line in lines])


def alter(
    config: Annotated[
        list[str] | None,
        typer.Option("--set", "--config", "-c", metavar="KEY=VALUE", help="Set a configuration key; repeatable."),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add", "--add-config", metavar="K=V,K=[V,V]", help="Set several keys; put a list of values in brackets."
        ),
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(
            "--delete", "--delete-config", metavar="KEY,...", help="Reset these keys to their defaults; repeatable."
        ),
    ] = None,
    append: Annotated[
        list[str] | None,
        typer.Option("--append", metavar="KEY=V,V", help="Add values to a key that is a list; repeatable."),
    ] = None,
    subtract: Annotated[
        list[str] | None,
        typer.Option("--subtract", metavar="KEY=V,V", help="Remove values from a key that is a list; repeatable."),
    ] = None,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", "--dry-run", help="Only check the request; change nothing.")
    ] = False,
    topic: _Topic = None,
    broker: _Broker = None,
    broker_default: _BrokerDefault = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Set or reset keys of a topic or a broker, and show the values that apply after the change. Either all keys change
    or none.

    \b
    Examples:
      headrace configs alter --topic orders --set retention.ms=1h
      headrace configs alter --topic orders --add retention.ms=1h,cleanup.policy=[compact,delete]
      headrace configs alter --topic orders --append cleanup.policy=compact --delete retention.ms
      headrace configs alter --broker-default --set log.cleaner.threads=2
    """
    from headrace import AppendConfig, SubtractConfig

    resource = _resource(topic, broker, broker_default)
    changes: dict[str, Any] = {}
    given: list[tuple[str, str, Callable[[str], Any]]] = [(pair, "--set", str) for pair in config or ()]
    given += [(pair, "--add", _without_brackets) for text in add or () for pair in _BETWEEN_KEYS.split(text)]
    given += [(pair, "--append", AppendConfig) for pair in append or ()]
    given += [(pair, "--subtract", SubtractConfig) for pair in subtract or ()]
    for pair, flag, made in given:
        for key, value in key_values([pair], flag).items():
            _change(changes, key, made(value), flag)
    for key in (key.strip() for text in delete or () for key in text.split(",")):
        if key:
            _change(changes, key, None, "--delete")
    if not changes:
        raise typer.BadParameter("nothing to change: pass --set, --add, --delete, --append or --subtract")
    with admin(bootstrap) as client:
        client.alter_configs({resource: changes}, validate_only=validate_only)
        now = {} if validate_only else client.describe_configs([resource])[resource]
        deleted = [key for key, value in changes.items() if value is None]
        held = what_holds(client, resource, deleted) if deleted else {}
    tell_notes(resource.type, changes)
    if output is OutputFormat.JSON:
        changed = {key: _shown(value, now.get(key)) for key, value in changes.items()}
        document = {"type": resource.type, "name": resource.name, "validate_only": validate_only, "changed": changed}
        print_json({**document, "now": {key: [each._asdict() for each in values] for key, values in held.items()}})
        return
    for key, value in changes.items():
        said = value_after_reset(key, held[key]) if value is None else f"{key}={_shown(value, now.get(key))}"
        print(f"{said} (only checked)" if validate_only else said)


class Held(NamedTuple):
    """The value of a key after it was reset. ``brokers``: the brokers that have ``value``, if brokers have different
    values. ``value`` is None if the value is hidden (a password)."""

    brokers: tuple[int, ...]
    value: str | None
    source: str


def what_holds(client: Any, resource: Any, keys: Sequence[str]) -> dict[str, list[Held]]:
    """The values that apply to ``keys`` after they are deleted from ``resource``; for the default of all brokers, the
    values on each live broker. After a dry run, which deletes nothing, the result is the same as after the deletion."""
    from headrace import ConfigResource

    asked = [resource]
    if resource.type == "broker" and not resource.name:
        asked = [ConfigResource("broker", str(each.broker_id)) for each in client.describe_cluster().brokers]
    found = client.describe_configs(asked, include_synonyms=True)
    return {key: _held(key, _SOURCES[resource.type, bool(resource.name)], found) for key in keys}


def _held(key: str, gone: str, found: Mapping[Any, Mapping[str, Any]]) -> list[Held]:
    """``gone``: the source (level of configuration) from which the key is deleted."""
    who: dict[tuple[str | None, str], list[int]] = {}
    for resource, entries in found.items():
        entry = entries.get(key)
        left = [item for item in entry.synonyms if item.source != gone] if entry is not None else []
        if entry is not None and left:
            now = (None if entry.is_sensitive else left[0].value, left[0].source)
            who.setdefault(now, []).extend([int(resource.name)] if resource.type == "broker" else [])
    return [Held(tuple(brokers) if len(who) > 1 else (), *now) for now, brokers in who.items()]


def value_after_reset(key: str, held: Sequence[Held]) -> str:
    """A line such as ``log.cleaner.threads: reset; now 2 (dynamic_default_broker)``."""
    shown = [
        f"{'[hidden]' if each.value is None else each.value} ({each.source})"
        + (f" on broker {', '.join(map(str, each.brokers))}" if each.brokers else "")
        for each in held
    ]
    return f"{key}: reset" + (f"; now {'; '.join(shown)}" if shown else "")


def _change(changes: dict[str, Any], key: str, value: Any, flag: str) -> None:
    if key in changes:
        raise typer.BadParameter(f"{key} is given twice; pass each key once", param_hint=flag)
    changes[key] = value


def _shown(value: Any, entry: Any) -> str | None:
    """The new value of a key; if a list was edited, the resulting list."""
    if value is None or isinstance(value, str):
        return value
    return entry.value if entry is not None else f"{type(value).__name__.removesuffix('Config').lower()} {value.items}"


def _without_brackets(value: str) -> str:
    return value[1:-1] if value.startswith("[") and value.endswith("]") else value


def _hidden_by(entry: Any) -> str:
    """The values that are set at lower levels of configuration and have no effect, such as ``9 (log.retention.ms,
    static_broker)``."""
    others = [each for each in entry.synonyms[1:] if each.source != "default"]
    return "; ".join(
        f"{'[hidden]' if entry.is_sensitive else each.value} ({each.name}, {each.source})" for each in others
    )


def _resource(topic: str | None, broker: str | None, broker_default: bool) -> Any:
    from headrace import ConfigResource

    if broker == "":
        broker, broker_default = None, True
    if (topic is not None) + (broker is not None) + broker_default != 1:
        raise typer.BadParameter("pass exactly one of --topic NAME, --broker ID or --broker-default")
    if topic is not None:
        return ConfigResource("topic", topic)
    return ConfigResource("broker", broker or "")
