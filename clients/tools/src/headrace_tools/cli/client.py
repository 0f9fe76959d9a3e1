"""The common options of client commands (``--bootstrap``, ``--profile``, ``-X``), and the client configuration that
they give.

The address of the cluster comes from the first source that is set (docs/cli/README.md). If the default address is a
broker of a local cluster, all brokers of that cluster are used (local/finding.py).
"""

from __future__ import annotations

import functools
import inspect
import socket
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_core.errors import HeadraceError

from ..local.finding import bootstrap_servers, clusters_here
from .output import key_values, note, usage_of
from .times import duration

if TYPE_CHECKING:
    from .profile_files import Profile

DEFAULT_BOOTSTRAP = "127.0.0.1:9095"
BOOTSTRAP_VARIABLE = "HEADRACE_BOOTSTRAP_SERVERS"


def _servers_here(default: str) -> str:
    """The addresses of all brokers of the local cluster at the address ``default``; ``default`` if there is no such
    cluster. Print a note on stderr when the data directory has a different running cluster."""
    here = clusters_here(default)
    if here.other is not None:
        note(
            f"headrace: asking the cluster at {default}; the cluster in {here.other.directory} is a different cluster: "
            f"pass -b {bootstrap_servers(here.other.state)} or set {BOOTSTRAP_VARIABLE} to ask that cluster"
        )
    return default if here.meant is None else bootstrap_servers(here.meant.state)


def is_given(context: typer.Context, name: str, *, only_typed: bool = False) -> bool:
    """Whether the user gave the option: by flag, environment, profile or --command-config. With ``only_typed``, only a
    flag makes the result True."""
    if only_typed:
        return _is_typed(context, name)
    profile = _chosen.get()
    if name == "bootstrap" and profile is not None and "bootstrap.servers" in profile.values:
        return True
    if name == "bootstrap" and "bootstrap.servers" in _from_file("admin"):
        return True
    return _source(context, name) in ("COMMANDLINE", "ENVIRONMENT")


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        help=(
            "Addresses of brokers or controllers to connect to first. Default: all brokers of the local cluster at "
            "127.0.0.1:9095."
        ),
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property", "-X", metavar="KEY=VALUE", help="A client configuration key, such as acks=1; repeatable."
    ),
]
ProfileName = Annotated[
    str | None,
    typer.Option(
        "--profile",
        envvar="HEADRACE_PROFILE",
        metavar="NAME",
        help="The profile to use, with the cluster's address and other client keys: see `headrace profile`.",
    ),
]

CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        envvar="HEADRACE_COMMAND_CONFIG",
        metavar="FILE",
        help="A properties file with client keys, such as security.protocol and ssl.truststore.location.",
    ),
]

_config_file: ContextVar[Path | None] = ContextVar(
    "the file of --command-config of the command that runs", default=None
)
_chosen: ContextVar[Profile | None] = ContextVar("the profile of the command that runs", default=None)


def finds_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--profile`` and ``--command-config`` to a command that has ``bootstrap``."""

    @functools.wraps(command)
    def with_profile(
        *, typer_context: typer.Context, profile_name: str | None, command_config: Path | None, **given: Any
    ) -> None:
        file_before = _config_file.set(command_config)
        before = _chosen.set(None)
        try:
            profile, given["bootstrap"] = _cluster(typer_context, profile_name, given["bootstrap"], given.get("data"))
            _chosen.set(profile)
            if own_context is not None:
                given[own_context] = typer_context
            command(**given)
        finally:
            _chosen.reset(before)
            _config_file.reset(file_before)

    signature = inspect.signature(command, eval_str=True)
    contexts = [each.name for each in signature.parameters.values() if each.annotation is typer.Context]
    own_context = contexts[0] if contexts else None
    keyword = inspect.Parameter.KEYWORD_ONLY
    more = (
        inspect.Parameter("profile_name", keyword, default=None, annotation=ProfileName),
        inspect.Parameter("command_config", keyword, default=None, annotation=CommandConfig),
        inspect.Parameter("typer_context", keyword, annotation=typer.Context),
    )
    parameters = [*(each for each in signature.parameters.values() if each.name != own_context), *more]
    with_profile.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_profile.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_profile


def _cluster(context: typer.Context, profile_name: str | None, bootstrap: str, data: Any) -> tuple[Profile | None, str]:
    """The profile of a command, and the addresses of the command's cluster. ``data`` is the value of the command's
    option --data."""
    profile = _choose(context, profile_name)
    servers = None
    if profile is not None and not _outranks(context, "bootstrap", "profile_name"):
        servers = profile.keys_of("admin").get("bootstrap.servers")
    if data is None and not _outranks_file(context):
        servers = _from_file("admin").get("bootstrap.servers", servers)
    if servers is None and not is_given(context, "bootstrap") and data is None:
        servers = _servers_here(bootstrap)
    return profile, servers or bootstrap


def config_for_completion(context: typer.Context, timeout_s: float) -> dict[str, Any]:
    """The configuration of an admin client for shell completion, when the command line is not complete yet."""
    given = context.params
    profile, bootstrap = _cluster(
        context, given.get("profile_name"), given.get("bootstrap") or DEFAULT_BOOTSTRAP, given.get("data")
    )
    kept = {} if profile is None else profile.keys_of("admin")
    timeouts = dict.fromkeys(("bootstrap.timeout.ms", "request.timeout.ms"), int(timeout_s * 1_000))
    return kept | {"bootstrap.servers": bootstrap, "client.id": "headrace-completion"} | timeouts


def _choose(context: typer.Context, named: str | None) -> Profile | None:
    """The profile that applies; None for an empty name, even if there is a current profile."""
    from .profile_files import ProfileFiles

    before_the_command = context.find_root().params.get("profile")
    if _is_typed(context, "data") and before_the_command is None and not _is_typed(context, "profile_name"):
        return None  # --data names a cluster on this machine
    files = ProfileFiles()
    if before_the_command is not None and not _is_typed(context, "profile_name"):
        named = before_the_command
    name = files.current() if named is None else named
    return files.read(name) if name else None


def _outranks(context: typer.Context, one: str, other: str) -> bool:
    """Whether the option ``one`` has precedence over ``other``. A typed ``one`` has precedence. If ``one`` comes from
    the environment or a profile, it has precedence only if neither ``other`` nor `headrace --profile` was typed."""
    if context.find_root().params.get("profile") is not None or _is_typed(context, other):
        return _is_typed(context, one)
    return is_given(context, one)


def _outranks_file(context: typer.Context) -> bool:
    """Whether the command line or the environment names a cluster, with precedence over the file of
    --command-config."""
    if _is_typed(context, "command_config"):
        return _is_typed(context, "bootstrap")
    has_profile = context.find_root().params.get("profile") is not None or _is_typed(context, "profile_name")
    return has_profile or _source(context, "bootstrap") in ("COMMANDLINE", "ENVIRONMENT")


def _is_typed(context: typer.Context, parameter: str) -> bool:
    return _source(context, parameter) == "COMMANDLINE"


def _source(context: typer.Context, parameter: str) -> str:
    found = context.get_parameter_source(parameter)
    return "" if found is None else found.name


def client_config(
    bootstrap: str,
    properties: Iterable[str] | None,
    *,
    kind: str = "admin",
    defaults: Mapping[str, Any] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The configuration keys for a client of ``kind`` (admin, producer, consumer). The order of precedence is, lowest
    first: the defaults in this module and the command's ``defaults``, the profile, the file of --command-config, the
    command's ``flags``, -X. The bootstrap timeout of a command is shorter than that of a service, because a user waits
    for the command."""
    profile = _chosen.get()
    kept = {} if profile is None else profile.keys_of(kind)
    ours = {"bootstrap.timeout.ms": 3_000, "client.id": "headrace-cli"} | dict(defaults or {})
    typed = key_values(properties or (), "-X")
    _check(kind, dict(flags or {}), "")
    _check(kind, typed, "-X")
    return ours | kept | _from_file(kind) | {"bootstrap.servers": bootstrap} | dict(flags or {}) | typed


def _from_file(kind: str) -> dict[str, Any]:
    """The keys in the file of --command-config that a client of ``kind`` has."""
    path = _config_file.get()
    if path is None:
        return {}
    from headrace.settings import ADMIN, CONSUMER, PRODUCER, from_file

    return from_file({each.where: each for each in (ADMIN, PRODUCER, CONSUMER)}[kind], path)


def _check(kind: str, typed: Mapping[str, Any], flag: str) -> None:
    """Raise a usage error for a key or a value that a client of this ``kind`` refuses."""
    if typed:
        from headrace.settings import ADMIN, CONSUMER, PRODUCER

        definition = {each.where: each for each in (ADMIN, PRODUCER, CONSUMER)}[kind]
        for key, value in typed.items():
            with usage_of(flag or key):
                definition.parse({key: value}, defaults=False)


def admin(bootstrap: str, properties: Iterable[str] | None = None) -> Any:
    """Make a blocking admin client; use it in a ``with`` block."""
    from headrace import Admin

    return Admin(client_config(bootstrap, properties))


def resolved(bootstrap: str, properties: Iterable[str] | None = None) -> dict[str, Any]:
    """All keys of the admin client that a command makes, with their defaults."""
    from headrace.settings import ADMIN, resolve

    return resolve(ADMIN, client_config(bootstrap, properties), {})


def tls_of(bootstrap: str, properties: Iterable[str] | None = None) -> Any:
    """The keys and certificates (TlsSource) of the client that a command makes; None without encryption."""
    from headrace.engine.security import channels_of

    return channels_of(resolved(bootstrap, properties)).credentials


# -- timeouts of group commands

GroupTimeout = Annotated[float, duration("--timeout", least_s=0.1, help="How long to wait for coordinators.")]

#: Timeout of group commands in seconds: long enough for live coordinators to take over the groups of a dead
#: coordinator.
GROUP_TIMEOUT_S = 15.0
#: Timeout in seconds of group commands when no coordinator is alive: long enough for a coordinator that is just
#: starting.
NOBODY_S = 3.0


def coordinator_timeout_s(client: Any, timeout_s: float) -> float:
    """Return ``timeout_s``, or the short NOBODY_S if ``timeout_s`` is the default and no registered coordinator accepts
    connections."""
    if timeout_s != GROUP_TIMEOUT_S:
        return timeout_s
    try:
        cluster = client.describe_cluster(timeout=timeout_s)
    except HeadraceError:  # ignore the error here, because the command itself will report it
        return timeout_s
    return timeout_s if any(_listens(each.host, each.port) for each in cluster.coordinators) else NOBODY_S


def _listens(host: str, port: int) -> bool:
    """Whether a process accepts connections at ``host`` and ``port``; False for a process that has ended, which
    controllers may still list. A process that accepts connections but does not respond counts as listening: it may be
    slow, or another coordinator may soon take over its groups."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except TimeoutError:
        return True
    except OSError:
        return False
    return True
