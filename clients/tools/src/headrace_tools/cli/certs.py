"""The commands ``certs init``, ``issue``, ``renew`` and ``show``: certificates for nodes and users."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_core.errors import HeadraceError, InvalidArgumentError

from .each import end_with_failures
from .output import Output, OutputFormat, print_json, print_table, say, show

if TYPE_CHECKING:
    from headrace_core.security.certificates import Certificate

    from ..certs.authority import Issued

_DIRECTORY = Path("headrace-certs")
_Directory = Annotated[
    Path,
    typer.Option("--dir", envvar="HEADRACE_CERTS", metavar="DIR", help="The directory of the certificate authority."),
]
_Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Make and show certificates for nodes and users.", no_args_is_help=True)
    group.callback()(_group)
    group.command("init")(init)
    group.command("issue")(issue)
    group.command("renew")(renew)
    group.command("show")(show_)
    app.add_typer(group, name="certs")


def _group() -> None:
    """Make and show certificates for nodes and users. The authority is a directory with ca.pem and ca.key; keep ca.key
    away from nodes: with this key, anyone can pose as any node or user."""


def init(
    directory: _Directory = _DIRECTORY,
    name: Annotated[
        str, typer.Option("--name", help="The name of the certificate authority.")
    ] = "Headrace development CA",
    days: Annotated[int, typer.Option("--days", help="For how many days the authority is valid.")] = 3_650,
    force: _Force = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Make an authority: its private key and its certificate.

    \b
    Examples:
      headrace certs init
      headrace certs init --dir /secure/ca --name "Example CA"
    """
    from ..certs.authority import Authority

    issued = Authority(directory).init(name, days=days, force=force)
    show(output, _row(issued), f"made the authority {name!r}: {issued.path} (key: {directory / 'ca.key'})")


def issue(
    kind: Annotated[
        str, typer.Argument(metavar="ROLE|user", help="controller, broker, coordinator, registry, or user.")
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="[ID|NAME]",
            help="The user's name, or the node's id; without an id, the certificate is for every node of the role.",
        ),
    ] = "",
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="A host name or address at which the node is reached; repeatable."),
    ] = None,
    days: Annotated[int, typer.Option("--days", help="How long the certificate is valid.")] = 365,
    out: Annotated[Path | None, typer.Option("--out", help="The file to write; default: DIR/ROLE-ID.pem.")] = None,
    directory: _Directory = _DIRECTORY,
    force: _Force = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Make a private key and a certificate, in one PEM file with mode 0600: the value of ssl.keystore.location.

    \b
    Examples:
      headrace certs issue broker 1 --host broker-1.example.com --host 10.0.0.5
      headrace certs issue coordinator --host coordinator.example.com      for coordinators of any id
      headrace certs issue user alice
    """
    from ..certs.authority import USER, Authority, Subject

    if kind == USER and host:
        raise typer.BadParameter("a user's certificate has no host; leave out --host", param_hint="--host")
    if kind != USER and not host:
        raise typer.BadParameter(
            "a node's certificate needs the host names or addresses of the node: pass --host", param_hint="--host"
        )
    issued = Authority(directory).issue(Subject(kind, name, tuple(host or ())), days=days, out=out, force=force)
    show(
        output,
        _row(issued),
        f"issued {_whom(issued.certificate)}, valid until {_day(issued.certificate)}: {issued.path}",
    )


def renew(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="PEM files that `certs issue` has made.")],
    days: Annotated[
        int | None,
        typer.Option("--days", help="How long the new certificate is valid; default: as long as the old one."),
    ] = None,
    directory: _Directory = _DIRECTORY,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Replace the key and the certificate in files by new ones for the same names. Nodes and clients that use a file
    take the new certificate within a second, without a restart. If some files cannot be renewed, the others are, and
    the exit code is 1.

    \b
    Examples:
      headrace certs renew broker-1.pem
      headrace certs renew /etc/headrace/*.pem --days 30
    """
    from ..certs.authority import Authority

    issued: list[Issued] = []
    failed: dict[Path, HeadraceError] = {}
    for path in dict.fromkeys(files):
        try:
            issued.append(Authority(directory).renew(path, days=days))
        except HeadraceError as error:
            failed[path] = error
        except OSError as error:
            failed[path] = InvalidArgumentError(f"cannot write {path}: {error.strerror or error}")
    if issued and output is OutputFormat.JSON:
        print_json([_row(each) for each in issued])
    elif issued:
        for each in issued:
            say(f"renewed {_whom(each.certificate)}, valid until {_day(each.certificate)}: {each.path}")
    end_with_failures(failed)


def show_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="PEM files with certificates.")],
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the certificates in files: the node or user of each, its host names, and when it expires.

    \b
    Examples:
      headrace certs show headrace-certs/*.pem
      headrace certs show broker-1.pem -o json
    """
    from ..certs.authority import read_file

    rows = [_described(path, certificate) for path in files for certificate in _own(read_file(path))]
    if output is OutputFormat.JSON:
        print_json(rows)
        return
    print_table(
        ("FILE", "FOR", "NAMES", "EXPIRES", "DAYS LEFT", "ISSUER"),
        [
            (
                row["file"],
                row["for"],
                ",".join(row["names"]) or "-",
                row["not_after"][:10],
                row["days_left"],
                row["issuer"],
            )
            for row in rows
        ],
    )


def _own(chain: list[Certificate]) -> list[Certificate]:
    """The certificates of a file without the authorities that have signed them; for a truststore, all its
    certificates."""
    return chain if chain[0].is_authority else chain[:1]


def _row(issued: Issued) -> dict[str, Any]:
    return _described(issued.path, issued.certificate)


def _described(path: Path, certificate: Certificate) -> dict[str, Any]:
    from ..certs.authority import identity_of

    identity = identity_of(certificate)
    return {
        "file": str(path),
        "for": _whom(certificate),
        "role": None if identity is None else identity.role,
        "id": None if identity is None else identity.node_id,
        "is_authority": certificate.is_authority,
        "subject": certificate.subject,
        "issuer": certificate.issuer,
        "names": [*certificate.dns_names, *certificate.addresses],
        "serial": f"{certificate.serial:x}",
        "not_before": certificate.not_before.isoformat(),
        "not_after": certificate.not_after.isoformat(),
        "days_left": (certificate.not_after - datetime.now(UTC)).days,
    }


def _whom(certificate: Certificate) -> str:
    from ..certs.authority import identity_of

    identity = identity_of(certificate)
    if certificate.is_authority:
        return "authority"
    if identity is None:
        return f"user {certificate.subject}"
    return identity.role if identity.node_id is None else f"{identity.role} {identity.node_id}"


def _day(certificate: Certificate) -> str:
    return f"{certificate.not_after:%Y-%m-%d}"
