"""``meta.properties``: marks a directory as a log directory of a cluster (KIP-631, KIP-858).

    version=1
    cluster.id=...      its cluster
    directory.id=...    16 random bytes for this directory alone; a broker's id belongs to its directories' ids
    node.id=1           its node; -1 for brokers that get their id from the controller

Only ``format`` writes ``meta.properties``, never a starting node. A start with a wrong path or an unmounted disk must
fail, and must not create an empty node.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InconsistentClusterIdError, InvalidConfigError
from ..log import checkpoints
from ..log.files import FileSystem, RealFileSystem, make_directories
from . import first_voters
from .ids import id_to_text, random_id

FILE_NAME = checkpoints.META_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """Contents of the ``meta.properties`` of one directory. ``node_id`` is -1 if not set; ``directory_id`` is 16
    bytes."""

    cluster_id: str
    directory_id: bytes
    node_id: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FormattedDirectory:
    """Result of format_directories for one directory; ``created`` is False if the directory was formatted already."""

    path: str
    meta: MetaProperties
    created: bool


def check_cluster_id(cluster_id: str) -> str:
    """Return a legal cluster id, which is 1 to 64 visible ASCII characters; raises InvalidConfigError otherwise."""
    if not 1 <= len(cluster_id) <= 64 or not all("!" <= letter <= "~" for letter in cluster_id):
        raise InvalidConfigError(f"cluster id {cluster_id!r}: must be 1 to 64 visible ASCII characters")
    return cluster_id


def read_meta(
    directory: str, *, node_id: int = -1, fs: FileSystem | None = None, is_controller: bool = False
) -> MetaProperties:
    """Read the ``meta.properties`` of one directory. Raises InvalidConfigError when the file is damaged, or when the
    directory is not formatted (with the command that formats it for ``node_id``)."""
    found = checkpoints.read_meta(fs or RealFileSystem(), directory)
    if found is None:
        node = "" if node_id < 0 else f" --node-id {node_id}"
        cure = f"headrace format --cluster-id ID{node} --log-dirs {shlex.quote(directory)}"
        if is_controller:
            how = (
                f"`{cure}` and one of {first_voters.STANDALONE} (for the only controller so far; with --address), "
                f"{first_voters.INITIAL} (for several controllers that begin together), {first_voters.NONE} (for a "
                f"controller that joins an existing quorum by `headrace quorum add`, also after the loss of its disk)"
            )
        else:
            how = f"`{cure}`"
        raise InvalidConfigError(
            f"log.dirs={directory}: not formatted (there is no {FILE_NAME}); is the disk mounted? A new directory is "
            f"prepared with {how} (ID is the cluster's id)"
        )
    return MetaProperties(cluster_id=found.cluster_id, directory_id=found.directory_id.bytes, node_id=found.node_id)


def read_all_meta(
    directories: Sequence[str], *, node_id: int = -1, fs: FileSystem | None = None
) -> list[MetaProperties]:
    """Read the ``meta.properties`` of a node's directories; the files must agree with each other and with the node's
    id.

    Raises InvalidConfigError (a directory is not formatted, belongs to another node, or is given twice),
    InconsistentClusterIdError.
    """
    metas = [read_meta(directory, node_id=node_id, fs=fs) for directory in directories]
    check_agreement(directories, metas, node_id=node_id)
    return metas


def check_agreement(directories: Sequence[str], metas: Sequence[MetaProperties], *, node_id: int) -> None:
    """Check that all ``directories`` belong to one node. Raises as ``read_all_meta``."""
    for directory, meta in zip(directories, metas, strict=True):
        if meta.cluster_id != metas[0].cluster_id:
            raise InconsistentClusterIdError(
                f"{directory} belongs to cluster {meta.cluster_id}, but {directories[0]} belongs to cluster "
                f"{metas[0].cluster_id}"
            )
        if node_id >= 0 and meta.node_id >= 0 and meta.node_id != node_id:
            raise InvalidConfigError(
                f"{directory} belongs to node.id={meta.node_id}, but node.id={node_id} is configured"
            )
    if len({meta.directory_id for meta in metas}) != len(metas):
        raise InvalidConfigError(
            f"log.dirs={','.join(directories)}: two directories have the same directory.id: is one a copy?"
        )


def format_directories(
    directories: Sequence[str],
    *,
    cluster_id: str,
    node_id: int = -1,
    ignore_formatted: bool = False,
    first: first_voters.FirstVoters | None = None,
    write_voters: first_voters.WriteVoters | None = None,
    fs: FileSystem | None = None,
) -> list[FormattedDirectory]:
    """Make ``directories`` (created when missing) log directories of a cluster, durably.

    If any directory is formatted already, raises an error before it changes a directory. With ``ignore_formatted``,
    formatted directories stay unchanged if they belong to the same cluster and node. ``first``: a controller's first
    voters. ``write_voters`` writes the first voters into the first directory before that directory is marked as
    formatted. If a crash interrupts ``format_directories``, the call can be repeated. Raises InvalidConfigError,
    InconsistentClusterIdError, OSError.
    """
    fs = fs or RealFileSystem()
    check_cluster_id(cluster_id)
    if not directories:
        raise InvalidConfigError("nothing to format: log.dirs is empty")
    formatted = {path: read_meta(path, fs=fs) for path in directories if fs.exists(f"{path}/{FILE_NAME}")}
    for path, meta in formatted.items():
        if not ignore_formatted:
            raise InvalidConfigError(
                f"{path} is already formatted (cluster {meta.cluster_id}), nothing was changed; pass "
                "--ignore-formatted to skip this directory"
            )
        if meta.cluster_id != cluster_id:
            raise InconsistentClusterIdError(f"{path} belongs to cluster {meta.cluster_id}, not to {cluster_id}")
        if meta.node_id != node_id and meta.node_id >= 0 and node_id >= 0:
            raise InvalidConfigError(f"{path} belongs to node.id={meta.node_id}, not to {node_id}")
    wanted_id = None if first is None else first.directory_id_of(node_id)
    if first is not None:
        _check_quorum_directory(fs, directories[0], formatted.get(directories[0]), first, wanted_id)
    results = []
    for path in directories:
        is_quorums = first is not None and path == directories[0]
        directory_id = wanted_id if is_quorums and wanted_id is not None else random_id()
        meta = formatted.get(path) or MetaProperties(cluster_id=cluster_id, directory_id=directory_id, node_id=node_id)
        if path not in formatted:
            make_directories(fs, path)
            if is_quorums:
                assert first is not None
                assert write_voters is not None, "formatting a controller needs write_voters"
                first_voters.clear_unfinished(fs, path)
                write_voters(fs, path, first.voters)
            checkpoints.write_meta(
                fs,
                path,
                checkpoints.DirectoryMeta(
                    cluster_id=meta.cluster_id, node_id=meta.node_id, directory_id=uuid.UUID(bytes=meta.directory_id)
                ),
            )
        results.append(FormattedDirectory(path=path, meta=meta, created=path not in formatted))
    return results


def _check_quorum_directory(
    fs: FileSystem, path: str, meta: MetaProperties | None, first: first_voters.FirstVoters, wanted_id: bytes | None
) -> None:
    if meta is None:
        first_voters.refuse_leftovers(fs, path)
    elif first.ids_are_given and meta.directory_id != wanted_id:
        raise InvalidConfigError(
            f"{path} has directory id {id_to_text(meta.directory_id)}, not {id_to_text(wanted_id or b'')} as "
            f"{first.flag} says; the id of a directory does not change"
        )
