"""Doctor rules about processes, machines and their agreement: addresses, controllers, disks, clocks, versions. Pure."""

from __future__ import annotations

import ipaddress
import statistics
from collections import defaultdict
from collections.abc import Iterator

from headrace.cluster_models import QuorumInfo, ReplicaInfo
from headrace.errors import OffsetOutOfRangeError

from .facts import THE_QUORUM, Facts, Tried, Trouble
from .findings import Finding, Severity, count, rule, some

#: Milliseconds without a fetch from a voter after which the doctor treats the voter as absent. VOTER_SILENT_MS is
#: longer than an election (a second), and longer than the leader's timer tick, which is the precision of a voter's
#: fetch time.
VOTER_SILENT_MS = 10_000
#: A broker counts as silent after this number of milliseconds without a heartbeat. A broker sends heartbeats every two
#: seconds, and is fenced after its session timeout (9 s).
HEARTBEAT_FRESH_MS = 5_000
#: Largest acceptable age of a broker's metadata, in milliseconds; the metadata of a healthy broker are at most a few
#: seconds old.
METADATA_LAG_MS = 10_000
#: Largest acceptable difference between the clocks of two nodes, in milliseconds: the difference makes lags, retention
#: and timestamps wrong.
CLOCK_WARNING_MS, CLOCK_ERROR_MS = 1_000, 60_000
#: If small forced writes (fsync) usually take this number of milliseconds or more, the disk slows every producer with
#: acks=all.
SLOW_SYNC_MS = 100.0
#: A disk is nearly full if its free space is below FREE_PART of its size and below FREE_BYTES.
FREE_PART, FREE_BYTES = 0.05, 20 * 2**30
DESCRIPTORS_WARNING, DESCRIPTORS_ERROR = 0.80, 0.95
#: Results of a probe which show that the process at the address runs and does not hang.
_RUNS = (None, Trouble.NOT_SERVING, Trouble.TLS, Trouble.LOGIN)

# -- reach ------------------------------------------------------------------------------------------------------------


@rule("no-cluster")
def no_cluster(facts: Facts) -> Iterator[Finding]:
    """No node describes the cluster: no node can be reached, or the nodes that can be reached do not know the
    cluster."""
    if facts.cluster is not None or any(tried.refusal is not None for tried in facts.bootstrap):
        return  # security_rules.py says why the client is refused
    answering = [tried for tried in facts.bootstrap if tried.trouble in (None, Trouble.NOT_SERVING)]
    running = [node for node in facts.local if node.pid is not None and not node.stopped]
    hanging = [tried for tried in facts.bootstrap if tried.trouble is Trouble.SILENT]
    asked = {tried.address for tried in facts.bootstrap}
    others = [node for node in running if node.role == "broker" and node.address not in asked]
    where = ", ".join(tried.address for tried in answering or hanging or facts.bootstrap)
    if answering:
        what = f"{where} answers, but does not describe the cluster"
        cure = "wait if it is starting; else look at its log (a broker needs an active controller)"
    elif others:
        what = f"no node answers at the given address, but other brokers of the cluster in {facts.data} are running: "
        what += ", ".join(f"{node.role} {node.node_id}" for node in others)
        cure = f"name them, too: `headrace doctor -b {','.join([*sorted(asked), *(node.address for node in others)])}`"
    elif running:
        what = "no broker answers, and the running controllers do not describe the cluster; running processes: "
        what += ", ".join(f"{node.role} {node.node_id}" for node in running)
        cure = f"start the other nodes (`headrace up --data {facts.data}`)"
    elif hanging:
        what = "no node of the cluster answers, but processes accept connections"
        cure = (
            "find out why those processes hang (stopped, swapping, a blocked disk); restart those that do not recover"
        )
    else:
        what = "no node of the cluster answers"
        cure = "start it (`headrace up`), or pass the address of a running broker or controller with --bootstrap"
        if facts.data:
            cure = f"start it (`headrace up --data {facts.data}`)"
    yield Finding("no-cluster", Severity.ERROR, what, where, cure)


@rule("name-not-resolved")
def name_not_resolved(facts: Facts) -> Iterator[Finding]:
    """A host name in bootstrap.servers, or an advertised host name, cannot be resolved by DNS on this machine."""
    for tried in facts.bootstrap:
        if tried.trouble is Trouble.NAME:
            yield Finding(
                "name-not-resolved",
                Severity.ERROR if facts.cluster is None else Severity.WARNING,
                f"the bootstrap name {_host(tried.address)!r} cannot be resolved here ({tried.detail})",
                tried.address,
                "correct it in bootstrap.servers, or add it to DNS (or to this machine's hosts file)",
            )
    for name, tried in _advertised(facts):
        if tried.trouble is Trouble.NAME:
            yield Finding(
                "name-not-resolved",
                Severity.ERROR,
                f"{name} advertises the name {_host(tried.address)!r}, which cannot be resolved here "
                f"({tried.detail}); clients cannot connect to this node",
                f"{name} at {tried.address}",
                "set advertised.listeners of that node to a name that its clients can resolve, or add the name to "
                "DNS; then restart the node",
            )


@rule("address-unreachable")
def address_unreachable(facts: Facts) -> Iterator[Finding]:
    """An advertised address refuses connections or cannot be reached."""
    kinds = (Trouble.REFUSED, Trouble.UNREACHABLE)
    for tried in facts.bootstrap:
        if tried.trouble in kinds and facts.cluster is not None and tried.address not in _addresses(facts):
            yield Finding(
                "address-unreachable",
                Severity.WARNING,
                f"cannot connect to the bootstrap address {tried.address}: {tried.detail}",
                tried.address,
                "remove it from bootstrap.servers, or start the node there",
            )
    for name, tried in _advertised(facts):
        if tried.trouble in kinds:
            yield Finding(
                "address-unreachable",
                Severity.ERROR,
                f"{name} is alive and advertises {tried.address}, which this machine cannot connect to: {tried.detail}",
                f"{name} at {tried.address}",
                "set advertised.listeners of that node to an address that its clients can reach (a published port, "
                "the machine's name), or open the firewall; then restart the node",
            )


@rule("advertised-loopback")
def advertised_loopback(facts: Facts) -> Iterator[Finding]:
    """A node advertises a loopback address, so that clients on other machines connect to themselves."""
    ours = [tried for tried in facts.bootstrap if tried.trouble is None and tried.ips]
    if not ours or not all(_is_elsewhere(ip) for tried in ours for ip in tried.ips):
        return
    for name, tried in _advertised(facts):
        if tried.ips and not any(_is_elsewhere(ip) for ip in tried.ips):
            yield Finding(
                "advertised-loopback",
                Severity.ERROR,
                f"{name} advertises {tried.address}, which each client resolves to its own machine; this cluster "
                f"was found at {ours[0].address}",
                f"{name} at {tried.address}",
                "set advertised.listeners of that node to the name or address of its machine, and restart the node",
            )


@rule("address-of-another")
def address_of_another(facts: Facts) -> Iterator[Finding]:
    """Another process answers at the address of a node."""
    if facts.cluster is None:
        return
    for role, all_tried in (("broker", facts.brokers), ("coordinator", facts.coordinators)):
        for node_id, tried in sorted(all_tried.items()):
            answer = tried.node
            if answer is None or (not answer.cluster_id and answer.node_id < 0):
                continue
            stranger = bool(answer.cluster_id) and answer.cluster_id != facts.cluster.cluster_id
            if stranger or answer.role != role or answer.node_id not in (node_id, -1):
                whose = f" of cluster {answer.cluster_id}" if stranger else ""
                yield Finding(
                    "address-of-another",
                    Severity.ERROR,
                    f"{tried.address} should be {role} {node_id}, but {answer.role} {answer.node_id}{whose} answers",
                    f"{role} {node_id} at {tried.address}",
                    "two nodes advertise one address, or a forwarded port leads to the wrong node: correct "
                    "advertised.listeners (or the forwarding), and restart the node",
                )


@rule("node-silent")
def node_silent(facts: Facts) -> Iterator[Finding]:
    """A live node that accepts connections, but does not answer or does not serve."""
    for name, tried in _advertised(facts):
        if tried.trouble is Trouble.SILENT:
            what = f"does not answer at {tried.address} ({tried.detail})"
            cure = (
                "look at the node's log and machine: a paused process, swapping, a blocked disk, or a firewall "
                "that drops packets; restart the node if it does not recover"
            )
        elif tried.trouble is Trouble.NOT_SERVING:
            what = f"reports at {tried.address} that it does not serve"
            cure = "wait if it is starting; else look at its log"
        else:
            continue
        yield Finding("node-silent", Severity.ERROR, f"{name} {what}", name, cure)


@rule("broker-down")
def broker_down(facts: Facts) -> Iterator[Finding]:
    """Registered brokers that the controllers consider dead."""
    if facts.cluster is None:
        return
    coming = starting(facts)
    for broker in facts.cluster.brokers:
        if not broker.fenced or broker.broker_id in coming:
            continue
        cure = _local_cure(facts, "broker", broker.broker_id)
        tried = facts.fenced_brokers.get(broker.broker_id)
        if cure is None and tried is not None and tried.trouble is Trouble.SILENT:
            cure = (
                "it hangs: it accepts connections but does not answer; look at its log and its process (stopped, "
                "swapping, a blocked disk), and restart it if it does not recover"
            )
        elif cure is None and tried is not None and tried.trouble in _RUNS:
            cure = (
                "it runs: check that it can reach a controller (controller.quorum.bootstrap.servers, the internal "
                "network); its log names the error"
            )
        elif cure is None:
            cure = (
                f"start it with the same directories; if it will not come back, `headrace brokers drain "
                f"{broker.broker_id} --wait`, then `headrace brokers unregister {broker.broker_id}`"
            )
        yield Finding(
            "broker-down",
            Severity.ERROR,
            f"broker {broker.broker_id} is registered but dead: the controllers receive no heartbeats from it",
            f"broker {broker.broker_id} at {broker.address}",
            cure,
        )


@rule("broker-starting")
def brokerstarting(facts: Facts) -> Iterator[Finding]:
    """Brokers that are fenced but alive: they must not be started a second time, and their replicas are not lost."""
    for broker_id in sorted(starting(facts)):
        yield Finding(
            "broker-starting",
            Severity.WARNING,
            f"broker {broker_id} sends heartbeats but does not serve yet",
            f"broker {broker_id}",
            "wait: after a crash the broker checks its logs first, which takes longer for large logs; its log "
            "shows the progress, and what it waits for",
        )


@rule("process-dead")
def process_dead(facts: Facts) -> Iterator[Finding]:
    """A process of a local cluster is not running. If a node describes the cluster, the rule broker-down reports
    brokers instead of this rule."""
    for node in facts.local:
        if node.pid is None and (node.role != "broker" or facts.cluster is None):
            yield Finding(
                "process-dead",
                Severity.ERROR,
                f"the process of {node.role} {node.node_id} is not running",
                f"{node.role} {node.node_id} at {node.address}",
                f"`headrace restart --data {facts.data} {node.role} {node.node_id}`; its log says why it ended: "
                f"{node.log}",
            )


@rule("process-stopped")
def process_stopped(facts: Facts) -> Iterator[Finding]:
    """A process of a local cluster is suspended. (The rule broker-down reports a broker that is fenced because it is
    suspended.)"""
    reported = facts.fenced() - starting(facts)
    for node in facts.local:
        if node.stopped and not (node.role == "broker" and node.node_id in reported):
            yield Finding(
                "process-stopped",
                Severity.ERROR,
                f"the process of {node.role} {node.node_id} hangs: pid {node.pid} is stopped (SIGSTOP)",
                f"{node.role} {node.node_id} at {node.address}",
                _local_cure(facts, node.role, node.node_id) or "",
            )


# -- quorum -----------------------------------------------------------------------------------------------------------


@rule("no-controller")
def no_controller(facts: Facts) -> Iterator[Finding]:
    """No controller is the leader: clients can use existing partitions, but no change and no election is possible."""
    if facts.cluster is None or facts.quorum is not None:
        return
    why = next((each.why for each in facts.not_asked if each.what == THE_QUORUM and not each.is_no_fault), None)
    if why is not None:
        voters = ", ".join(str(each.controller_id) for each in facts.cluster.controllers) or "not known"
        yield Finding(
            "no-controller",
            Severity.ERROR,
            "no controller is active, or none can be reached: topics cannot be created, and failed leaders are not "
            f"replaced ({why})",
            f"controllers {voters}",
            "a majority of them must be up and reach each other: start those that are down; to see what each one "
            "has stored: `headrace metadata cat DIRECTORY /local/quorum`",
        )


@rule("voter-away")
def voter_away(facts: Facts) -> Iterator[Finding]:
    """The leader has not received a fetch from a voting controller for a long time."""
    quorum = facts.quorum
    if quorum is None:
        return
    now_ms = _leaders_now_ms(quorum)
    if now_ms is None:
        return
    away = [
        voter
        for voter in quorum.voters
        if not voter.is_outdated
        and (voter.last_fetch_timestamp_ms is None or now_ms - voter.last_fetch_timestamp_ms > VOTER_SILENT_MS)
    ]
    spare = (len(quorum.voters) - 1) // 2 - len(away) - sum(voter.is_outdated for voter in quorum.voters)
    for voter in away:
        fetched = "never since it leads" if voter.last_fetch_timestamp_ms is None else (
            f"not for {(now_ms - voter.last_fetch_timestamp_ms) / 1000:.0f} s"
        )  # fmt: skip
        yield Finding(
            "voter-away",
            Severity.ERROR if spare <= 0 else Severity.WARNING,
            f"controller {voter.replica_id} is a voter, and the leader ({quorum.leader_id}) heard from it {fetched}; "
            + ("one more that fails stops every change" if spare <= 0 else f"{spare} more may fail"),
            f"controller {voter.replica_id} at {voter.address or 'an unknown address'}",
            (_local_cure(facts, "controller", voter.replica_id) or "start it, or restart it if it hangs")
            + f"; if its disk is lost, `headrace quorum remove {voter.replica_id}@{voter.directory_id_text}` and "
            "format it again (docs/operations/controllers.md)",
        )


@rule("voter-outdated")
def voter_outdated(facts: Facts) -> Iterator[Finding]:
    """A voter came back with an older copy of its directory, and stopped."""
    for voter in () if facts.quorum is None else facts.quorum.voters:
        if voter.is_outdated:
            key = f"{voter.replica_id}@{voter.directory_id_text}"
            yield Finding(
                "voter-outdated",
                Severity.ERROR,
                f"controller {voter.replica_id} has an older copy of its directory: it has forgotten votes or metadata "
                "that it acknowledged, and stopped; a majority of all voters, this one included, is still needed",
                f"controller {key} at {voter.address or 'an unknown address'}",
                "add it as a new voter: move its directory away, `headrace format --no-initial-controllers`, start it, "
                f"`headrace quorum remove {key}`, `headrace quorum add` (docs/operations/controllers.md)",
            )


@rule("metadata-old")
def metadata_old(facts: Facts) -> Iterator[Finding]:
    """A broker that sends heartbeats, but does not follow the metadata log."""
    for broker in () if facts.quorum is None else facts.quorum.brokers:
        if broker.metadata_lag_ms is not None and broker.metadata_lag_ms > METADATA_LAG_MS:
            yield Finding(
                "metadata-old",
                Severity.WARNING,
                f"the metadata of broker {broker.broker_id} is up to {broker.metadata_lag_ms / 1000:.0f} s old "
                f"({broker.lag} offsets behind)",
                f"broker {broker.broker_id}",
                "check that it can reach a controller (controller.quorum.bootstrap.servers, the internal network) "
                "and that its machine is not overloaded; its log names the error",
            )


# -- disks and descriptors --------------------------------------------------------------------------------------------


@rule("log-dir-offline")
def log_dir_offline(facts: Facts) -> Iterator[Finding]:
    """A log directory has failed: other brokers serve its partitions, or they have no leader."""
    for broker_id, directories in sorted(facts.log_dirs.items()):
        for each in directories:
            if each.error is not None:
                yield Finding(
                    "log-dir-offline",
                    Severity.ERROR,
                    f"log directory {each.path} of broker {broker_id} is offline: {each.error.message}",
                    f"broker {broker_id}: {each.path}",
                    "repair the disk (mount it, remount it writable, replace it), then restart the broker "
                    "(docs/operations/disks.md)",
                )


@rule("replica-damaged")
def replica_damaged(facts: Facts) -> Iterator[Finding]:
    """Quarantined logs: a broker does not serve them, because they are damaged, although their log directory works."""
    for broker_id, directories in sorted(facts.log_dirs.items()):
        bad = [
            (each, dir_.path)
            for dir_ in directories
            for each in dir_.replicas
            if each.error is not None and not _is_kept(each)
        ]
        if bad:
            error = bad[0][0].error
            names = [f"{each.topic}-{each.partition}" for each, _ in bad]
            yield Finding(
                "replica-damaged",
                Severity.ERROR,
                f"broker {broker_id} does not serve {count(names)} that are damaged; the first: "
                f"{'' if error is None else error.message}",
                f"broker {broker_id}: {some(names)}",
                f"`headrace log verify {bad[0][1]}` lists every problem; if another replica is in sync, delete the "
                "damaged log and restart the broker, which copies it again (docs/operations/damage.md)",
            )


@rule("leader-lacks-records")
def leader_lacks_records(facts: Facts) -> Iterator[Finding]:
    """Followers that keep committed records which their leaders lack: nobody could elect another leader cleanly."""
    for broker_id, directories in sorted(facts.log_dirs.items()):
        kept = [each for directory in directories for each in directory.replicas if _is_kept(each)]
        if kept:
            names = [f"{each.topic}-{each.partition}" for each in kept]
            yield Finding(
                "leader-lacks-records",
                Severity.ERROR,
                f"broker {broker_id} keeps committed records of {count(names)} that the leader lacks; the first: "
                f"{'' if kept[0].error is None else kept[0].error.message}",
                f"broker {broker_id}: {some(names)}",
                "choose whose records to keep: this broker's (stop the brokers of the other replicas, then `headrace "
                "partitions elect --unclean`), or the leader's (stop this broker, and delete the partition's "
                "directory) (docs/operations/damage.md)",
            )


def _is_kept(replica: ReplicaInfo) -> bool:
    """Whether the follower refuses to truncate committed records."""
    return isinstance(replica.error, OffsetOutOfRangeError)


@rule("disk-full")
def disk_full(facts: Facts) -> Iterator[Finding]:
    """A disk of a broker, controller or coordinator that is full or nearly full. The cure depends on the role."""
    yield from _full_disks_of_brokers(facts)
    for controller in () if facts.quorum is None else (*facts.quorum.voters, *facts.quorum.observers):
        if controller.usable_bytes is not None and controller.total_bytes:
            yield from _full_disk(
                f"controller {controller.replica_id}",
                f"controller {controller.replica_id}",
                controller.usable_bytes,
                controller.total_bytes,
                "it leads only if no other controller has space, and then refuses changes that add metadata",
            )
    for coordinator_id, tried in sorted(facts.coordinators.items()):
        disk = None if tried.node is None else tried.node.disk
        if disk is not None and disk.total_bytes:
            name = f"coordinator {coordinator_id}"
            effect = "it cannot keep its snapshot of the metadata, so that its next start takes longer"
            yield from _full_disk(name, f"{name}: {disk.path}", disk.free_bytes, disk.total_bytes, effect)


def _full_disk(name: str, where: str, usable_bytes: int, total_bytes: int, effect: str) -> Iterator[Finding]:
    """The finding about the disk of a node without records."""
    cure = "remove other files from this disk, or make it larger"
    if usable_bytes <= 0:
        severity = Severity.ERROR if name.startswith("controller") else Severity.WARNING
        yield Finding("disk-full", severity, f"the disk of {name} is full (DISK_FULL): {effect}", where, cure)
    elif _is_nearly_full(usable_bytes, total_bytes):
        what = f"the disk of {name} has {_left(usable_bytes, total_bytes)} left"
        yield Finding("disk-full", Severity.WARNING, what, where, cure)


def _is_nearly_full(usable_bytes: int, total_bytes: int) -> bool:
    return usable_bytes < total_bytes * FREE_PART and usable_bytes < FREE_BYTES


def _left(usable_bytes: int, total_bytes: int) -> str:
    return f"{usable_bytes / 2**30:.1f} GiB ({usable_bytes / total_bytes:.1%})"


def _full_disks_of_brokers(facts: Facts) -> Iterator[Finding]:
    for broker_id, directories in sorted(facts.log_dirs.items()):
        for each in directories:
            if each.usable_bytes is None or each.total_bytes is None or each.total_bytes <= 0:
                continue
            where = f"broker {broker_id}: {each.path}"
            cure = (
                "lower retention.ms or retention.bytes of the largest topics (`headrace log-dirs describe`), move "
                "partitions to another directory or broker, or make the disk larger; writes resume automatically "
                "when there is space"
            )
            if each.usable_bytes <= 0:
                what = (
                    f"the disk of broker {broker_id} is full up to its reserve (DISK_FULL): its replicas fall out "
                    "of sync, and it refuses writes to the partitions that it still leads"
                )
                yield Finding("disk-full", Severity.ERROR, what, where, cure)
            elif _is_nearly_full(each.usable_bytes, each.total_bytes):
                what = f"the disk of broker {broker_id} has {_left(each.usable_bytes, each.total_bytes)} left"
                yield Finding("disk-full", Severity.WARNING, what, where, cure)


@rule("disk-slow")
def disk_slow(facts: Facts) -> Iterator[Finding]:
    """Forced writes (fsync) on a disk are slow in general, not only once."""
    for broker_id, directories in sorted(facts.log_dirs.items()):
        for each in directories:
            if each.sync_ms is not None and each.sync_ms >= SLOW_SYNC_MS:
                yield Finding(
                    "disk-slow",
                    Severity.WARNING,
                    f"a small fsync takes broker {broker_id} {each.sync_ms:.0f} ms (median), so each "
                    "acknowledgement takes at least as long",
                    f"broker {broker_id}: {each.path}",
                    "check what else writes to that disk, and whether it is failing; move log.dirs to a faster "
                    "one; topics that may lose seconds of records can have log.flush=interval",
                )


@rule("descriptors")
def descriptors(facts: Facts) -> Iterator[Finding]:
    """A process near its limit of open files will soon fail to accept connections and to open segments."""
    for name, node in facts.nodes():
        if node.open_descriptors is None or not node.descriptors_max:
            continue
        used = node.open_descriptors / node.descriptors_max
        if used >= DESCRIPTORS_WARNING:
            yield Finding(
                "descriptors",
                Severity.ERROR if used >= DESCRIPTORS_ERROR else Severity.WARNING,
                f"{name} has {node.open_descriptors} of {node.descriptors_max} descriptors in use",
                name,
                "raise its limit (ulimit -n, LimitNOFILE=, nofile of the container) and restart it; "
                "log.open.files.max limits segment files, the rest are connections",
            )


# -- agreement --------------------------------------------------------------------------------------------------------


@rule("version-mix")
def version_mix(facts: Facts) -> Iterator[Finding]:
    """Nodes run different versions, which is normal during a rolling upgrade but not for longer."""
    by_version: dict[str, list[str]] = defaultdict(list)
    for name, node in facts.nodes():
        by_version[node.software_version].append(name)
    if len(by_version) > 1:
        versions = "; ".join(f"{version}: {', '.join(names)}" for version, names in sorted(by_version.items()))
        yield Finding(
            "version-mix",
            Severity.WARNING,
            f"{len(by_version)} versions run side by side: {versions}",
            versions,
            "finish the upgrade node by node; the feature level cannot rise before all nodes support the next one",
        )


@rule("feature-level")
def feature_level(facts: Facts) -> Iterator[Finding]:
    """A node does not support the cluster's feature level, or all nodes support a higher level."""
    level = facts.features.get("metadata.version")
    nodes = facts.nodes()
    if level is None or not nodes:
        return
    deaf = [
        name
        for name, node in nodes
        if not node.metadata_version_min <= level.finalized_level <= node.metadata_version_max
    ]
    if deaf:
        yield Finding(
            "feature-level",
            Severity.ERROR,
            f"the cluster is at metadata.version {level.finalized_level}, which these nodes do not support: "
            + ", ".join(deaf),
            ", ".join(deaf),
            "upgrade these nodes; or lower the level if no data would be lost (`headrace features downgrade`)",
        )
        return
    common = min(node.metadata_version_max for _, node in nodes)
    if common > level.finalized_level:
        yield Finding(
            "feature-level",
            Severity.WARNING,
            f"the cluster is at metadata.version {level.finalized_level}, but all nodes support {common}: newer "
            "features are off",
            "the cluster",
            f"when no downgrade is planned any more: `headrace features upgrade --feature metadata.version={common}`",
        )


@rule("clock-skew")
def clock_skew(facts: Facts) -> Iterator[Finding]:
    """Clocks of nodes differ by more than the round trip explains; each clock is compared with the median of all nodes'
    clocks."""
    nodes = facts.nodes()
    if not nodes:
        return
    middle_ms = statistics.median(node.clock_ahead_ms for _, node in nodes)
    cure = "run a time service there (chrony, systemd-timesyncd), and let it step the clock once"
    for name, node in nodes:
        off_ms = node.clock_ahead_ms - middle_ms
        sure_ms = abs(off_ms) - node.round_trip_ms
        if sure_ms >= CLOCK_WARNING_MS:
            yield Finding(
                "clock-skew",
                Severity.ERROR if sure_ms >= CLOCK_ERROR_MS else Severity.WARNING,
                f"the clock of {name} is {_off(off_ms)} the other nodes: timestamps, lag in seconds and retention are "
                "wrong by as much",
                name,
                cure,
            )
    if abs(middle_ms) - max(node.round_trip_ms for _, node in nodes) >= CLOCK_WARNING_MS:
        yield Finding(
            "clock-skew",
            Severity.WARNING,
            f"the clock of this machine is {_off(-middle_ms)} the cluster's; so are the "
            "timestamps of records that clients on this machine produce",
            "this machine",
            cure,
        )


# -- helpers ----------------------------------------------------------------------------------------------------------


def _local_cure(facts: Facts, role: str, node_id: int) -> str | None:
    """How to bring back a node of a local cluster: start, resume or restart it. The cure is None if the node is not on
    this machine."""
    local = facts.local_node(role, node_id)
    if local is None:
        return None
    restart = f"`headrace restart --data {facts.data} {role} {node_id}`"
    if local.pid is None:
        return f"{restart}; why it ended: {local.log}"
    if local.stopped:
        return (
            f"it hangs: pid {local.pid} is stopped; continue it with `kill -CONT {local.pid}`, or restart it with "
            f"{restart}"
        )
    return f"it hangs: pid {local.pid} runs but does not answer; look at {local.log}, or restart it with {restart}"


def _advertised(facts: Facts) -> Iterator[tuple[str, Tried]]:
    fenced = facts.fenced()
    for broker_id, tried in sorted(facts.brokers.items()):
        if broker_id not in fenced:
            yield f"broker {broker_id}", tried
    for coordinator_id, tried in sorted(facts.coordinators.items()):
        yield f"coordinator {coordinator_id}", tried


def _leaders_now_ms(quorum: QuorumInfo) -> int | None:
    """The time at which the quorum was described, by the clock of the quorum's leader; None: unknown. All times in the
    description of the quorum come from the leader's clock."""
    return next((v.last_fetch_timestamp_ms for v in quorum.voters if v.replica_id == quorum.leader_id), None)


def starting(facts: Facts) -> set[int]:
    """The ids of fenced brokers whose heartbeats the active controller receives."""
    now_ms = None if facts.quorum is None else _leaders_now_ms(facts.quorum)
    if facts.quorum is None or now_ms is None:
        return set()
    fresh = {b.broker_id for b in facts.quorum.brokers if now_ms - b.last_heartbeat_timestamp_ms < HEARTBEAT_FRESH_MS}
    return facts.fenced() & fresh


def _addresses(facts: Facts) -> set[str]:
    asked = {tried.address for all_tried in (facts.brokers, facts.coordinators) for tried in all_tried.values()}
    return asked | {broker.address for broker in ([] if facts.cluster is None else facts.cluster.brokers)}


def _is_elsewhere(ip: str) -> bool:
    address = ipaddress.ip_address(ip.partition("%")[0])
    return not (address.is_loopback or address.is_unspecified)


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _off(ms: float) -> str:
    amount = f"{abs(ms) / 1000:.1f} s"
    return f"{amount} ahead of" if ms > 0 else f"{amount} behind"
