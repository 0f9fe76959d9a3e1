"""The command line that all server programs share.

python -m headrace_controller [--config FILE] [--environment] [-o key=value]...    at least one of the first two
python -m headrace_controller format --cluster-id ID (--config FILE [-o ...] | --log-dirs A,B [--node-id N])
    [--ignore-formatted]
    [--standalone | --initial-controllers LIST | --no-initial-controllers]
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidConfigError
from . import first_voters, slots
from .config import HTTP_ROLES, NodeConfig
from .environment import environment_properties
from .first_voters import FirstVoters, WriteVoters
from .ids import id_to_text
from .listeners import INTERNAL, advertised
from .meta_properties import FormattedDirectory, format_directories
from .properties import Properties, parse_overrides, read_properties


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCommand:
    """The command to start a node. ``slot``: the claimed slot, if slots.dir is configured."""

    config: NodeConfig
    slot: slots.Slot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatCommand:
    cluster_id: str
    node_id: int
    log_dirs: tuple[str, ...]
    ignore_formatted: bool
    first: FirstVoters | None = None

    def run(self, write_voters: WriteVoters | None = None) -> list[FormattedDirectory]:
        """Format the directories, and print one JSON line per directory. ``write_voters`` writes a controller's first
        voters. Raises the errors of format_directories."""
        results = format_directories(
            self.log_dirs,
            cluster_id=self.cluster_id,
            node_id=self.node_id,
            ignore_formatted=self.ignore_formatted,
            first=self.first,
            write_voters=write_voters,
        )
        for result in results:
            line = {
                "directory": result.path,
                "cluster_id": result.meta.cluster_id,
                "directory_id": id_to_text(result.meta.directory_id),
                "node_id": result.meta.node_id,
                "formatted": result.created,
            }
            print(json.dumps(line))
        return results


def parse_command(
    argv: Sequence[str],
    *,
    program: str,
    role: str,
    environment: Mapping[str, str] | None = None,
    write_voters: Callable[[], WriteVoters] | None = None,
) -> StartCommand | FormatCommand:
    """Parse the command line. If slots are configured, claim a slot, and format the slot if it is new (a controller's
    slot with ``write_voters``). ``environment``: os.environ. Raises SystemExit for a wrong command line (argparse),
    InvalidConfigError for wrong values."""
    has_directories = role not in HTTP_ROLES
    if argv and argv[0] == "format":
        if not has_directories:
            raise InvalidConfigError(f"{program} format: a {role} has no directories; start it without formatting")
        return _parse_format(argv[1:], program=program, role=role)
    first = f" Format its directories first: `{program} format`." if has_directories else ""
    parser = argparse.ArgumentParser(prog=program, description=f"Run a Headrace {role}.{first}")
    _add_config(parser)
    parser.add_argument(
        "--environment", action="store_true", help="Also read HEADRACE_* variables: HEADRACE_LOG_FLUSH sets log.flush."
    )
    arguments = parser.parse_args(argv)
    if arguments.config is None and not arguments.environment:
        parser.error("the following arguments are required: --config (or --environment)")
    properties = read_properties(arguments.config) if arguments.config is not None else Properties()
    if arguments.environment:
        properties = properties.overridden_by(environment_properties(environment or os.environ))
    properties = properties.overridden_by(parse_overrides(arguments.overrides))
    claimed = slots.claim_configured(properties, role=role, write_voters=write_voters)
    if claimed is None:
        return StartCommand(config=NodeConfig.from_properties(properties, role=role))
    return StartCommand(config=NodeConfig.from_properties(claimed[0], role=role), slot=claimed[1])


def _parse_format(argv: Sequence[str], *, program: str, role: str) -> FormatCommand:
    parser = argparse.ArgumentParser(prog=f"{program} format", description="Format the directories of a node.")
    parser.add_argument("--cluster-id", required=True, metavar="ID", help="The cluster's id, the same for every node.")
    _add_config(parser)
    parser.add_argument(
        "--log-dirs",
        "--data",
        metavar="DIR,...",
        help="Directories to format, separated by commas; not with --config.",
    )
    parser.add_argument("--node-id", type=int, default=-1, metavar="INTEGER", help="The node's id; needs --log-dirs.")
    parser.add_argument("--ignore-formatted", action="store_true", help="Skip directories that are formatted already.")
    if role == "controller":
        _add_first_voters(parser)
    arguments = parser.parse_args(argv)
    if (arguments.config is None) == (arguments.log_dirs is None):
        raise InvalidConfigError("format needs either --config FILE or --log-dirs A,B")
    asked = (
        {"standalone": arguments.standalone, "initial": arguments.initial_controllers, "none": arguments.none}
        if role == "controller"
        else {}
    )
    if arguments.config is not None:
        config = _load(arguments, role)
        return format_of_config(config, arguments.cluster_id, ignore_formatted=arguments.ignore_formatted, **asked)
    log_dirs = tuple(item.strip().rstrip("/") or "/" for item in arguments.log_dirs.split(",") if item.strip())
    return FormatCommand(
        cluster_id=arguments.cluster_id,
        node_id=arguments.node_id,
        log_dirs=log_dirs,
        ignore_formatted=arguments.ignore_formatted,
        first=first_voters.first_voters(node_id=arguments.node_id, address=arguments.address, **asked)
        if role == "controller"
        else None,
    )


def format_of_config(
    config: NodeConfig,
    cluster_id: str,
    *,
    ignore_formatted: bool,
    standalone: bool = False,
    initial: str | None = None,
    none: bool = False,
) -> FormatCommand:
    """Return the format command for a node with the given configuration. Raises the InvalidConfigError of
    ``first_voters``; also raises InvalidConfigError when a controller's configuration names other voters, but no option
    says how the quorum begins."""
    first = None
    if config.role == "controller":
        address = own_address(config)
        first = first_voters.first_voters(
            node_id=config.node_id, address=address, standalone=standalone, initial=initial, none=none
        )
        others = [each for each in config.controller_addresses if each != address]
        if first is None and others and len(config.controller_addresses) > 1:
            raise InvalidConfigError(
                f"the configuration names other controllers ({', '.join(others)}); choose how the quorum begins. All "
                f"of these controllers and this one start it together: pass {first_voters.INITIAL}, with the same list "
                f"on each. This controller joins an existing quorum later: pass {first_voters.NONE}. This controller "
                f"starts a quorum alone: pass {first_voters.STANDALONE}"
            )
    elif standalone or initial is not None:
        raise InvalidConfigError(
            f"{first_voters.STANDALONE} and {first_voters.INITIAL} are for controllers only; leave them out"
        )
    return FormatCommand(
        cluster_id=cluster_id,
        node_id=config.node_id,
        log_dirs=config.log_dirs,
        ignore_formatted=ignore_formatted,
        first=first,
    )


def own_address(config: NodeConfig) -> str | None:
    """Return the address of a node's internal listener; None if the configured port is 0 (any free port)."""
    (internal,) = (each for each in advertised(config.listeners, config.advertised) if each.name == INTERNAL)
    return internal.address if internal.port else None


def _add_first_voters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--standalone", action="store_true", help="Make this controller the only voter of a new quorum."
    )
    parser.add_argument(
        "--initial-controllers", metavar="LIST", help="The voters of a new quorum, as ID@HOST:PORT:DIRECTORY_ID,..."
    )
    parser.add_argument(
        "--no-initial-controllers",
        action="store_true",
        dest="none",
        help="Format without voters: the controller joins a quorum later (headrace quorum add).",
    )
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="The controller's address; needs --log-dirs and --standalone."
    )


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="A properties file with Kafka's keys.")
    parser.add_argument(
        "-o",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="Override a key of the file; repeatable.",
    )


def _load(arguments: argparse.Namespace, role: str) -> NodeConfig:
    properties = read_properties(arguments.config).overridden_by(parse_overrides(arguments.overrides))
    return NodeConfig.from_properties(properties, role=role)
