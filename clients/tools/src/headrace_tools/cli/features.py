"""The commands ``features describe``, ``upgrade`` and ``downgrade``: the feature levels of a cluster, as in
kafka-features."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .output import Output, OutputFormat, key_values, print_json, print_table

if TYPE_CHECKING:
    from headrace.cluster_models import FeatureInfo

_FLAG = "--feature"
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only check the request; change nothing.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Show, raise and lower the feature levels of the cluster.", no_args_is_help=True)
    group.callback()(_group)
    group.command("describe")(describe)
    group.command("upgrade")(upgrade)
    group.command("downgrade")(downgrade)
    app.add_typer(group, name="features")


def _group() -> None:
    """Show, raise and lower the feature levels of the cluster. --bootstrap may name any node."""


def describe(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TEXT) -> None:
    """Show the feature levels of the cluster, and the range of levels that its controllers support.

    \b
    Examples:
      headrace features describe
      headrace features describe -o json
    """
    with admin(bootstrap) as client:
        _show(client.describe_features(), output)


def upgrade(
    feature: Annotated[
        list[str] | None,
        typer.Option(
            _FLAG,
            metavar="NAME=LEVEL",
            help="The features to raise, and their levels; default: all features, to the highest level.",
        ),
    ] = None,
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Raise feature levels after all nodes run a version that supports the new levels. After the upgrade, nodes of
    older versions cannot join the cluster.

    \b
    Examples:
      headrace features upgrade
      headrace features upgrade --feature metadata.version=2 --dry-run
    """
    with admin(bootstrap) as client:
        levels = _levels(feature) or {each.name: each.max_level for each in client.describe_features().values()}
        client.update_features(levels, validate_only=dry_run)
        _show(client.describe_features(), output)


def downgrade(
    feature: Annotated[list[str], typer.Option(_FLAG, metavar="NAME=LEVEL", help="The feature and its new level.")],
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Lower feature levels. The command is refused if the lower level would lose data.

    \b
    Examples:
      headrace features downgrade --feature metadata.version=1
    """
    with admin(bootstrap) as client:
        client.update_features(_levels(feature), downgrade=True, validate_only=dry_run)
        _show(client.describe_features(), output)


def _levels(pairs: list[str] | None) -> dict[str, int]:
    levels = {}
    for name, level in key_values(pairs or [], _FLAG).items():
        if not level.isdecimal():
            raise typer.BadParameter(f"{name}={level}: the level must be a number", param_hint=_FLAG)
        levels[name] = int(level)
    return levels


def _show(features: dict[str, FeatureInfo], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json([dataclasses.asdict(each) for each in features.values()])
        return
    print_table(
        ("FEATURE", "LEVEL", "SUPPORTED"),
        [(each.name, each.finalized_level, f"{each.min_level} to {each.max_level}") for each in features.values()],
    )
