"""The commands ``tokens create``, ``list``, ``renew`` and ``expire``: delegation tokens (KIP-48).

Only ``create`` without --out prints a token's secret (HMAC), once. No command takes a secret as an argument, because
other users of a machine can read arguments: ``renew`` and ``expire`` take ids.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_core.errors import DelegationTokenNotFoundError, HeadraceError, InvalidArgumentError

from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .output import Output, OutputFormat, print_json, print_table, show
from .times import duration

if TYPE_CHECKING:
    from headrace import DelegationToken

_MECHANISM = "SCRAM-SHA-512"
_FILE_BYTES = 4_096  #: Room for the file of a token, of about 300 bytes.
_COLUMNS = ("token", "owner", "requester", "renewers", "issued", "expires", "ends")
#: The columns of kafka-delegation-tokens.
_KAFKA_COLUMNS = ("TOKENID", "HMAC", "OWNER", "REQUESTER", "RENEWERS", "ISSUEDATE", "EXPIRYDATE", "MAXDATE")

_Id = Annotated[str, typer.Argument(metavar="TOKEN", help="The token's id.")]
_Owners = Annotated[
    list[str] | None,
    typer.Option("--owner", "--owner-principal", metavar="PRINCIPAL", help="Only tokens of this owner; repeatable."),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Manage delegation tokens.", no_args_is_help=True)
    group.command("create")(create)
    group.command("list")(list_)
    group.command("renew")(renew)
    group.command("expire")(expire)
    app.add_typer(group, name="tokens")


def create(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="The file to create, with the client keys for authentication with the token."
        ),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(
            "--owner",
            "--owner-principal",
            metavar="PRINCIPAL",
            help="The owner; default: the user who runs the command.",
        ),
    ] = None,
    renewer: Annotated[
        list[str] | None,
        typer.Option(
            "--renewer",
            "--renewer-principal",
            metavar="PRINCIPAL",
            help="A user who may renew the token; repeatable.",
        ),
    ] = None,
    max_lifetime: Annotated[
        float | None,
        duration(
            "--max-lifetime",
            help="The maximum lifetime of the token, also with renewals.  [default: the cluster's]",
            least_s=0.001,
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Create a token. With --out the secret is only in FILE, which has sasl.mechanism and sasl.jaas.config for clients.
    Without --out the command prints the secret, as kafka-delegation-tokens does.

    \b
    Examples:
      headrace tokens create --out token.properties
      headrace tokens create --renewer User:scheduler --max-lifetime 2d --out token.properties
    """
    lifetime_ms = None if max_lifetime is None else round(max_lifetime * 1_000)
    file = None if out is None else _reserved(out)
    try:
        with admin(bootstrap) as client:
            token = client.create_delegation_token(renewer or (), owner=owner, max_lifetime_ms=lifetime_ms)
            try:
                if file is None:
                    _print_secret(token, output)
                else:
                    _write(file, f"sasl.mechanism={_MECHANISM}\nsasl.jaas.config={token.jaas_config}\n")
            except BaseException as error:  # nobody has the secret, so nobody could use or renew the token
                failed = _removed(client, token, error, "the output" if out is None else str(out))
                if failed is None:
                    raise
                raise failed from error
    except BaseException:
        if out is not None:
            out.unlink(missing_ok=True)
        raise
    finally:
        if file is not None:
            os.close(file)
    if out is not None:
        document = {**_document(token), "file": str(out)}
        text = f"created token {token.token_id} of {token.owner} in {out}; it expires at {_time(token.expires_at_ms)}"
        show(output, document, text)


def _reserved(out: Path) -> int:
    """Create the file with room for the secret, before the token exists; return its descriptor."""
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise typer.BadParameter(f"cannot create {out}: {error.strerror}", param_hint="--out") from None
    try:
        _write(descriptor, " " * _FILE_BYTES, cut=False)
    except OSError as error:
        os.close(descriptor)
        out.unlink(missing_ok=True)
        raise InvalidArgumentError(f"cannot write {out}: {error.strerror}; no token was created") from None
    return descriptor


def _write(descriptor: int, text: str, *, cut: bool = True) -> None:
    """Write the file's whole content, durably: no other copy of the secret exists. Raises OSError."""
    data = text.encode()
    at = 0
    while at < len(data):
        at += os.pwrite(descriptor, data[at:], at)
    if cut:
        os.ftruncate(descriptor, len(data))
    os.fsync(descriptor)


def _print_secret(token: DelegationToken, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(_with_secret(token))
    else:
        print_table(_KAFKA_COLUMNS, [_row(_with_secret(token))])
    sys.stdout.flush()


def _removed(client: Any, token: DelegationToken, error: BaseException, where: str) -> HeadraceError | None:
    """Remove a token whose secret was not delivered. Return the error for the user; None: the first one says enough."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    try:
        client.expire_delegation_token(bytes(token.hmac))
    except HeadraceError as failed:
        return InvalidArgumentError(
            f"cannot write {where}: {why}; token {token.token_id} exists, but its secret is lost, and it could not be "
            f"removed ({failed}): run headrace tokens expire {token.token_id}"
        )
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return InvalidArgumentError(f"cannot write {where}: {why}; token {token.token_id} was removed again")
    return None


def list_(
    owner: _Owners = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List the tokens that the user owns, has requested, may renew or may describe. The secrets of the tokens are not
    shown.

    \b
    Examples:
      headrace tokens list
      headrace tokens list --owner User:alice -o json
    """
    with admin(bootstrap) as client:
        found = client.describe_delegation_token(owner)
    if output is OutputFormat.JSON:
        print_json([_document(each) for each in found])
    else:
        print_table(_COLUMNS, [_row(_document(each)) for each in found])


def renew(
    token: _Id,
    period: Annotated[
        float | None,
        duration("--period", help="The time from now until the token expires.  [default: the cluster's]"),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Change the time at which a token expires, at most to the end of the token's maximum lifetime.

    \b
    Examples:
      headrace tokens renew 5fuXwOzRRJmTY1kHyxYkGw
      headrace tokens renew 5fuXwOzRRJmTY1kHyxYkGw --period 1h
    """
    with admin(bootstrap) as client:
        expires_ms = client.renew_delegation_token(_hmac(client, token), period_ms=_period_ms(period))
    _show_expiry(output, token, expires_ms)


def expire(
    token: _Id,
    period: Annotated[
        float | None,
        duration("--period", help="The time from now until the token expires; without it the token is removed."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Remove a token, or let it expire soon. The token's sessions end within two seconds after the removal or the
    expiry.

    \b
    Examples:
      headrace tokens expire 5fuXwOzRRJmTY1kHyxYkGw
      headrace tokens expire 5fuXwOzRRJmTY1kHyxYkGw --period 10m
    """
    with admin(bootstrap) as client:
        expires_ms = client.expire_delegation_token(_hmac(client, token), period_ms=_period_ms(period))
    _show_expiry(output, token, expires_ms)


def _hmac(client: Any, token_id: str) -> bytes:
    for each in client.describe_delegation_token():
        if each.token_id == token_id:
            return bytes(each.hmac)
    raise DelegationTokenNotFoundError(
        f"no delegation token {token_id!r} that this user owns, may renew or may describe; see headrace tokens list"
    )


def _period_ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000)


def _show_expiry(output: OutputFormat, token_id: str, expires_ms: int) -> None:
    text = f"token {token_id} expires at {_time(expires_ms)}"
    show(output, {"token": token_id, "expires": _time(expires_ms)}, text)


def _document(token: DelegationToken) -> dict[str, Any]:
    return {
        "token": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued": _time(token.issued_at_ms),
        "expires": _time(token.expires_at_ms),
        "ends": _time(token.max_lifetime_at_ms),
    }


def _row(document: dict[str, Any]) -> tuple[Any, ...]:
    """The cells of a table."""
    return tuple(", ".join(value) or None if isinstance(value, list) else value for value in document.values())


def _with_secret(token: DelegationToken) -> dict[str, Any]:
    """The values of ``_KAFKA_COLUMNS``, in their order."""
    shown = _document(token)
    return {"token": shown.pop("token"), "hmac": token.password, **shown}


def _time(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):  # beyond the year 9999
        return str(at_ms)
