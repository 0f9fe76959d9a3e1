"""The command ``doctor``: find faults of a cluster, and name their places and cures."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_core.plurals import counted
from headrace_core.visible import escaped, one_line

from ..local.finding import DEFAULT_DATA, clusters_here
from .client import DEFAULT_BOOTSTRAP, Bootstrap, Properties, admin, is_given, resolved, tls_of
from .output import Output, OutputFormat, note, print_json
from .times import duration

if TYPE_CHECKING:
    from ..doctor.diagnosis import Finding
    from ..doctor.facts import Facts


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    context: typer.Context,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            envvar="HEADRACE_DATA",
            help="The directory of a local cluster; `doctor` also checks the cluster's processes.",
        ),
    ] = None,
    timeout: Annotated[float, duration("--timeout", least_s=0.1, help="How long a node may take to answer.")] = 5.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Check a cluster for faults: addresses, controllers, disks, clocks, versions, partitions, groups.

    Changes nothing. Prints each fault with its place and its cure, or one line for a healthy cluster, and advice about
    patterns of use that become expensive. Exit code 0 means healthy. Exit code 1 means that an error or a warning was
    found, or that a node did not answer a request that any client may send.

    \b
    Examples:
      headrace doctor
      headrace doctor -b kafka-1:9095,kafka-2:9095
      headrace doctor --data ./cluster            a cluster on this machine: also says which process to restart
      headrace doctor -o json         {"healthy", "cluster_id", "not_asked": [{"what", "why"}],
                                       "findings": [{"rule", "severity", "what", "where", "cure"}]}
    """
    from ..doctor.diagnosis import diagnose, is_healthy
    from ..doctor.gathering import Gathering, local_cluster
    from ..doctor.logins import LoginKeys, Logins
    from ..local.directory import ClusterDirectory

    is_named = is_given(context, "bootstrap")
    is_typed = is_given(context, "data", only_typed=True)
    if data is not None and not is_named and (is_typed or ClusterDirectory(data).exists()):
        bootstrap = ClusterDirectory(data).state().bootstrap_servers  # ``state`` raises if the directory has no cluster
    elif data is None and not is_named and (found := clusters_here(DEFAULT_BOOTSTRAP).meant) is not None:
        data = found.directory
    addresses = [each.strip() for each in bootstrap.split(",") if each.strip()]
    local = local_cluster(DEFAULT_DATA if data is None else data, addresses)
    if is_typed and local is None:
        note(f"headrace: processes are not checked: {data} has no cluster with a node at {bootstrap}")
    if local is not None and not is_named:  # controllers describe the cluster even when no broker is alive
        controllers = [node.address for node in local.state().of_role("controller")]
        bootstrap = ",".join([*addresses, *controllers])
    logins = Logins(lambda address: admin(address, properties), LoginKeys.of(resolved(bootstrap, properties)))
    with admin(bootstrap, properties) as client:
        tls = tls_of(bootstrap, properties)
        facts = Gathering(client, timeout_s=timeout, tls=tls, logins=logins).facts(addresses, local)
    findings, healthy = diagnose(facts), is_healthy(facts)
    if output is OutputFormat.JSON:
        print_json(_document(facts, findings, healthy=healthy))
    else:
        _show(facts, findings, healthy=healthy)
    if not healthy:
        raise typer.Exit(1)


def _document(facts: Facts, findings: list[Finding], *, healthy: bool) -> dict[str, Any]:
    return {
        "healthy": healthy,
        "cluster_id": None if facts.cluster is None else facts.cluster.cluster_id,
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "not_asked": [{"what": each.what, "why": each.why} for each in facts.not_asked],
    }


def _show(facts: Facts, findings: list[Finding], *, healthy: bool) -> None:
    for finding in findings:
        print(one_line(f"{finding.severity}: {finding.what} [{finding.rule}]"), flush=True)
        print(one_line(f"    where: {finding.where}"), flush=True)
        print(escaped(f"    cure:  {finding.cure}\n"), flush=True)
    for each in facts.not_asked:
        note(f"not checked: {each.what}: {each.why}")
    severities = Counter(str(finding.severity) for finding in findings)
    advice = f", {severities['advice']} of advice" if severities["advice"] else ""
    if severities["error"] or severities["warning"]:
        counts = _all_counted((severities["error"], "error"), (severities["warning"], "warning"))
        print(f"{counts}{advice}; {_seen(facts)}", flush=True)
    elif healthy:
        print(f"healthy{advice}: {_seen(facts)}", flush=True)
    else:
        print(f"no fault found, but not all was checked (try a longer --timeout): {_seen(facts)}", flush=True)


def _seen(facts: Facts) -> str:
    if facts.cluster is None:
        return "no node answered"
    return _all_counted(
        (len(facts.cluster.controllers), "controller"),
        (len(facts.cluster.brokers), "broker"),
        (len(facts.cluster.coordinators), "coordinator"),
        (sum(len(topic.partitions) for topic in facts.topics), "partition"),
        (len(facts.groups), "group"),
    )


def _all_counted(*counts: tuple[int, str]) -> str:
    return ", ".join(counted(count, what) for count, what in counts)
