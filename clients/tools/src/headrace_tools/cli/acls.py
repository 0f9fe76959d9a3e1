"""The commands ``acls create``, ``list`` and ``delete``: the rights of callers, with the words of kafka-acls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_core.plurals import counted

from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .output import Output, OutputFormat, note, print_json, print_table

if TYPE_CHECKING:
    from headrace.acl_models import AclBinding, AclBindingFilter, ResourceType

_Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic; * is every topic.")]
_Groups = Annotated[list[str] | None, typer.Option("--group", metavar="ID", help="A group; * is every group.")]
_Ids = Annotated[
    list[str] | None,
    typer.Option("--transactional-id", metavar="ID", help="A transactional id; * is every transactional id."),
]
_Users = Annotated[
    list[str] | None,
    typer.Option("--user-principal", metavar="USER", help="The user whose delegation tokens the entry is about."),
]
_Tokens = Annotated[list[str] | None, typer.Option("--delegation-token", metavar="ID", help="A delegation token's id.")]
_Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
_Operations = Annotated[
    list[str] | None,
    typer.Option(
        "--operation",
        metavar="OPERATION",
        help="Read, Write, All, ...; repeatable. Without --operation, `create` means All.",
    ),
]
_Allow = Annotated[
    list[str] | None, typer.Option("--allow-principal", metavar="USER", help="User:alice; User:* is every user.")
]
_Deny = Annotated[list[str] | None, typer.Option("--deny-principal", metavar="USER", help="Like --allow-principal.")]
_AllowHosts = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="HOST", help="A client's IP address or network; default: all."),
]
_DenyHosts = Annotated[list[str] | None, typer.Option("--deny-host", metavar="HOST", help="Like --allow-host.")]
_Producer = Annotated[
    bool,
    typer.Option(
        "--producer",
        help="The operations that a producer needs: WRITE, DESCRIBE, CREATE on topics; WRITE, DESCRIBE on "
        "transactional ids.",
    ),
]
_Consumer = Annotated[
    bool,
    typer.Option("--consumer", help="The operations that a consumer needs: READ, DESCRIBE on topics; READ on groups."),
]
_Idempotent = Annotated[
    bool,
    typer.Option(
        "--idempotent", help="With --producer: also IDEMPOTENT_WRITE on the cluster, which older clients need."
    ),
]
_PATTERNS = ("literal", "prefixed", "match", "any")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Manage ACLs: which principals may do which operations.", no_args_is_help=True)
    group.callback()(_group)
    group.command("create")(create)
    group.command("list")(list_)
    group.command("delete")(delete)
    app.add_typer(group, name="acls")


def _group() -> None:
    """Allow and deny what callers do, by access control entries as in Kafka. Nodes need the key
    authorizer.class.name=StandardAuthorizer. A caller without a matching entry is refused. An entry that denies has
    precedence over entries that allow.

    \b
    Operations:  Read Write Create Delete Alter Describe ClusterAction DescribeConfigs AlterConfigs IdempotentWrite
                 CreateTokens DescribeTokens TwoPhaseCommit All
    """


def create(
    allow: _Allow = None,
    deny: _Deny = None,
    operations: _Operations = None,
    topics: _Topics = None,
    groups: _Groups = None,
    transactional_ids: _Ids = None,
    users: _Users = None,
    tokens: _Tokens = None,
    cluster: _Cluster = False,
    pattern: Annotated[
        str,
        typer.Option(
            "--resource-pattern-type",
            metavar="TYPE",
            help="literal: the resource with this name; prefixed: all resources whose names begin with it.",
        ),
    ] = "literal",
    allow_hosts: _AllowHosts = None,
    deny_hosts: _DenyHosts = None,
    producer: _Producer = False,
    consumer: _Consumer = False,
    idempotent: _Idempotent = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Create access control entries. The default operation is All. Existing entries stay unchanged.

    \b
    Examples:
      headrace acls create --allow-principal User:alice --operation Read --topic orders
      headrace acls create --allow-principal User:etl --producer --topic orders --transactional-id etl
      headrace acls create --allow-principal User:app --consumer --topic 'orders-' --group app \\
            --resource-pattern-type prefixed
      headrace acls create --deny-principal User:bob --deny-host 10.0.0.0/8 --operation All --topic '*'
    """
    if not allow and not deny:
        raise typer.BadParameter("name the principal of the entries: pass --allow-principal or --deny-principal")
    resources = list(_resources(topics, groups, transactional_ids, users, tokens, cluster))
    if not resources:
        raise typer.BadParameter("name a resource: --topic, --group, --transactional-id, --cluster, ...")
    wanted = list(
        _bindings(
            _whom(allow, allow_hosts, deny, deny_hosts),
            list(_operations_on(resources, operations, producer, consumer, idempotent)),
            _pattern_type(pattern, ("literal", "prefixed")),
        )
    )
    with admin(bootstrap) as client:
        client.create_acls(wanted)
    if output is OutputFormat.JSON:
        print_json([_shown(each) for each in wanted])
    else:
        note(f"{counted(len(wanted), 'entry', 'entries')} in force")


def list_(
    topics: _Topics = None,
    groups: _Groups = None,
    transactional_ids: _Ids = None,
    users: _Users = None,
    tokens: _Tokens = None,
    cluster: _Cluster = False,
    principals: Annotated[
        list[str] | None, typer.Option("--principal", metavar="USER", help="Only entries of this principal.")
    ] = None,
    pattern: Annotated[
        str,
        typer.Option(
            "--resource-pattern-type",
            metavar="TYPE",
            help="The entries to list: literal, prefixed, any, or match: all entries that apply to the name.",
        ),
    ] = "any",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List access control entries.

    \b
    Examples:
      headrace acls list
      headrace acls list --topic orders --resource-pattern-type match
      headrace acls list --principal User:alice -o json
    """
    filters = _filters(
        _resources(topics, groups, transactional_ids, users, tokens, cluster), principals, None, None, pattern
    )
    with admin(bootstrap) as client:
        found = list(dict.fromkeys(each for wanted in filters for each in client.describe_acls(wanted)))
    _show(found, output)


def delete(
    allow: _Allow = None,
    deny: _Deny = None,
    operations: _Operations = None,
    topics: _Topics = None,
    groups: _Groups = None,
    transactional_ids: _Ids = None,
    users: _Users = None,
    tokens: _Tokens = None,
    cluster: _Cluster = False,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--resource-pattern-type",
            metavar="TYPE",
            help="The entries to delete: literal, prefixed, any, or match: all entries that apply to the name. "
            "Default: literal with a resource, any without one.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete every entry of the cluster.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Delete access control entries; the command shows what it deleted.

    \b
    Examples:
      headrace acls delete --allow-principal User:alice --topic orders
      headrace acls delete --topic orders --operation Write
    """
    resources = list(_resources(topics, groups, transactional_ids, users, tokens, cluster))
    if not (resources or allow or deny or operations or everything):
        raise typer.BadParameter("name the entries: a resource, a principal or an operation; --all deletes every entry")
    whom = _whom(allow, None, deny, None) or [None]
    if pattern is None:
        pattern = "literal" if resources else "any"
    filters = [
        each
        for one in whom
        for each in _filters(
            iter(resources),
            None if one is None else [one[0]],
            operations,
            None if one is None else one[1],
            pattern,
        )
    ]
    with admin(bootstrap) as client:
        _show(client.delete_acls(filters), output)


def _resources(
    topics: list[str] | None,
    groups: list[str] | None,
    transactional_ids: list[str] | None,
    users: list[str] | None,
    tokens: list[str] | None,
    cluster: bool,
) -> Iterator[tuple[ResourceType, str]]:
    from headrace.acl_models import CLUSTER_NAME, ResourceType

    for kind, names in (
        (ResourceType.TOPIC, topics),
        (ResourceType.GROUP, groups),
        (ResourceType.TRANSACTIONAL_ID, transactional_ids),
        (ResourceType.USER, users),
        (ResourceType.DELEGATION_TOKEN, tokens),
    ):
        for name in names or ():
            yield kind, name
    if cluster:
        yield ResourceType.CLUSTER, CLUSTER_NAME


def _operations_on(
    resources: list[tuple[ResourceType, str]],
    operations: list[str] | None,
    producer: bool,
    consumer: bool,
    idempotent: bool,
) -> Iterator[tuple[ResourceType, str, Any]]:
    """The operations on each resource; --producer and --consumer are kafka-acls' short forms."""
    from headrace.acl_models import CLUSTER_NAME, AclOperation, ResourceType

    kinds = {kind for kind, _ in resources}
    if (producer or consumer) and operations:
        raise typer.BadParameter("--operation and the short forms --producer and --consumer exclude each other")
    if producer and ResourceType.TOPIC not in kinds:
        raise typer.BadParameter("--producer needs --topic")
    if consumer and not {ResourceType.TOPIC, ResourceType.GROUP} <= kinds:
        raise typer.BadParameter("--consumer needs --topic and --group")
    if idempotent and not producer:
        raise typer.BadParameter("--idempotent needs --producer")
    for kind, name in resources:
        if not (producer or consumer):
            for operation in operations or ["all"]:
                yield kind, name, _operation(operation)
            continue
        found: set[Any] = set()
        if producer and kind is ResourceType.TOPIC:
            found |= {AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE}
        if producer and kind is ResourceType.TRANSACTIONAL_ID:
            found |= {AclOperation.WRITE, AclOperation.DESCRIBE}
        if consumer and kind is ResourceType.TOPIC:
            found |= {AclOperation.READ, AclOperation.DESCRIBE}
        if consumer and kind is ResourceType.GROUP:
            found |= {AclOperation.READ}
        for each in sorted(found):
            yield kind, name, each
    if idempotent:
        yield ResourceType.CLUSTER, CLUSTER_NAME, AclOperation.IDEMPOTENT_WRITE


def _operation(text: str) -> Any:
    from headrace.acl_models import AclOperation

    for each in AclOperation:
        if each.name.replace("_", "") == text.upper().replace("_", "").replace("-", "") and each > AclOperation.ANY:
            return each
    legal = ", ".join(each.name.title().replace("_", "") for each in AclOperation if each > AclOperation.ANY)
    raise typer.BadParameter(f"{text!r}: must be one of {legal}", param_hint="--operation")


def _pattern_type(text: str, legal: tuple[str, ...] = _PATTERNS) -> Any:
    from headrace.acl_models import ResourcePatternType

    if text.lower() not in legal:
        raise typer.BadParameter(f"{text!r}: must be one of {', '.join(legal)}", param_hint="--resource-pattern-type")
    return ResourcePatternType[text.upper()]


def _whom(
    allow: list[str] | None, allow_hosts: list[str] | None, deny: list[str] | None, deny_hosts: list[str] | None
) -> list[Any]:
    """(principal, permission, host) of each entry."""
    from headrace.acl_models import AclPermissionType

    return [
        (principal, permission, host)
        for permission, principals, hosts in (
            (AclPermissionType.ALLOW, allow, allow_hosts),
            (AclPermissionType.DENY, deny, deny_hosts),
        )
        for principal in principals or ()
        for host in hosts or ["*"]
    ]


def _bindings(whom: list[Any], operations: list[Any], pattern: Any) -> Iterator[AclBinding]:
    from headrace.acl_models import AclBinding, ResourcePatternType, ResourceType

    for kind, name, operation in operations:
        for principal, permission, host in whom:
            yield AclBinding(
                resource_type=kind,
                resource_name=name,
                pattern_type=ResourcePatternType.LITERAL if kind is ResourceType.CLUSTER else pattern,
                principal=principal,
                host=host,
                operation=operation,
                permission=permission,
            )


def _filters(
    resources: Iterator[tuple[ResourceType, str]],
    principals: list[str] | None,
    operations: list[str] | None,
    permission: Any,
    pattern: str,
) -> list[AclBindingFilter]:
    from headrace.acl_models import AclBindingFilter, AclOperation, AclPermissionType, ResourceType

    kinds: list[tuple[ResourceType, str | None]] = [*resources] or [(ResourceType.ANY, None)]
    whose: list[str | None] = [*(principals or ())] or [None]
    return [
        AclBindingFilter(
            resource_type=kind,
            resource_name=name,
            pattern_type=_pattern_type(pattern),
            principal=principal,
            operation=operation,
            permission=AclPermissionType.ANY if permission is None else permission,
        )
        for kind, name in kinds
        for principal in whose
        for operation in ([_operation(each) for each in operations] if operations else [AclOperation.ANY])
    ]


def _shown(binding: AclBinding) -> dict[str, str]:
    return {
        "resource_type": binding.resource_type.name,
        "resource_name": binding.resource_name,
        "pattern_type": binding.pattern_type.name,
        "principal": binding.principal,
        "host": binding.host,
        "operation": binding.operation.name,
        "permission": binding.permission.name,
    }


def _show(found: list[AclBinding], output: OutputFormat) -> None:
    rows = sorted((_shown(each) for each in found), key=lambda each: tuple(each.values()))
    if output is OutputFormat.JSON:
        print_json(rows)
    else:
        print_table(
            ("TYPE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION"),
            [tuple(each.values()) for each in rows],
        )
