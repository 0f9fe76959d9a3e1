"""The commands ``users create``, ``list``, ``alter`` and ``delete``: users of SCRAM (KIP-554)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace_core.errors import DuplicateResourceError, ResourceNotFoundError

from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .output import Output, OutputFormat, print_json, print_table

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_DEFAULT = "SCRAM-SHA-512"

_User = Annotated[str, typer.Argument(metavar="USER", help="The user's name without the prefix User:, such as alice.")]
_Mechanism = Annotated[
    list[str] | None, typer.Option("--mechanism", metavar="NAME", help="SCRAM-SHA-256 or SCRAM-SHA-512; repeatable.")
]
_Iterations = Annotated[
    int, typer.Option("--iterations", min=4_096, max=16_384, help="Number of iterations of the password's hash.")
]
_File = Annotated[
    Path | None, typer.Option("--password-file", metavar="FILE", help="A file with the password in one line.")
]
_Env = Annotated[
    str | None, typer.Option("--password-env", metavar="NAME", help="The environment variable with the password.")
]
_Stdin = Annotated[bool, typer.Option("--password-stdin", help="Read the password from standard input.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Manage users that authenticate with SCRAM (or PLAIN).", no_args_is_help=True)
    group.command("create")(create)
    group.command("list")(list_)
    group.command("alter")(alter)
    group.command("delete")(delete)
    app.add_typer(group, name="users")


def create(
    user: _User,
    mechanism: _Mechanism = None,
    iterations: _Iterations = 4_096,
    password_file: _File = None,
    password_env: _Env = None,
    password_stdin: _Stdin = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Create a user. The command asks for the password, unless an option names its source.

    \b
    Examples:
      headrace users create alice
      headrace users create etl --password-file /run/secrets/etl --mechanism SCRAM-SHA-256
      pwgen 32 1 | headrace users create metrics --password-stdin
    """
    with admin(bootstrap) as client:
        if user in client.describe_user_scram_credentials():
            raise DuplicateResourceError(f"user {user!r} exists; change the password with headrace users alter {user}")
        _set(client, user, mechanism, iterations, _password(user, password_file, password_env, password_stdin))
        _show(client, [user], output)


def alter(
    user: _User,
    mechanism: _Mechanism = None,
    iterations: _Iterations = 4_096,
    password_file: _File = None,
    password_env: _Env = None,
    password_stdin: _Stdin = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Change a user's password, by default for every mechanism that the user has.

    \b
    Examples:
      headrace users alter alice
      headrace users alter alice --iterations 16384 --password-env NEW_PASSWORD
    """
    with admin(bootstrap) as client:
        has = [each.mechanism.value for each in client.describe_user_scram_credentials([user])[user]]
        _set(client, user, mechanism or has, iterations, _password(user, password_file, password_env, password_stdin))
        _show(client, [user], output)


def list_(
    users: Annotated[list[str] | None, typer.Argument(metavar="USER...", help="Users; default: all.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List users with their mechanisms and iterations.

    \b
    Examples:
      headrace users list
      headrace users list alice -o json
    """
    with admin(bootstrap) as client:
        _show(client, users or [], output)


def delete(
    user: _User,
    mechanism: _Mechanism = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Delete a user, or the user's credentials of some mechanisms. Open sessions continue until they expire
    (connections.max.reauth.ms).

    \b
    Examples:
      headrace users delete alice
      headrace users delete alice --mechanism SCRAM-SHA-256
    """
    from headrace import ScramMechanism, UserScramCredentialDeletion

    with admin(bootstrap) as client:
        has = [each.mechanism.value for each in client.describe_user_scram_credentials([user])[user]]
        deleted = _checked(mechanism) or has
        client.alter_user_scram_credentials(
            [UserScramCredentialDeletion(user, ScramMechanism(each)) for each in deleted]
        )
    left = [each for each in has if each not in deleted]
    if output is OutputFormat.JSON:
        print_json({"user": user, "deleted": deleted})
    elif left:
        print(f"deleted {', '.join(deleted)} of {user}; {user} still has {', '.join(left)}")
    else:
        print(f"deleted {user}")


def _set(client: Any, user: str, mechanisms: list[str] | None, iterations: int, password: str) -> None:
    from headrace import ScramMechanism, UserScramCredentialUpsertion

    client.alter_user_scram_credentials(
        [
            UserScramCredentialUpsertion(user, password, ScramMechanism(each), iterations)
            for each in _checked(mechanisms) or [_DEFAULT]
        ]
    )


def _checked(mechanisms: list[str] | None) -> list[str]:
    for each in mechanisms or ():
        if each not in _MECHANISMS:
            raise typer.BadParameter(f"{each}: must be SCRAM-SHA-256 or SCRAM-SHA-512", param_hint="--mechanism")
    return list(mechanisms or ())


def _password(user: str, file: Path | None, variable: str | None, from_stdin: bool) -> str:
    if sum((file is not None, variable is not None, from_stdin)) > 1:
        raise typer.BadParameter(
            "pass only one of --password-file, --password-env and --password-stdin", param_hint="--password-…"
        )
    if file is not None:
        try:
            password = file.read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise typer.BadParameter(f"cannot read {file}: {error.strerror}", param_hint="--password-file") from None
        except UnicodeDecodeError:  # its message would show a part of the password
            raise typer.BadParameter(f"{file} is not UTF-8 text", param_hint="--password-file") from None
    elif variable is not None:
        password = os.environ.get(variable, "")
    elif from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        password = str(typer.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True))
    if not password:
        raise typer.BadParameter("the password is empty; it needs at least one character", param_hint="--password-…")
    return password


def _show(client: Any, users: list[str], output: OutputFormat) -> None:
    try:
        found = client.describe_user_scram_credentials(users)
    except ResourceNotFoundError:
        if users:
            raise
        found = {}
    if output is OutputFormat.JSON:
        print_json(
            [
                {
                    "user": user,
                    "credentials": [
                        {"mechanism": each.mechanism.value, "iterations": each.iterations} for each in credentials
                    ],
                }
                for user, credentials in found.items()
            ]
        )
        return
    print_table(
        ("USER", "MECHANISM", "ITERATIONS"),
        [(user, each.mechanism.value, str(each.iterations)) for user, its in found.items() for each in its],
    )
