"""Parse the flags ``--command-config`` and ``-X``, with which a command reaches a secured cluster. The flags have the
same keys as in ``headrace``, and apply to clients and to Spark's source and sink. No ``repr`` and no message contains a
secret."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.settings import ADMIN, BOOTSTRAP_VARIABLE, CONSUMER, DEFAULT_BOOTSTRAP, PRODUCER, from_file
from headrace_core.config import ConfigDef, Kind
from headrace_core.errors import InvalidConfigError
from headrace_tools.cli.times import config_value

CONFIG_VARIABLE = "HEADRACE_COMMAND_CONFIG"
_SERVERS = "bootstrap.servers"
#: Keys of Spark's source and sink that let tasks log in with a delegation token (headrace_spark.delegation).
_TOKENS = ("delegation.token.enabled", "sasl.token.mechanism")
#: Prefix of the keys for the schema registry's client.
_REGISTRY = "schema.registry."
#: Keys that a pipeline sets itself, or that its source and sink refuse. A configuration file that several programs
#: share may contain these keys; the pipeline ignores them.
_OWN = frozenset((
    _SERVERS, "group.id", "group.instance.id", "client.id", "isolation.level", "auto.offset.reset",
    "enable.auto.commit", "transactional.id", "interceptor.classes", "partitioner.class",
    "key.serializer", "value.serializer", "key.deserializer", "value.deserializer",
))  # fmt: skip
#: A schema registry: its settings, its URL, or None for the default registry.
Registry = Mapping[str, str] | str | None
#: Attributes of the parsed flags that may contain secrets, or name a file with secrets.
PRIVATE = frozenset(("properties", "command_config"))
_KINDS = (ADMIN, PRODUCER, CONSUMER)


@dataclass(frozen=True, slots=True)
class Access:
    """``servers``: HOST:PORT,... of brokers. ``keys``: further keys of clients, such as keys for TLS and login."""

    servers: str
    keys: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    def admin(self) -> dict[str, str]:
        """The configuration of an Admin."""
        return self._client(ADMIN)

    def producer(self) -> dict[str, str]:
        """The configuration of a Producer."""
        return self._client(PRODUCER)

    def consumer(self) -> dict[str, str]:
        """The configuration of a Consumer."""
        return self._client(CONSUMER)

    def shared(self) -> dict[str, str]:
        """The keys that an Admin, a Producer and a Consumer all accept, for programs with several clients."""
        return dict(self.admin().items() & self.producer().items() & self.consumer().items())

    def source(self) -> dict[str, str]:
        """Options of Spark's source."""
        return _options(self.consumer() | self._tokens())

    def sink(self) -> dict[str, str]:
        """Options of Spark's sink."""
        return _options(self.producer() | self._tokens())

    def registry(self, url: str | None) -> Registry:
        """The settings of the schema registry at ``url`` (None: the URL in the keys, otherwise the default)."""
        keys = {name: value for name, value in self.keys.items() if name.startswith(_REGISTRY)}
        if not keys:
            return url
        return keys if url is None else keys | {f"{_REGISTRY}url": url}

    def hidden(self, text: str) -> str:
        """``text`` with ``[hidden]`` in place of each secret of the keys."""
        for name, value in self.keys.items():
            if value and _is_secret(name):
                text = text.replace(value, "[hidden]")
        return text

    def _client(self, kind: ConfigDef) -> dict[str, str]:
        return {_SERVERS: self.servers} | {name: value for name, value in self.keys.items() if _is_of(kind, name)}

    def _tokens(self) -> dict[str, str]:
        return {name: self.keys[name] for name in _TOKENS if name in self.keys}


def _options(keys: Mapping[str, str]) -> dict[str, str]:
    return {f"headrace.{name}": value for name, value in keys.items()}


def _is_of(kind: ConfigDef, name: str) -> bool:
    return name in kind.keys or any(name.startswith(prefix) for prefix in kind.families)


def _is_secret(name: str) -> bool:
    known = [kind.key(name).kind is Kind.PASSWORD for kind in _KINDS if _is_of(kind, name)]
    return any(known) or name.startswith(f"{_REGISTRY}basic.auth")


def add_arguments(parser: argparse.ArgumentParser, default: str = "") -> None:
    """Add ``--bootstrap-servers``, ``--command-config`` and ``-X``. ``default``: the help text's name for the cluster
    that the command uses without a flag."""
    default = default or f"{BOOTSTRAP_VARIABLE}, or {DEFAULT_BOOTSTRAP}"
    parser.add_argument(
        "--bootstrap-servers", "-b", metavar="HOST:PORT,...", help=f"addresses of brokers (default: {default})"
    )
    parser.add_argument(
        "--command-config", type=Path, metavar="FILE",
        help="a properties file with client keys, such as security.protocol and ssl.truststore.location (default: "
        f"{CONFIG_VARIABLE})",
    )  # fmt: skip
    parser.add_argument(
        "--property", "-X", dest="properties", type=_pair, action="append", metavar="KEY=VALUE",
        help="a client key, such as delegation.token.enabled=true; repeatable",
    )  # fmt: skip


def access_of(arguments: argparse.Namespace, servers: str | None = None) -> Access:
    """The access that the flags of ``add_arguments`` describe. ``-X`` has precedence over the file. ``servers``: the
    cluster to use if the flags do not name one.

    Raises InvalidConfigError for a key that no client has, a key that a pipeline sets itself, and a wrong value.
    """
    typed = dict(arguments.properties or ())
    file = arguments.command_config or os.environ.get(CONFIG_VARIABLE)
    kept = _of_file(Path(file)) if file else {}
    servers = (
        servers
        or arguments.bootstrap_servers
        or typed.get(_SERVERS)
        or os.environ.get(BOOTSTRAP_VARIABLE)
        or kept.get(_SERVERS)
        or DEFAULT_BOOTSTRAP
    )
    for name, value in typed.items():
        _check(name, value)
    given = kept | typed
    return Access(servers, {name: value for name, value in given.items() if name not in _OWN})


def given_access(arguments: argparse.Namespace) -> Access | None:
    """The access that the flags describe; None if the command line has no flag for the cluster. Environment variables
    cannot name the cluster, because a run replaces topics. The command line must name the cluster with ``-b``, with
    ``-X`` or in the file of ``--command-config``.

    Raises InvalidConfigError if the command line names no cluster, and the errors of ``access_of``.
    """
    if not (arguments.bootstrap_servers or arguments.command_config or arguments.properties):
        return None
    servers = named_servers(arguments)
    if servers is None:
        raise InvalidConfigError(
            "--command-config and -X name no cluster; a run deletes and creates topics, so name its cluster: "
            "add --bootstrap-servers HOST:PORT,..., or leave out both flags"
        )
    return access_of(arguments, servers)


def named_servers(arguments: argparse.Namespace) -> str | None:
    """The addresses that the command line names with ``-b``, with ``-X`` or in the file of ``--command-config``. Raises
    InvalidConfigError."""
    typed = arguments.bootstrap_servers or dict(arguments.properties or ()).get(_SERVERS)
    if typed or not arguments.command_config:
        return typed or None
    return _of_file(arguments.command_config).get(_SERVERS)


def _of_file(path: Path) -> dict[str, str]:
    """The keys of a file that at least one kind of client knows. Raises InvalidConfigError."""
    return {name: value for kind in _KINDS for name, value in from_file(kind, path).items()}


def _check(name: str, value: str) -> None:
    if name in _TOKENS:
        return  # the source and the sink check their values
    if name.startswith(_REGISTRY) or name == _SERVERS:
        return
    if name in _OWN:
        raise InvalidConfigError(f"-X {name}: this command sets {name} itself; leave this -X out")
    kinds: Iterable[ConfigDef] = [kind for kind in _KINDS if _is_of(kind, name)] or [CONSUMER]
    for kind in kinds:
        kind.parse({name: value}, defaults=False)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError("must be KEY=VALUE")  # omits the text, which may be a secret
    return name.strip(), config_value(name.strip(), value.strip())
