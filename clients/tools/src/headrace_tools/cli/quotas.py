"""The commands ``quotas set``, ``list`` and ``delete``: limits of clients, as in kafka-configs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .output import Output, OutputFormat, key_values, print_json, print_table

if TYPE_CHECKING:
    from headrace import Admin
    from headrace.quota_models import QuotaEntity, QuotaName

_User = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="The user's name without the prefix User:, such as alice.")
]
_UserDefaults = Annotated[bool, typer.Option("--user-defaults", help="All users without a quota of their own.")]
_Client = Annotated[str | None, typer.Option("--client-id", "--client", metavar="ID", help="The client.id.")]
_ClientDefaults = Annotated[
    bool, typer.Option("--client-defaults", help="All client ids without a quota of their own.")
]
_Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="The address that clients connect from.")]
_IpDefaults = Annotated[bool, typer.Option("--ip-defaults", help="All addresses without a quota of their own.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Limit the load that clients put on the cluster.", no_args_is_help=True)
    group.callback()(_group)
    group.command("set")(set_)
    group.command("list")(list_)
    group.command("delete")(delete)
    app.add_typer(group, name="quotas")


def _group() -> None:
    """Limit the load that clients put on the cluster, by user, client id, both, or address. Each broker applies a quota
    separately.

    \b
    Keys:
      producer_byte_rate         bytes/s that a client may produce
      consumer_byte_rate         bytes/s that a client may fetch
      request_percentage         percentage of a node's time that a client's requests may take
      controller_mutation_rate   partitions/s that a client may create or delete
      connection_creation_rate   connections/s from an address (--ip)
    """


def set_(
    values: Annotated[list[str], typer.Argument(metavar="KEY=NUMBER...", help="The quotas to set.")],
    user: _User = None,
    user_defaults: _UserDefaults = False,
    client_id: _Client = None,
    client_defaults: _ClientDefaults = False,
    ip: _Ip = None,
    ip_defaults: _IpDefaults = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the request; change nothing.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Set quotas of a user, a client id, both, or an address.

    \b
    Examples:
      headrace quotas set --user alice producer_byte_rate=5242880 consumer_byte_rate=5242880
      headrace quotas set --user alice --client-id etl request_percentage=50
      headrace quotas set --client-defaults producer_byte_rate=1048576
      headrace quotas set --ip 10.0.0.7 connection_creation_rate=20
    """
    entity = _entity(user, user_defaults, client_id, client_defaults, ip, ip_defaults)
    with admin(bootstrap) as client:
        client.alter_client_quotas({entity: dict(_numbers(values))}, validate_only=dry_run)
        found = _all_of(client, entity)
    _show({entity: found}, output)


def list_(
    user: _User = None,
    user_defaults: _UserDefaults = False,
    client_id: _Client = None,
    client_defaults: _ClientDefaults = False,
    ip: _Ip = None,
    ip_defaults: _IpDefaults = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="List only the quotas of exactly the named entity: `--user alice --strict` omits those of alice with "
            "a client id.",
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List the quotas of the cluster; options select the quotas of a user, a client id or an address.

    \b
    Examples:
      headrace quotas list
      headrace quotas list --user alice
      headrace quotas list --client-defaults -o json
    """
    with admin(bootstrap) as client:
        found = client.describe_client_quotas(
            user=_name("--user", user, user_defaults),
            client_id=_name("--client", client_id, client_defaults),
            ip=_name("--ip", ip, ip_defaults),
            strict=strict,
        )
    _show(found, output)


def delete(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY...", help="The quotas to remove; default: all quotas of the entity."),
    ] = None,
    user: _User = None,
    user_defaults: _UserDefaults = False,
    client_id: _Client = None,
    client_defaults: _ClientDefaults = False,
    ip: _Ip = None,
    ip_defaults: _IpDefaults = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Remove quotas. The command succeeds even if a quota does not exist.

    \b
    Examples:
      headrace quotas delete --user alice producer_byte_rate
      headrace quotas delete --client-defaults
    """
    entity = _entity(user, user_defaults, client_id, client_defaults, ip, ip_defaults)
    with admin(bootstrap) as client:
        keys = keys or list(_all_of(client, entity))
        if keys:
            client.alter_client_quotas({entity: dict.fromkeys(keys)})
        found = _all_of(client, entity)
    _show({entity: found}, output)


def _all_of(client: Admin, entity: QuotaEntity) -> dict[str, float]:
    """The quotas of exactly this entity."""
    found = client.describe_client_quotas(user=entity.user, client_id=entity.client_id, ip=entity.ip, strict=True)
    return found.get(entity, {})


def _show(found: dict[QuotaEntity, dict[str, float]], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json([{"entity": _parts(entity), "quotas": values} for entity, values in found.items()])
        return
    print_table(
        ("ENTITY", "QUOTA", "VALUE"),
        [(str(entity), key, f"{value:.15g}") for entity, values in found.items() for key, value in values.items()],
    )


def _entity(
    user: str | None,
    user_defaults: bool,
    client_id: str | None,
    client_defaults: bool,
    ip: str | None,
    ip_defaults: bool,
) -> QuotaEntity:
    from headrace.quota_models import QuotaEntity

    entity = QuotaEntity(
        user=_name("--user", user, user_defaults),
        client_id=_name("--client", client_id, client_defaults),
        ip=_name("--ip", ip, ip_defaults),
    )
    if not any(entity.parts()):
        raise typer.BadParameter(
            "name what the quota applies to: --user, --client-id, --ip, --user-defaults, --client-defaults or "
            "--ip-defaults"
        )
    return entity


def _name(option: str, name: str | None, is_default: bool) -> str | QuotaName | None:
    from headrace.quota_models import QuotaName

    if name is not None and is_default:
        raise typer.BadParameter(f"{option} and {option}-defaults exclude each other")
    return QuotaName.DEFAULT if is_default else name


def _numbers(values: list[str]) -> dict[str, float | None]:
    numbers: dict[str, float | None] = {}
    for key, text in key_values(values, "KEY=NUMBER").items():
        try:
            numbers[key] = float(text)
        except ValueError:
            raise typer.BadParameter(f"{key}={text}: must be a number", param_hint="KEY=NUMBER") from None
    return numbers


def _parts(entity: QuotaEntity) -> dict[str, str | None]:
    return {kind: name if isinstance(name, str) else None for kind, name in entity.parts()}
