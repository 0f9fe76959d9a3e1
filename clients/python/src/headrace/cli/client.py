"""What every command that is a client shares: ``--bootstrap``, ``-X``, and how a client is configured from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from .output import key_values

DEFAULT_BOOTSTRAP = "127.0.0.1:9095"
BOOTSTRAP_VARIABLE = "HEADRACE_BOOTSTRAP_SERVERS"

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        help="Some nodes to find the cluster by.",
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option("--property", "-X", metavar="KEY=VALUE", help="A client configuration key; repeatable."),
]


def client_config(bootstrap: str, properties: Iterable[str] | None, **more: Any) -> dict[str, Any]:
    """Dotted keys for a client: ours, overridden by the user's -X. Gives up on dead addresses sooner than a service."""
    ours = {"bootstrap.servers": bootstrap, "bootstrap.timeout.ms": 3_000, "client.id": "headrace-cli"}
    return ours | more | key_values(properties or (), "-X")


def admin(bootstrap: str, properties: Iterable[str] | None = None) -> Any:
    """A blocking admin client; use it in a ``with`` block."""
    from .. import Admin

    return Admin(client_config(bootstrap, properties))
