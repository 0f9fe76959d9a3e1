"""``schemas list|show|register|check|diff|delete|level``: the subjects and schemas of a schema registry."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_core import exact_json
from headrace_core.errors import InvalidArgumentError
from headrace_core.plurals import counted

from .output import Output, OutputFormat, print_json, print_table, show, usage_of

if TYPE_CHECKING:
    from headrace.schemas import Compatibility, RegisteredSchema, Schema, SchemaRegistry

#: Maximum size in bytes of a schema file that the command reads; the registry has a lower limit.
_FILE_BYTES_MAX = 16 * 1024 * 1024

_BY_SUFFIX = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}

Registry = Annotated[
    str,
    typer.Option(
        "--registry",
        "-r",
        metavar="URL,...",
        envvar="HEADRACE_SCHEMA_REGISTRY_URL",
        help="URLs of the schema registry.",
    ),
]
DEFAULT_REGISTRY = "http://127.0.0.1:8081"

Properties = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        "--property",
        metavar="KEY=VALUE",
        help="A configuration key of the registry's client, such as basic.auth.user.info; repeatable.",
    ),
]
_Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="The subject, such as orders-value.")]
_File = Annotated[str, typer.Argument(metavar="FILE", help="The schema's file: .avsc, .proto or .json; - for stdin.")]
_Kind = Annotated[
    str | None,
    typer.Option("--type", metavar="TYPE", help="avro, protobuf or json. Default: by the file's suffix."),
]
_References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        metavar="NAME=SUBJECT:VERSION",
        help="A schema to which the new schema refers by NAME; repeatable.",
    ),
]
_Normalize = Annotated[bool, typer.Option("--normalize", help="Let the registry normalize the schema first.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Schemas of a registry: list, show, register, check, diff, delete, level.", no_args_is_help=True
    )
    group.callback()(_group)
    group.command("list")(list_subjects)
    group.command("show")(show_schema)
    group.command("register")(register_schema)
    group.command("check")(check)
    group.command("diff")(diff)
    group.command("delete")(delete)
    group.command("level")(level)
    app.add_typer(group, name="schemas")


def _group() -> None:
    """Show and change the subjects of a schema registry of Headrace or Confluent."""


def list_subjects(
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="List only subjects with this prefix.")] = "",
    deleted: Annotated[bool, typer.Option("--deleted", help="Soft-deleted versions too.")] = False,
    registry: Registry = DEFAULT_REGISTRY,
    properties: Properties = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List the subjects, each with its latest version.

    \b
    Examples:
      headrace schemas list
      headrace schemas list orders- -o json          [{"subject", "version", "id", "type"}]
    """
    with client(registry, properties) as schemas:
        found = list(schemas.list_versions(prefix, latest_only=True, deleted=deleted))
    rows = [_summary(each) for each in sorted(found, key=lambda each: each.subject)]
    if output is OutputFormat.JSON:
        print_json(rows)
    else:
        print_table(("SUBJECT", "VERSION", "ID", "TYPE"), [tuple(row.values()) for row in rows])


def show_schema(
    subject: Annotated[str | None, typer.Argument(metavar="[SUBJECT]", help="The subject.")] = None,
    version: Annotated[str, typer.Argument(metavar="[VERSION]", help="The version; default: latest.")] = "latest",
    schema_id: Annotated[int | None, typer.Option("--id", min=0, help="Show the schema with this id.")] = None,
    registry: Registry = DEFAULT_REGISTRY,
    properties: Properties = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Print a schema: of a subject's version, or by its id.

    \b
    Examples:
      headrace schemas show orders-value
      headrace schemas show orders-value 3 > order.avsc
      headrace schemas show --id 17 -o json      {"id", "type", "schema", "references", "versions": {subject: version}}
    """
    if (subject is None) == (schema_id is None):
        raise typer.BadParameter("pass a subject, or --id", param_hint="SUBJECT")
    with client(registry, properties) as schemas:
        if schema_id is not None:
            schema, uses = schemas.schema(schema_id), schemas.uses(schema_id)
            document: dict[str, Any] = {"id": schema_id, "versions": dict(uses)}
        else:
            assert subject is not None
            found = schemas.version(subject, _version(version))
            schema, document = found.schema, _summary(found)
    document |= {
        "type": schema.type.value,
        "schema": schema.text,
        "references": [
            {"name": each.name, "subject": each.subject, "version": each.version} for each in schema.references
        ],
    }
    show(output, document, _pretty(schema))


def register_schema(
    subject: _Subject,
    file: _File,
    kind: _Kind = None,
    references: _References = None,
    normalize: _Normalize = False,
    registry: Registry = DEFAULT_REGISTRY,
    properties: Properties = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Register a schema as the next version of a subject. If the subject already has the schema, no second version is
    created.

    \b
    Examples:
      headrace schemas register orders-value order.avsc
      headrace schemas register orders-value order.proto --reference money.proto=money.proto:1
      headrace schemas register orders-value order.avsc -o json        {"subject", "version", "id", "type"}
    """
    schema = _read(file, kind, references)
    with client(registry, properties) as schemas:
        found = schemas.register(subject, schema, normalize=normalize)
    show(output, _summary(found), f"{subject} version {found.version} has the schema, with id {found.id}")


def check(
    subject: _Subject,
    file: _File,
    version: Annotated[
        str,
        typer.Option(
            "--version",
            metavar="VERSION",
            help="The version to compare with; all: every version with which a registration would compare.",
        ),
    ] = "all",
    kind: _Kind = None,
    references: _References = None,
    normalize: _Normalize = False,
    registry: Registry = DEFAULT_REGISTRY,
    properties: Properties = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Check whether a subject would accept a schema as its next version, by its compatibility level. For an
    incompatible schema the command prints one line per reason, and the exit code is 1.

    \b
    Examples:
      headrace schemas check orders-value order.avsc
      headrace schemas check orders-value order.avsc --version latest
      headrace schemas check orders-value order.avsc -o json        {"subject", "level", "compatible", "reasons": [...]}
    """
    schema = _read(file, kind, references)
    with client(registry, properties) as schemas:
        against = None if version == "all" else _version(version)
        reasons = schemas.check(subject, schema, against, normalize=normalize)
        wanted = schemas.compatibility(subject)
    document = {"subject": subject, "level": wanted.value, "compatible": not reasons, "reasons": reasons}
    text = f"compatible with {subject} ({wanted})"
    if reasons:
        text = f"incompatible with {subject} ({wanted}):\n" + "\n".join(f"  {each}" for each in reasons)
    show(output, document, text)
    if reasons:
        raise typer.Exit(1)


def diff(
    subject: _Subject,
    old: Annotated[
        str | None, typer.Argument(metavar="[OLD]", help="The older version; default: the version before NEW.")
    ] = None,
    new: Annotated[
        str | None, typer.Argument(metavar="[NEW]", help="The newer version; default: the latest version.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="Compare this file in place of NEW.")
    ] = None,
    registry: Registry = DEFAULT_REGISTRY,
    properties: Properties = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the lines that differ between two versions of a subject, or between a version and a file. JSON is formatted
    before the comparison, so that spaces make no difference.

    \b
    Examples:
      headrace schemas diff orders-value                the last two versions
      headrace schemas diff orders-value 1 3
      headrace schemas diff orders-value -f order.avsc  the latest version and the file
    """
    if file is not None and new is not None:
        raise typer.BadParameter("pass only one of NEW and --file", param_hint="--file")
    with client(registry, properties) as schemas:
        if file is not None:
            before = schemas.version(subject, _version(old or "latest"))
            after, after_name = _read(file, before.schema.type.value.lower(), None), file
        else:
            latest = schemas.version(subject, _version(new or "latest"))
            after, after_name = latest.schema, f"{subject} version {latest.version}"
            before = schemas.version(subject, _version(old) if old else _before(schemas, latest))
    before_name = f"{subject} version {before.version}"
    lines = list(
        difflib.unified_diff(
            _pretty(before.schema).splitlines(),
            _pretty(after).splitlines(),
            fromfile=before_name,
            tofile=after_name,
            lineterm="",
        )
    )
    document = {"subject": subject, "old": before_name, "new": after_name, "equal": not lines, "diff": lines}
    show(output, document, "\n".join(lines) or f"{before_name} and {after_name} are equal")


def _before(schemas: SchemaRegistry, version: RegisteredSchema) -> int:
    earlier = [each for each in schemas.versions(version.subject) if each < version.version]
    if not earlier:
        raise InvalidArgumentError(
            f"{version.subject} has no version before {version.version}; pass OLD and NEW, or --file"
        )
    return max(earlier)


def delete(
    subject: _Subject,
    version: Annotated[
        str | None, typer.Option("--version", metavar="VERSION", help="Only this version; default: all versions.")
    ] = None,
    permanent: Annotated[
        bool,
        typer.Option("--permanent", help="Permanently delete a soft-deleted version or subject, and its schema ids."),
    ] = False,
    registry: Registry = DEFAULT_REGISTRY,
    properties: Properties = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Delete a subject or one of its versions. Readers can still read the schemas by their ids, unless you delete a
    second time with --permanent: after that, records with these ids cannot be read.

    \b
    Examples:
      headrace schemas delete orders-value --version 3
      headrace schemas delete orders-value && headrace schemas delete orders-value --permanent
    """
    with client(registry, properties) as schemas:
        if version is None:
            found = schemas.delete_subject(subject, permanent=permanent)
        else:
            found = [schemas.delete_version(subject, _version(version), permanent=permanent)]
    text = f"deleted {subject}, {counted(len(found), 'version')}: {', '.join(map(str, found))}"
    show(output, {"subject": subject, "versions": found, "permanent": permanent}, text)


def level(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[SUBJECT]",
            help="The subject; without a subject, the command shows or sets the registry's own level.",
        ),
    ] = None,
    wanted: Annotated[
        str | None,
        typer.Option(
            "--set",
            metavar="LEVEL",
            help="none, backward, forward, full, backward-transitive, forward-transitive, full-transitive; or inherit: "
            "the subject uses the registry's level.",
        ),
    ] = None,
    registry: Registry = DEFAULT_REGISTRY,
    properties: Properties = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show or set the compatibility level of a subject, or of the registry.

    \b
    Examples:
      headrace schemas level orders-value
      headrace schemas level orders-value --set full-transitive
      headrace schemas level --set backward
    """
    with client(registry, properties) as schemas:
        if wanted is not None:
            chosen = None
            if wanted != "inherit":
                chosen = _level(wanted)
            elif subject is None:
                raise typer.BadParameter("only a subject can inherit the level; name a subject", param_hint="--set")
            schemas.set_compatibility(chosen, subject)
        found = schemas.compatibility(subject)
    show(output, {"subject": subject, "level": found.value}, f"{subject or 'the registry'}: {found.value}")


def _level(text: str) -> Compatibility:
    from headrace.schemas import Compatibility

    name = text.upper().replace("-", "_")
    if name not in list(Compatibility):
        known = ", ".join(each.lower().replace("_", "-") for each in Compatibility)
        raise typer.BadParameter(f"{text!r}: must be one of {known}, inherit", param_hint="--set")
    return Compatibility(name)


def client(urls: str, properties: list[str] | None) -> SchemaRegistry:
    """The client of the registry at ``urls``, for a ``with`` block."""
    from headrace.schemas import SchemaRegistry

    given: dict[str, Any] = {}
    for pair in properties or ():
        key, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"{pair!r}: must be KEY=VALUE", param_hint="-X")
        given[key.strip()] = value.strip()
    with usage_of("--registry, -X"):
        return SchemaRegistry({"schema.registry.url": urls, "retries": 0} | given)


def _summary(found: RegisteredSchema) -> dict[str, Any]:
    return {"subject": found.subject, "version": found.version, "id": found.id, "type": found.schema.type.value}


def _version(text: str) -> int | str:
    if text == "latest":
        return text
    if text.isascii() and text.isdigit() and 0 < int(text[:12]) < 2**31:
        return int(text)
    raise typer.BadParameter(f"{text!r}: must be a version's number, or latest", param_hint="VERSION")


def _read(file: str, kind: str | None, references: list[str] | None) -> Schema:
    """The schema in a file."""
    from headrace.schemas import Schema, SchemaType

    if kind is None:
        kind = _BY_SUFFIX.get(Path(file).suffix)
        if kind is None:
            raise typer.BadParameter(
                f"{file}: the suffix is none of {', '.join(_BY_SUFFIX)}; pass --type", param_hint="FILE"
            )
    if kind.upper() not in list(SchemaType):
        raise typer.BadParameter(f"{kind!r}: must be avro, protobuf or json", param_hint="--type")
    if file == "-":
        raw = sys.stdin.buffer.read(_FILE_BYTES_MAX + 1)
    else:
        with open(file, "rb") as opened:
            raw = opened.read(_FILE_BYTES_MAX + 1)
    if len(raw) > _FILE_BYTES_MAX:
        raise typer.BadParameter(
            f"{file}: is larger than {_FILE_BYTES_MAX:,} bytes, the maximum for a schema", param_hint="FILE"
        )
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file}: is not UTF-8 text ({error})", param_hint="FILE") from None
    return Schema(text, SchemaType(kind.upper()), tuple(_reference(each) for each in references or ()))


def _reference(text: str) -> Any:
    from headrace.schemas import Reference

    name, equals, place = text.rpartition("=")
    subject, colon, version = place.rpartition(":")
    if not equals or not colon or not name or not subject or not version.isdigit():
        raise typer.BadParameter(f"{text!r}: must be NAME=SUBJECT:VERSION", param_hint="--reference")
    return Reference(name, subject, int(version))


def _pretty(schema: Schema) -> str:
    """The text of a schema for people; JSON is indented."""
    try:
        return "".join(exact_json.parts(exact_json.loads(schema.text)))
    except (ValueError, RecursionError):
        return schema.text
