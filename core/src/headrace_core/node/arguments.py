"""The command line that both servers share.

python -m headrace_controller --config FILE [-o key=value]...
python -m headrace_controller format --cluster-id ID (--config FILE [-o ...] | --log-dirs A,B [--node-id N])
                                     [--ignore-formatted]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidConfigError
from .config import NodeConfig
from .ids import id_to_text
from .meta_properties import FormattedDirectory, format_directories
from .properties import parse_overrides, read_properties


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCommand:
    config: NodeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatCommand:
    cluster_id: str
    node_id: int
    log_dirs: tuple[str, ...]
    ignore_formatted: bool

    def run(self) -> list[FormattedDirectory]:
        """Format, and print one JSON line per directory. Raises what format_directories raises."""
        results = format_directories(
            self.log_dirs,
            cluster_id=self.cluster_id,
            node_id=self.node_id,
            ignore_formatted=self.ignore_formatted,
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


def parse_command(argv: Sequence[str], *, program: str, role: str) -> StartCommand | FormatCommand:
    """What the command line asks for. SystemExit on a wrong line (argparse); InvalidConfigError on wrong values."""
    if argv and argv[0] == "format":
        return _parse_format(argv[1:], program=program, role=role)
    parser = argparse.ArgumentParser(prog=program, description=f"A Headrace {role}. `{program} format` comes first.")
    _add_config(parser, required=True)
    arguments = parser.parse_args(argv)
    return StartCommand(config=_load(arguments, role))


def _parse_format(argv: Sequence[str], *, program: str, role: str) -> FormatCommand:
    parser = argparse.ArgumentParser(prog=f"{program} format", description="Prepare directories for a node's data.")
    parser.add_argument("--cluster-id", required=True, help="the same for every node of the cluster")
    _add_config(parser, required=False)
    parser.add_argument("--log-dirs", help="directories, with commas; instead of --config")
    parser.add_argument("--node-id", type=int, default=-1, help="with --log-dirs: the node's id")
    parser.add_argument("--ignore-formatted", action="store_true", help="leave directories alone that are formatted")
    arguments = parser.parse_args(argv)
    if (arguments.config is None) == (arguments.log_dirs is None):
        raise InvalidConfigError("format needs either --config FILE or --log-dirs A,B")
    if arguments.config is not None:
        config = _load(arguments, role)
        node_id, log_dirs = config.node_id, config.log_dirs
    else:
        node_id = arguments.node_id
        log_dirs = tuple(item.strip().rstrip("/") or "/" for item in arguments.log_dirs.split(",") if item.strip())
    return FormatCommand(
        cluster_id=arguments.cluster_id,
        node_id=node_id,
        log_dirs=log_dirs,
        ignore_formatted=arguments.ignore_formatted,
    )


def _add_config(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--config", type=Path, required=required, metavar="FILE", help="properties file, Kafka's keys")
    parser.add_argument("-o", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help="on top of it")


def _load(arguments: argparse.Namespace, role: str) -> NodeConfig:
    properties = read_properties(arguments.config).overridden_by(parse_overrides(arguments.overrides))
    return NodeConfig.from_properties(properties, role=role)
