"""The one-shot job of compose.yaml: creates a cluster once. A repeated run changes nothing.

    /volumes/controller/slot-N    formatted for the first CONTROLLERS controllers, the first voters
    /volumes/*/cluster.id         the cluster of these volumes' slots; the other nodes format their own

Generated ids (the cluster's, the controllers' directories') are stored in /volumes/controller/first-voters.json before
they are used, so that an interrupted job continues with the same ids. CONTROLLER_ADDRESS is the address of controller
{slot}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from headrace_controller.formatting import write_voters
from headrace_core.errors import HeadraceError, InconsistentClusterIdError
from headrace_core.log.files import RealFileSystem, write_file_atomically
from headrace_core.node.first_voters import INITIAL, FirstVoters, InitialVoter
from headrace_core.node.ids import id_from_text, id_to_text, random_id
from headrace_core.node.meta_properties import format_directories
from headrace_core.node.slots import CLUSTER_ID, PLACEHOLDER

ROLES = ("controller", "broker", "coordinator")


def plan(volumes: Path, controllers: int) -> dict[str, object]:
    """Return the stored ids of the cluster and its directories; without stored ids, new ids."""
    path = volumes / "controller" / "first-voters.json"
    if not path.exists():
        drawn = {
            "cluster_id": id_to_text(random_id()),
            "directory_ids": {str(number): id_to_text(random_id()) for number in range(1, controllers + 1)},
        }
        write_file_atomically(RealFileSystem(), str(path), (json.dumps(drawn) + "\n").encode())
    known: dict[str, object] = json.loads(path.read_text())
    return known


def check_volumes(volumes: Path, cluster_id: str) -> None:
    """Raise InconsistentClusterIdError for volumes of another cluster. A lost or unmounted controller volume would
    otherwise create a new cluster on the brokers' volumes, and their records would be lost."""
    for role in ROLES:
        path = volumes / role / CLUSTER_ID
        held = path.read_text().strip() if path.exists() else cluster_id
        if held != cluster_id:
            raise InconsistentClusterIdError(
                f"{path} says cluster {held}, and the controllers' volume is of cluster {cluster_id}: mount the volume "
                "that belongs to the others, or delete all of them (docker compose down -v) to begin anew"
            )


def format_cluster(volumes: Path, *, controllers: int, address: str) -> str:
    """Format unformatted directories; returns the cluster's id. Raises the errors of format_directories and of
    check_volumes."""
    drawn = plan(volumes, controllers)
    cluster_id, directory_ids = str(drawn["cluster_id"]), drawn["directory_ids"]
    check_volumes(volumes, cluster_id)
    assert isinstance(directory_ids, dict)
    voters = tuple(
        InitialVoter(
            node_id=int(number),
            address=address.replace(PLACEHOLDER, number),
            directory_id=id_from_text(directory_id),
        )
        for number, directory_id in directory_ids.items()
    )
    for voter in voters:
        (done,) = format_directories(
            [str(volumes / "controller" / f"slot-{voter.node_id}")],
            cluster_id=cluster_id,
            node_id=voter.node_id,
            ignore_formatted=True,
            first=FirstVoters(flag=INITIAL, voters=voters),
            write_voters=write_voters,
        )
        print(f"format: controller {voter.node_id}: {'formatted' if done.created else 'was formatted before'}")
    for role in ROLES:
        write_file_atomically(RealFileSystem(), str(volumes / role / CLUSTER_ID), f"{cluster_id}\n".encode())
    return cluster_id


def main() -> int:
    try:
        cluster_id = format_cluster(
            Path("/volumes"),
            controllers=int(os.environ["CONTROLLERS"]),
            address=os.environ["CONTROLLER_ADDRESS"],
        )
    except (HeadraceError, OSError) as error:
        print(f"format: {error}", file=sys.stderr)
        return 1
    print(f"format: cluster {cluster_id}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
