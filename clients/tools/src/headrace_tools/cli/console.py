"""The command ``console``: run the web console of a cluster in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace_core.errors import MissingDependencyError

from .. import services
from ..local.directory import CONSOLE_PORT, ClusterDirectory
from ..local.finding import DATA_VARIABLE, DEFAULT_DATA, clusters_here
from .client import DEFAULT_BOOTSTRAP, Bootstrap, Properties, client_config, is_given
from .output import Output, OutputFormat, print_json, say, usage_of

if TYPE_CHECKING:
    from headrace_core.security.http import HttpGuard


def register(app: typer.Typer) -> None:
    app.command("console")(console)


def console(
    context: typer.Context,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="The address to listen at. Without a sign-in, every client that connects to it can use the console.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65_535, help="The port to serve at; 0: any free one.")
    ] = CONSOLE_PORT,
    path_prefix: Annotated[
        str,
        typer.Option("--path-prefix", metavar="PATH", help="Serve below this path, such as /headrace, for a proxy."),
    ] = "",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse every request that would change the cluster.")
    ] = False,
    registry_url: Annotated[
        str,
        typer.Option(
            "--registry-url",
            "-r",
            envvar="HEADRACE_SCHEMA_REGISTRY_URL",
            metavar="URL,...",
            help="The schema registry whose subjects the console shows, and by which it decodes keys and values.",
        ),
    ] = "",
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            metavar="NAME",
            help="A host name by which browsers may address the console, besides localhost and IP "
            "addresses. Repeatable.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate",
            metavar="FILE",
            help="Serve https with this PEM file, which has a private key and its certificates. A sign-in from "
            "other machines needs https.",
        ),
    ] = None,
    sign_in: Annotated[
        bool,
        typer.Option(
            "--sign-in/--no-sign-in",
            help="On a secured cluster, ask each visitor for a user name and password. With --no-sign-in, every "
            "visitor acts as the user of --command-config.",
        ),
    ] = True,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            envvar=DATA_VARIABLE,
            help="The directory of a cluster on this machine: the console then also names the command that starts a "
            "dead node.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Serve the console: the cluster, its topics, messages, groups, transactions and schemas as web pages.

    Runs until Ctrl-C. The cluster may be on any machine. `headrace up --console` starts a local cluster with a console.
    Before each change a page shows the equivalent command, and asks for confirmation. On a secured cluster
    (--command-config with security.protocol=SASL_SSL) users sign in, and the cluster's ACLs decide what they see and
    do.

    \b
    Examples:
      headrace console                                      http://127.0.0.1:9090
      headrace console -b kafka-1:9095,kafka-2:9095 --read-only
      headrace console --data ./cluster --port 8000
      headrace console --command-config headrace-data/security/client.properties       with a sign-in
      headrace console --path-prefix /headrace --allowed-host ops.example.net      behind a proxy
    """
    try:
        app, settings_of = services.load("console", "app"), services.load("console", "settings").ConsoleSettings
    except ModuleNotFoundError as error:
        if error.name not in ("headrace_console", "aiohttp", "jinja2"):
            raise
        raise MissingDependencyError(
            f"the console needs {error.name}, which is not installed: pip install 'headrace[console]'"
        ) from None
    from headrace_core.node.listeners import parse_addresses
    from headrace_core.node.logs import log_to_stderr
    from headrace_core.node.run import run_until_signal

    if data is not None and not is_given(context, "bootstrap") and ClusterDirectory(data).exists():
        bootstrap = ClusterDirectory(data).state().bootstrap_servers
    elif data is None and not is_given(context, "bootstrap"):
        found = clusters_here(DEFAULT_BOOTSTRAP).meant
        data = DEFAULT_DATA if found is None else found.directory
    client = client_config(bootstrap, properties)
    del client["client.id"], client["bootstrap.servers"]
    with usage_of("console"):
        settings = settings_of.checked(
            listeners=[f"{'http' if certificate is None else 'https'}://{host}:{port}"],
            bootstrap_servers=parse_addresses([each.strip() for each in bootstrap.split(",")], key="--bootstrap"),
            client=client,
            path_prefix=path_prefix,
            is_read_only=read_only,
            allowed_hosts=allowed_host or [],
            registry_urls=registry_url,
            directory="" if data is None else str(Path(data).absolute()),
            sign_in=sign_in,
            guard=None if certificate is None else _guard(certificate),
        )
    log_to_stderr("info")

    def tell(url: str) -> None:
        if output is OutputFormat.JSON:
            print_json({"url": url})
        else:
            say(f"The console: {url}    Ctrl-C stops it.")

    raise typer.Exit(run_until_signal(lambda stop: app.serve_settings(settings, stop, on_started=tell)))


def _guard(certificate: Path) -> HttpGuard:
    """The TLS settings of the console's listener. Raises InvalidConfigError for a file without key and certificates."""
    from headrace_core.security.http import HttpGuard
    from headrace_core.security.tls import TlsSettings, TlsSource

    settings = TlsSettings(keystore_location=str(certificate))
    return HttpGuard(TlsSource(settings, needs_key=True, where="--certificate: "))
