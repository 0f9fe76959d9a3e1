"""Client settings: typed values of the keys in ``headrace_core.config.client_keys``.

A client takes a dict with dotted names, snake_case keywords, or both; the environment variable
``HEADRACE_BOOTSTRAP_SERVERS`` is the default of ``bootstrap.servers``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace_core.config import INT_MAX, ConfigDef
from headrace_core.config.client_keys import ADMIN, CONSUMER, PRODUCER
from headrace_core.errors import InvalidConfigError
from headrace_core.node.properties import read_properties

__all__ = ["ADMIN", "BOOTSTRAP_VARIABLE", "CONSUMER", "DEFAULT_BOOTSTRAP", "PRODUCER", "from_file", "resolve"]

logger = logging.getLogger("headrace")
# Set the log handler in this module, because every client imports this module; headrace/__init__ imports nothing.
logger.addHandler(logging.NullHandler())

DEFAULT_BOOTSTRAP = "127.0.0.1:9095"
BOOTSTRAP_VARIABLE = "HEADRACE_BOOTSTRAP_SERVERS"


def resolve(definition: ConfigDef, config: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a dict and keywords into typed values by dotted name, with defaults for all other keys; a key in both is an
    error.

    Raises InvalidConfigError, with a "did you mean" suggestion for an unknown key. Notes about accepted keys are logged
    at INFO.
    """
    if config is not None and not isinstance(config, Mapping):
        raise InvalidConfigError(
            f"a {definition.where} takes a dict with dotted keys, or keywords such as "
            f"bootstrap_servers='127.0.0.1:9095', not {config!r}"
        )
    given = dict(config or {})
    for name in given:
        if not isinstance(name, str):
            raise InvalidConfigError(f"{definition.where} configuration key {name!r:.80}: must be a string")
    for name in (*given, *settings):
        _check_owner(definition, name)
    for name, value in settings.items():
        dotted = definition.key(name).name
        if any(definition.key(other).name == dotted for other in given):
            raise InvalidConfigError(f"{definition.where} configuration key {dotted!r} is given twice")
        given[dotted] = value
    values = definition.parse({name: value for name, value in given.items() if value is not None})
    if values["bootstrap.servers"] is None:
        values["bootstrap.servers"] = os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
    values["bootstrap.servers"] = _addresses(values["bootstrap.servers"])
    for note in definition.notes(given):
        logger.info("%s", note)
    if definition is PRODUCER:
        _check_producer(given, values)
    return values


def from_file(
    definition: ConfigDef, path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return those keys of a properties file that a client of ``definition`` has. ``overrides`` (snake_case or dotted)
    replace values of the file. Keys that only other kinds of clients have are ignored, so one file may serve all kinds
    of clients.

    Raises InvalidConfigError, which names the line, for a key that no client has, a wrong value, and a file that cannot
    be read.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidConfigError(f"path={path!r:.80}: must be the path of a properties file")
    found = read_properties(Path(path))
    values: dict[str, Any] = {}
    for name, value in found.items():
        if not _is_known(definition, name) and any(_is_known(other, name) for other in (PRODUCER, CONSUMER, ADMIN)):
            continue
        try:
            values[definition.key(name).name] = value
            definition.parse({name: value}, defaults=False)
        except InvalidConfigError as error:
            raise InvalidConfigError(f"{error.message} ({found.set_in[name]})") from None
    for name, value in (overrides or {}).items():
        values[definition.key(name).name] = value
    return values


def _is_known(definition: ConfigDef, name: str) -> bool:
    return name in definition.keys or any(name.startswith(prefix) for prefix in definition.families)


def _check_owner(definition: ConfigDef, name: str) -> None:
    """If the key belongs only to another kind of client, raise an error that names that kind."""
    dotted = name.replace("_", ".")
    if dotted in definition.keys or any(dotted.startswith(prefix) for prefix in definition.families):
        return
    owners = [other.where for other in (PRODUCER, CONSUMER) if dotted in other.keys]
    if owners:
        raise InvalidConfigError(f"{name!r} is a configuration key of the {owners[0]}, not of the {definition.where}")


def _addresses(raw: str | Iterable[str]) -> list[str]:
    """Checked ["host:port", ...]. Raises InvalidConfigError."""
    items = raw.split(",") if isinstance(raw, str) else list(raw)
    addresses = [item.strip().removeprefix("PLAINTEXT://") for item in items if item.strip()]
    if not addresses:
        raise InvalidConfigError("bootstrap.servers is empty: give host:port, such as 127.0.0.1:9095")
    for address in addresses:
        host, colon, port = address.rpartition(":")
        is_number = port.isascii() and port.isdigit() and len(port) <= 5
        if not (colon and host and is_number and 0 < int(port) < 65536):
            raise InvalidConfigError(
                f"bootstrap.servers: {address!r} is not an address: write HOST:PORT, such as 127.0.0.1:9095"
            )
    return list(dict.fromkeys(addresses))


def _check_producer(given: Mapping[str, Any], values: dict[str, Any]) -> None:
    _check_idempotence(given, values)
    if values["transactional.id"] == "":
        raise InvalidConfigError("transactional.id is empty: set a name, or leave the key out")
    if values["transactional.id"] is not None and not values["enable.idempotence"]:
        raise InvalidConfigError(
            f"transactional.id={values['transactional.id']!r} needs idempotence: leave enable.idempotence out, and set "
            "acks=all, retries of 1 or more, and max.in.flight.requests.per.connection of 5 or less"
        )
    least = min(values["linger.ms"] + values["request.timeout.ms"], INT_MAX)  # (capped at INT_MAX, as in Kafka)
    if values["delivery.timeout.ms"] < least:
        if any(PRODUCER.key(name).name == "delivery.timeout.ms" for name in given):
            raise InvalidConfigError(
                f"delivery.timeout.ms={values['delivery.timeout.ms']}: must be at least linger.ms + request.timeout.ms "
                f"({least:g})"
            )
        values["delivery.timeout.ms"] = int(least)


def _check_idempotence(given: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Turn idempotence off if other keys exclude it; raise an error if ``enable.idempotence`` was set to true (as Kafka
    does)."""
    if not values["enable.idempotence"]:
        return
    most = "max.in.flight.requests.per.connection"
    conflicts = [
        text
        for wrong, text in (
            (values["acks"] not in ("all", "-1"), f"acks={values['acks']} (must be all)"),
            (values["retries"] == 0, "retries=0 (must be 1 or more)"),
            (values[most] > 5, f"{most}={values[most]} (must be 5 or less: brokers remember the last 5 batches)"),
        )
        if wrong
    ]
    if not conflicts:
        return
    if any(PRODUCER.key(name).name == "enable.idempotence" for name in given):
        raise InvalidConfigError(
            f"enable.idempotence=true conflicts with {' and '.join(conflicts)}: change the other setting, or leave "
            "enable.idempotence out"
        )
    values["enable.idempotence"] = False
    logger.info(
        "enable.idempotence is off, because idempotent retries are not possible with %s", " and ".join(conflicts)
    )
