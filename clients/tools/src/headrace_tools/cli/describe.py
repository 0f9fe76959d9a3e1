"""``cluster describe``. The commands ``cluster drain`` and ``cluster roll`` are in brokers.py and roll.py."""

from __future__ import annotations

import typer

from .brokers import drain
from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .output import Output, OutputFormat, print_json, print_table
from .roll import roll


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Describe the cluster, restart its nodes one by one, and move all replicas off some brokers.",
        no_args_is_help=True,
    )
    group.callback()(_group)
    group.command("describe")(describe)
    group.command("drain")(drain)
    group.command("roll")(roll)
    app.add_typer(group, name="cluster")


def _group() -> None:
    """Describe the cluster, restart its nodes one by one, move all replicas away from some of its brokers."""


def describe(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TEXT) -> None:
    """Show the cluster's id, controllers and brokers, and how old the metadata of the answering node may be.

    \b
    Examples:
      headrace cluster describe
      headrace cluster describe -b 127.0.0.1:9095 -o json
    """
    with admin(bootstrap) as client:
        cluster = client.describe_cluster()
    brokers = [
        {"id": each.broker_id, "address": each.address, "rack": each.rack, "fenced": each.fenced}
        for each in cluster.brokers
    ]
    if output is OutputFormat.JSON:
        print_json(
            {
                "cluster_id": cluster.cluster_id,
                "controller_id": cluster.controller_id,
                "controllers": [
                    {"id": each.controller_id, "address": f"{each.host}:{each.port}"} for each in cluster.controllers
                ],
                "metadata_lag_ms": cluster.metadata_lag_ms,
                "brokers": brokers,
            }
        )
        return
    voters = ", ".join(str(each.controller_id) for each in cluster.controllers) or "-"
    age = "not known" if cluster.metadata_lag_ms is None else f"at most {cluster.metadata_lag_ms} ms old"
    print(
        f"cluster {cluster.cluster_id}, active controller {cluster.controller_id} of {voters}; this is {age}\n",
        flush=True,
    )
    print_table(
        ("BROKER", "ADDRESS", "RACK", "STATE"),
        [
            (each["id"], each["address"], each["rack"] or "-", "fenced" if each["fenced"] else "live")
            for each in brokers
        ],
    )
