"""Configuration keys of the registry's client and of the serializers, with Confluent's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace_core.config import HEADRACE, ConfigDef, Kind, honoured
from headrace_core.errors import InvalidConfigError

from .subjects import strategy

#: Maps key names of Confluent's Python client and Java serializers to Headrace's names of the same keys.
_SAME = {
    "url": "schema.registry.url",
    "schema.registry.basic.auth.user.info": "basic.auth.user.info",
    "schema.registry.ssl.ca.location": "ssl.ca.location",
    "schema.registry.ssl.certificate.location": "ssl.certificate.location",
    "schema.registry.ssl.key.location": "ssl.key.location",
}

DEFAULT_URL = "http://127.0.0.1:8081"
URL_VARIABLE = "HEADRACE_SCHEMA_REGISTRY_URL"

REGISTRY = ConfigDef(
    (
        honoured(
            "schema.registry.url",
            None,
            f"URLs of the registry's replicas, which are tried in turn. Default: {URL_VARIABLE}, or {DEFAULT_URL}.",
            kind=Kind.LIST,
        ),
        honoured("basic.auth.user.info", None, "user:password for HTTP's basic authentication.", kind=Kind.PASSWORD),
        honoured("bearer.auth.token", None, "A token for HTTP's bearer authentication.", kind=Kind.PASSWORD),
        honoured("ssl.ca.location", None, "A PEM file of the authorities to trust.", kind=Kind.STRING),
        honoured("ssl.certificate.location", None, "A PEM file with this client's certificate.", kind=Kind.STRING),
        honoured("ssl.key.location", None, "A PEM file with the certificate's private key.", kind=Kind.STRING),
        honoured(
            "request.timeout.ms",
            12_000,
            "How long the client waits for the answer of one URL. A write may wait for the election of a writer.",
            low=1,
            source=HEADRACE,
        ),
        honoured(
            "retries",
            2,
            "How often the client tries all URLs again, when none of them answers.",
            low=0,
            source=HEADRACE,
        ),
        honoured("retry.backoff.ms", 100, "The pause before the first retry; it doubles.", low=0, source=HEADRACE),
        honoured("retry.backoff.max.ms", 1_000, "The longest pause between retries.", low=0, source=HEADRACE),
        honoured(
            "cache.capacity",
            1_000,
            "How many schemas, ids and latest versions the client remembers, of each kind.",
            low=1,
            source=HEADRACE,
        ),
        honoured(
            "latest.cache.ttl.ms",
            60_000,
            "How old a subject's latest version may be before the client asks again, in the background.",
            low=0,
            source=HEADRACE,
        ),
        honoured(
            "failure.cache.ms",
            1_000,
            "How long serializers repeat a failed look-up's error without asking the registry again.",
            low=1,
            source=HEADRACE,
        ),
    ),
    where="schema registry client",
)

SERIALIZER = ConfigDef(
    (
        honoured(
            "auto.register.schemas",
            False,
            "Register a schema that its subject does not have. Confluent's default is true.",
            kind=Kind.BOOLEAN,
            source=HEADRACE,
        ),
        honoured(
            "use.latest.version",
            False,
            "Write with the subject's latest version in place of the given schema.",
            kind=Kind.BOOLEAN,
        ),
        honoured("use.schema.id", None, "Write with the schema that has this id.", kind=Kind.INT, low=0),
        honoured(
            "normalize.schemas",
            False,
            "Let the registry normalize the schema before it looks the schema up or registers it.",
            kind=Kind.BOOLEAN,
        ),
    ),
    where="schema serializer",
)


def registry_values(
    config: str | Sequence[str] | Mapping[str, Any] | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Typed values of the client's keys. Raises InvalidConfigError."""
    if config is not None and not isinstance(config, str | list | tuple | Mapping):
        raise InvalidConfigError(
            f"a {REGISTRY.where} takes a URL, a list of URLs, or a dict with dotted keys, not {config!r:.80}"
        )
    given = dict(config or {}) if config is None or isinstance(config, Mapping) else {"schema.registry.url": config}
    return _parsed(REGISTRY, given, settings)


def serializer_values(config: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Typed values of a serializer's keys, ``subject.name.strategy`` as a callable. Raises InvalidConfigError."""
    given, more = dict(config or {}), dict(settings)
    strategies = [
        source.pop(name)
        for source in (given, more)
        for name in ("subject.name.strategy", "subject_name_strategy")
        if name in source
    ]
    if len(strategies) > 1:
        raise InvalidConfigError("schema serializer configuration key 'subject.name.strategy' is given twice")
    values = _parsed(SERIALIZER, given, more)
    if values["use.schema.id"] is not None and (values["use.latest.version"] or values["auto.register.schemas"]):
        raise InvalidConfigError(
            "use.schema.id names one schema: leave use.latest.version and auto.register.schemas out"
        )
    if values["use.latest.version"] and values["auto.register.schemas"]:
        raise InvalidConfigError(
            "use.latest.version=true writes with a registered schema: leave auto.register.schemas out"
        )
    return values | {"subject.name.strategy": strategy(strategies[0] if strategies else "topic")}


def _parsed(definition: ConfigDef, given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name, value in (*given.items(), *settings.items()):
        known = definition.key(_SAME.get(name.replace("_", "."), name) if definition is REGISTRY else name)
        if known.name in merged:
            raise InvalidConfigError(f"{definition.where} configuration key {known.name!r} is given twice")
        merged[known.name] = value
    return definition.parse({name: value for name, value in merged.items() if value is not None})
