"""The commands ``profile list``, ``show``, ``set``, ``use`` and ``delete``: named connections, and the current one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace_core.errors import InvalidArgumentError, InvalidConfigError

from .output import Output, OutputFormat, key_values, print_json, print_table, show
from .profile_files import Profile, ProfileFiles

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The profile.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Manage profiles: named sets of client settings for --profile NAME.", no_args_is_help=True)
    group.command("list")(list_profiles)
    group.command("show")(show_keys)
    group.command("set")(set_keys)
    group.command("use")(use)
    group.command("delete")(delete)
    app.add_typer(group, name="profile")


def list_profiles(output: Output = OutputFormat.TEXT) -> None:
    """List the profiles; `*` marks the current profile, which commands use by default.

    \b
    Examples:
      headrace profile list
      headrace profile list -o json        [{"name", "current", "bootstrap_servers", "path", "error"}]
    """
    files = ProfileFiles()
    current = files.current()
    rows = [_row(files, name, current) for name in files.names()]
    if output is OutputFormat.JSON:
        print_json(rows)
    else:
        print_table(
            ("", "PROFILE", "BOOTSTRAP"),
            [
                ("*" if row["current"] else "", row["name"], row["error"] or row["bootstrap_servers"] or "-")
                for row in rows
            ],
        )


def _row(files: ProfileFiles, name: str, current: str | None) -> dict[str, Any]:
    servers = error = None
    try:
        servers = files.read(name).values.get("bootstrap.servers")
    except InvalidConfigError as wrong:
        error = wrong.message
    path = str(files.path(name))
    return {"name": name, "current": name == current, "bootstrap_servers": servers, "path": path, "error": error}


def show_keys(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The profile's name; default: the current profile.")
    ] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the keys of a profile. Passwords are hidden (null in JSON); they are in the profile's file.

    \b
    Examples:
      headrace profile show
      headrace profile show staging -o json        {"name", "path", "keys": {key: value}}
    """
    files = ProfileFiles()
    wanted = name or files.current()
    if wanted is None:
        raise InvalidArgumentError(
            "no profile is current; pass a NAME, or choose a profile with `headrace profile use NAME`"
        )
    _show(files.read(wanted), output)


def set_keys(
    name: _Name,
    pairs: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Client keys.")] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap", "-b", metavar="HOST:PORT,...", help="A short form of bootstrap.servers=HOST:PORT,..."
        ),
    ] = None,
    delete_keys: Annotated[
        list[str] | None, typer.Option("--delete", metavar="KEY", help="Remove this key; repeatable.")
    ] = None,
    and_use: Annotated[bool, typer.Option("--use", help="Also make this the current profile.")] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Create a profile, or change some of its keys. All keys are checked before the file is written.

    The keys are the keys of producers, consumers and admin clients (docs/reference/configuration.md); each command uses
    the keys that its client knows. The command writes a new file, so comments in the old file are lost.

    \b
    Examples:
      headrace profile set staging -b stage-1:9095,stage-2:9095
      headrace profile set staging client.rack=b request.timeout.ms=5000
      headrace profile set local -b 127.0.0.1:9095 --use
      headrace profile set staging --delete client.rack
    """
    files = ProfileFiles()
    changes = key_values(pairs or (), "KEY=VALUE")
    if bootstrap is not None:
        changes["bootstrap.servers"] = bootstrap
    is_new = name not in files.names()
    if not changes and not delete_keys and not (and_use and not is_new):
        raise typer.BadParameter("nothing to change: pass KEY=VALUE, -b or --delete KEY")
    before = {} if is_new else files.read(name).values
    absent = [key for key in delete_keys or () if key not in before]
    if absent:
        raise InvalidArgumentError(
            f"profile {name!r} has no key {', '.join(absent)}; `headrace profile show {name}` lists the keys"
        )
    kept = {key: value for key, value in before.items() if key not in (delete_keys or ())}
    profile = files.write(name, kept | changes)
    if and_use:
        files.use(name)
    _show(profile, output)


def _show(profile: Profile, output: OutputFormat) -> None:
    """Show the keys of a profile, without passwords: a terminal or a log of CI may keep what a command prints."""
    keys = {key: None if profile.is_secret(key) else value for key, value in profile.values.items()}
    if output is OutputFormat.JSON:
        print_json({"name": profile.name, "path": str(profile.path), "keys": keys})
        return
    print(f"profile {profile.name} ({profile.path})")
    for key, value in keys.items():
        print(f"  {key}={'[hidden]' if value is None else value}")


def use(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The profile.")] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no profile by default.")] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Make a profile the current one: commands use it unless another profile, or --bootstrap, is given.

    \b
    Examples:
      headrace profile use staging
      headrace profile use --none
    """
    if (name is None) != none:
        raise typer.BadParameter("pass a NAME or --none", param_hint="NAME")
    ProfileFiles().use(name)
    show(output, {"current": name}, "no current profile" if name is None else f"current profile: {name}")


def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The profiles.")],
    output: Output = OutputFormat.TEXT,
) -> None:
    """Delete profiles. If a deleted profile is the current one, no profile is current afterwards.

    \b
    Examples:
      headrace profile delete staging
    """
    files = ProfileFiles()
    for name in names:
        files.read_path(name)
    for name in dict.fromkeys(names):
        files.delete(name)
    show(output, {"deleted": list(dict.fromkeys(names))}, f"deleted {', '.join(dict.fromkeys(names))}")
