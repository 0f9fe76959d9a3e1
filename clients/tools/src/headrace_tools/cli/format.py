"""The commands ``format`` and ``random-uuid``: prepare the directories of nodes that are started by hand, as
kafka-storage does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from headrace_core.errors import InvalidConfigError, MissingDependencyError

from .. import services
from .output import Output, OutputFormat, print_json, show, usage_of

if TYPE_CHECKING:
    from headrace_core.node.config import NodeConfig


def register(app: typer.Typer) -> None:
    app.command("format")(format_node)
    app.command("random-uuid")(random_uuid)


def format_node(
    log_dirs: Annotated[
        list[str] | None,
        typer.Option(
            "--log-dirs",
            "--data",
            metavar="DIR,...",
            help="Directories to format, separated by commas; repeatable.",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The node's properties file; instead of --log-dirs.")
    ] = None,
    cluster_id: Annotated[
        str | None,
        typer.Option(
            "--cluster-id", "-t", help="The cluster's id; default: a new random id, which the command prints."
        ),
    ] = None,
    node_id: Annotated[
        int,
        typer.Option(help="With --log-dirs: the node's id. A broker can have -1: the controller then chooses its id."),
    ] = -1,
    standalone: Annotated[
        bool, typer.Option("--standalone", "-s", help="Format the only voter of a new quorum.")
    ] = False,
    initial_controllers: Annotated[
        str | None,
        typer.Option(
            "--initial-controllers",
            "-I",
            metavar="ID@HOST:PORT:DIRECTORY_ID,...",
            help="Format a voter of a new quorum. The value lists all first voters, and is the same for each voter.",
        ),
    ] = None,
    no_initial_controllers: Annotated[
        bool,
        typer.Option(
            "--no-initial-controllers", "-N", help="Format a controller that joins later with `headrace quorum add`."
        ),
    ] = False,
    add_scram: Annotated[
        list[str] | None,
        typer.Option(
            "--add-scram",
            "-S",
            metavar="MECHANISM=[name=USER,password=...]",
            help="Add a first user to a new quorum (KIP-900), the same for each voter. password-file=PATH keeps the "
            "password off the command line. Repeatable.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="With --log-dirs and --standalone: the internal listener's address."),
    ] = None,
    ignore_formatted: Annotated[
        bool, typer.Option("--ignore-formatted", "-g", help="Skip directories that are already formatted.")
    ] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Format the directories of a node that you start by hand. (`headrace up` formats the directories of its nodes
    itself.)

    A controller needs one of -s, -I and -N, which name the first voters of its quorum.

    \b
    Examples:
      headrace format --config controller.properties --standalone
      headrace format --config controller.properties --cluster-id S1L7bB9RQ0qq9d0RkX7UDQ \\
          --initial-controllers 1@c1:19093:JEXY6aqzQY-32P5TStzaFg,2@c2:19093:MvDxzVmcRsaTz33bUuRU6A
      headrace format --config controller4.properties --cluster-id S1L7bB9RQ0qq9d0RkX7UDQ --no-initial-controllers
      headrace format --config controller.properties --standalone \\\\
          --add-scram 'SCRAM-SHA-512=[name=admin,password-file=/run/secrets/admin]'
      headrace format --log-dirs /var/lib/headrace/broker --cluster-id S1L7bB9RQ0qq9d0RkX7UDQ
    """
    from headrace_core.node.arguments import FormatCommand, format_of_config
    from headrace_core.node.first_voters import first_voters
    from headrace_core.node.ids import id_to_text, random_id
    from headrace_core.node.meta_properties import format_directories

    if (config is None) == (not log_dirs):
        raise typer.BadParameter("pass either --log-dirs DIR,... or --config FILE", param_hint="--log-dirs")
    chosen = cluster_id or id_to_text(random_id())
    asked = {"standalone": standalone, "initial": initial_controllers, "none": no_initial_controllers}
    if config is not None:
        if node_id >= 0 or address is not None:
            raise typer.BadParameter(
                "--node-id and --address cannot be combined with --config", param_hint="--node-id, --address"
            )
        node = _read(config, is_controller=any(asked.values()))
        with usage_of("-s, -I, -N"):
            command = format_of_config(node, chosen, ignore_formatted=ignore_formatted, **asked)  # type: ignore[arg-type]
    else:
        directories = tuple(str(Path(part).absolute()) for item in log_dirs or () for part in _parts(item))
        with usage_of("-s, -I, -N"):
            first = first_voters(node_id=node_id, address=address, **asked)  # type: ignore[arg-type]
        command = FormatCommand(
            cluster_id=chosen, node_id=node_id, log_dirs=directories, ignore_formatted=ignore_formatted, first=first
        )
    if add_scram and (command.first is None or not command.first.voters):
        raise typer.BadParameter(
            "only a first voter can add a first user: pass --standalone or --initial-controllers", param_hint="-S"
        )
    users = [_first_user(each) for each in add_scram or ()]
    done = format_directories(
        command.log_dirs,
        cluster_id=command.cluster_id,
        node_id=command.node_id,
        ignore_formatted=command.ignore_formatted,
        first=command.first,
        write_voters=partial(_writer(), users=users) if command.first is not None else None,
    )
    voters = [str(voter) for voter in command.first.voters] if command.first is not None and done[0].created else []
    if output is OutputFormat.JSON:
        rows = [
            {"path": each.path, "directory_id": id_to_text(each.meta.directory_id), "created": each.created}
            for each in done
        ]
        print_json({"cluster_id": chosen, "directories": rows, "voters": voters})
        return
    for each in done:
        print(f"{each.path}: {'formatted' if each.created else 'already formatted'} (cluster {chosen})")
    if voters:
        print(f"first voters: {', '.join(voters)}")


def random_uuid(output: Output = OutputFormat.TEXT) -> None:
    """Print a new random id for a cluster or a directory: 22 letters, in Kafka's form.

    \b
    Examples:
      headrace random-uuid
      headrace random-uuid -o json
    """
    from headrace_core.node.ids import id_to_text, random_id

    text = id_to_text(random_id())
    show(output, {"id": text}, text)


def _parts(text: str) -> list[str]:
    return [part for part in text.split(",") if part.strip()]


def _read(path: Path, *, is_controller: bool) -> NodeConfig:
    """The node's configuration, with its directories as absolute paths."""
    from headrace_core.node.config import NodeConfig
    from headrace_core.node.properties import read_properties

    properties = read_properties(path)
    roles = [role.strip() for role in properties.get("process.roles", "").split(",") if role.strip()]
    if not roles and not is_controller:
        raise InvalidConfigError(f"{path}: cannot format: process.roles is not set; set it to controller or broker")
    config = NodeConfig.from_properties(properties, role=roles[0] if len(roles) == 1 else "controller")
    return dataclasses.replace(config, log_dirs=tuple(str(Path(each).absolute()) for each in config.log_dirs))


def _first_user(text: str) -> Any:
    """The credential of ``SCRAM-SHA-256=[name=USER,password=TEXT,iterations=4096]``; raises BadParameter, which does
    not repeat the text."""
    from headrace_core.security.references import read_secret
    from headrace_core.security.sasl.scram import (
        ITERATIONS_DEFAULT,
        ITERATIONS_MAX,
        ITERATIONS_MIN,
        SCRAM,
    )

    name, _, rest = text.partition("=")
    mechanism = SCRAM.get(name)
    pairs = [each.partition("=") for each in rest.removeprefix("[").removesuffix("]").split(",")]
    given = {key.strip(): value for key, _, value in pairs}
    iterations = given.pop("iterations", str(ITERATIONS_DEFAULT))
    user, password, path = (given.pop(key, "") for key in ("name", "password", "password-file"))
    if mechanism is None or given or not user or bool(password) == bool(path) or not iterations.isdecimal():
        raise typer.BadParameter(
            f"write {' or '.join(SCRAM)}=[name=USER,password-file=PATH]; password=TEXT can replace password-file, "
            "and iterations=N is optional",
            param_hint="--add-scram",
        )
    if not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
        raise typer.BadParameter(
            f"iterations: must be between {ITERATIONS_MIN} and {ITERATIONS_MAX}", param_hint="--add-scram"
        )
    secret = password or read_secret(path, "--add-scram")
    return services.load("controller", "formatting").new_user(user, mechanism, secret, int(iterations))


def _writer() -> Callable[..., None]:
    try:
        return cast("Callable[..., None]", services.load("controller", "formatting").write_voters)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("headrace_controller"):
            raise
        raise MissingDependencyError(
            "formatting a controller needs the controller's package; get it with: pip install 'headrace[cluster]'"
        ) from None
