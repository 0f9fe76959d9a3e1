"""Every metric that a node serves. tools/metrics_docs.py generates docs/reference/metrics.md from this module.

Names of Kafka's JMX beans are spelled by the rules of the JMX exporter's ``kafka-kraft-3_0_0.yml`` with
``lowercaseOutputName``: ``kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec,topic=T`` becomes
``kafka_server_brokertopicmetrics_messagesin_total{topic="T"}``. Names that come from kafka_exporter are unchanged. Our
own names begin with ``headrace_``, and have the unit at their end.
"""

from __future__ import annotations

from .model import Kind, Metric, Source

BROKER = ("broker",)
CONTROLLER = ("controller",)
COORDINATOR = ("coordinator",)
REGISTRY = ("registry",)
GRPC = ("controller", "broker", "coordinator")
FOLLOWERS = ("broker", "coordinator")
ALL = ("controller", "broker", "coordinator", "registry", "console")

#: Every metric by its name, in the order of this module.
METRICS: dict[str, Metric] = {}

_PARTITION = ("topic", "partition")
_GROUP_PARTITION = ("consumergroup", "topic", "partition")


def _add(
    kind: Kind,
    name: str,
    roles: tuple[str, ...],
    help_text: str,
    labels: tuple[str, ...],
    source: Source,
    bean: str = "",
) -> Metric:
    assert name not in METRICS, name
    found = METRICS[name] = Metric(name, kind, help_text, labels, roles, source, bean)
    return found


def _jmx(
    kind: Kind, name: str, roles: tuple[str, ...], bean: str, help_text: str, labels: tuple[str, ...] = ()
) -> Metric:
    return _add(kind, name, roles, help_text, labels, Source.KAFKA, bean)


def _exporter(name: str, roles: tuple[str, ...], help_text: str, labels: tuple[str, ...] = ()) -> Metric:
    return _add(Kind.GAUGE, name, roles, help_text, labels, Source.EXPORTER)


def _ours(kind: Kind, name: str, roles: tuple[str, ...], help_text: str, labels: tuple[str, ...] = ()) -> Metric:
    return _add(kind, f"headrace_{name}", roles, help_text, labels, Source.HEADRACE)


def _process(kind: Kind, name: str, help_text: str, labels: tuple[str, ...] = ()) -> Metric:
    return _add(kind, name, ALL, help_text, labels, Source.PROMETHEUS)


# -- every node ------------------------------------------------------------------------------------------------------

CPU_SECONDS = _process(
    Kind.COUNTER, "process_cpu_seconds", "User and system processor time of the process, in seconds."
)
RESIDENT_BYTES = _process(Kind.GAUGE, "process_resident_memory_bytes", "Resident memory of the process.")
VIRTUAL_BYTES = _process(Kind.GAUGE, "process_virtual_memory_bytes", "Virtual memory of the process.")
OPEN_FDS = _process(Kind.GAUGE, "process_open_fds", "Open file descriptors.")
MAX_FDS = _process(Kind.GAUGE, "process_max_fds", "Limit of open file descriptors.")
START_TIME = _process(Kind.GAUGE, "process_start_time_seconds", "Start of the process, in seconds since 1970.")
GC_COLLECTIONS = _process(
    Kind.COUNTER, "python_gc_collections", "Collections of Python's garbage collector.", ("generation",)
)

BUILD_INFO = _ours(
    Kind.GAUGE,
    "build_info",
    ALL,
    "Always 1; the labels have the node's role, id and version.",
    ("role", "node_id", "version"),
)
THREADS = _ours(Kind.GAUGE, "process_threads", ALL, "Threads that Python knows.")
TIME_SECONDS = _ours(
    Kind.GAUGE,
    "time_seconds",
    ALL,
    "Time of the node's clock when the scrape arrived, in seconds since 1970. The alert on clock skew uses this "
    "metric.",
)
LOOP_DELAY = _ours(
    Kind.HISTOGRAM,
    "event_loop_delay_seconds",
    ALL,
    "How late the node's event loop runs a timer, measured four times a second.",
)
EVENTS = _ours(
    Kind.COUNTER,
    "events",
    ALL,
    "Events by type. The node's log has a line for each event whose level it shows (log.level).",
    ("event",),
)
CERTIFICATE_EXPIRY = _ours(
    Kind.GAUGE,
    "certificate_not_after_seconds",
    ALL,
    "Time at which a certificate of this node expires, in seconds since 1970. A node without TLS has no rows.",
    ("certificate",),
)
COLLECTOR_ERRORS = _ours(
    Kind.COUNTER,
    "metrics_collector_errors",
    ALL,
    "How often the collection of a part of the metrics failed; the node's log has the reasons.",
)
SCRAPE_SECONDS = _ours(
    Kind.GAUGE,
    "metrics_collect_seconds",
    ALL,
    "How long the node took to collect the metrics of this response, pauses included.",
)

REQUESTS = _jmx(
    Kind.COUNTER,
    "kafka_network_requestmetrics_requests",
    ALL,
    "kafka.network:type=RequestMetrics,name=RequestsPerSec",
    "Answered requests. The label has Kafka's name of the request, or the name of the gRPC method.",
    ("request", "listener"),
)
REQUEST_ERRORS = _jmx(
    Kind.COUNTER,
    "kafka_network_requestmetrics_errors",
    ALL,
    "kafka.network:type=RequestMetrics,name=ErrorsPerSec",
    "Requests that the node answered with an error; the label has the code of the error.",
    ("request", "listener", "error"),
)
TOTAL_TIME_MS = _jmx(
    Kind.SUMMARY,
    "kafka_network_requestmetrics_totaltimems",
    ALL,
    "kafka.network:type=RequestMetrics,name=TotalTimeMs",
    "Time from a request's arrival to its answer, in ms; the quantiles are over the last five minutes.",
    ("request", "listener"),
)
LOCAL_TIME_MS = _jmx(
    Kind.SUMMARY,
    "kafka_network_requestmetrics_localtimems",
    BROKER,
    "kafka.network:type=RequestMetrics,name=LocalTimeMs",
    "For Produce requests: time from a request's arrival until the leader's log has the records, in ms.",
    ("request", "listener"),
)
REMOTE_TIME_MS = _jmx(
    Kind.SUMMARY,
    "kafka_network_requestmetrics_remotetimems",
    BROKER,
    "kafka.network:type=RequestMetrics,name=RemoteTimeMs",
    "For Produce requests: time that a request waits for other replicas, in ms.",
    ("request", "listener"),
)
REQUEST_SECONDS = _ours(
    Kind.HISTOGRAM,
    "request_seconds",
    ALL,
    "Time from a request's arrival to its answer. A Fetch request includes the wait for records (fetch.max.wait.ms).",
    ("request", "listener"),
)
REQUEST_LOCAL_SECONDS = _ours(
    Kind.HISTOGRAM,
    "request_local_seconds",
    BROKER,
    "For Produce requests: time from a request's arrival until the leader's log has the records. The rest of "
    "headrace_request_seconds is the wait for other replicas.",
    ("request", "listener"),
)

# -- the metadata log of nodes that follow it ------------------------------------------------------------------------

METADATA_FOLLOWER = {
    "last-applied-record-offset": _jmx(
        Kind.GAUGE,
        "kafka_server_broker_metadata_metrics_last_applied_record_offset",
        FOLLOWERS,
        "kafka.server:type=broker-metadata-metrics",
        "Offset of the last metadata record that the node has applied.",
    ),
    "last-applied-record-epoch": _ours(
        Kind.GAUGE,
        "metadata_last_applied_epoch",
        FOLLOWERS,
        "Epoch of the last metadata record that the node has applied.",
    ),
    "last-applied-record-lag-ms": _jmx(
        Kind.GAUGE,
        "kafka_server_broker_metadata_metrics_last_applied_record_lag_ms",
        FOLLOWERS,
        "kafka.server:type=broker-metadata-metrics",
        "Age of the node's metadata, in ms; up to 1,600 in an idle cluster.",
    ),
    "metadata-load-error-count": _jmx(
        Kind.GAUGE,
        "kafka_server_broker_metadata_metrics_metadata_load_error_count",
        FOLLOWERS,
        "kafka.server:type=broker-metadata-metrics",
        "How often the node failed to load metadata.",
    ),
    "metadata-apply-error-count": _jmx(
        Kind.GAUGE,
        "kafka_server_broker_metadata_metrics_metadata_apply_error_count",
        FOLLOWERS,
        "kafka.server:type=broker-metadata-metrics",
        "Changes of the metadata that the node could not apply.",
    ),
    "metadata-lag-records": _ours(
        Kind.GAUGE, "metadata_lag_records", FOLLOWERS, "Committed metadata records that the node has not applied."
    ),
}

# -- brokers: traffic ------------------------------------------------------------------------------------------------

_TOPIC_BEAN = "kafka.server:type=BrokerTopicMetrics,name="
MESSAGES_IN = _jmx(
    Kind.COUNTER,
    "kafka_server_brokertopicmetrics_messagesin",
    BROKER,
    _TOPIC_BEAN + "MessagesInPerSec",
    "Records appended to partitions that this broker leads. Transaction markers count too, as in Kafka; a retry that "
    "adds no record does not count.",
    ("topic",),
)
BYTES_IN = _jmx(
    Kind.COUNTER,
    "kafka_server_brokertopicmetrics_bytesin",
    BROKER,
    _TOPIC_BEAN + "BytesInPerSec",
    "Bytes of record batches appended to partitions that this broker leads.",
    ("topic",),
)
BYTES_OUT = _jmx(
    Kind.COUNTER,
    "kafka_server_brokertopicmetrics_bytesout",
    BROKER,
    _TOPIC_BEAN + "BytesOutPerSec",
    "Bytes of record batches sent to consumers; replication has its own counters.",
    ("topic",),
)
PRODUCE_REQUESTS = _jmx(
    Kind.COUNTER,
    "kafka_server_brokertopicmetrics_totalproducerequests",
    BROKER,
    _TOPIC_BEAN + "TotalProduceRequestsPerSec",
    "Produce requests.",
)
FETCH_REQUESTS = _jmx(
    Kind.COUNTER,
    "kafka_server_brokertopicmetrics_totalfetchrequests",
    BROKER,
    _TOPIC_BEAN + "TotalFetchRequestsPerSec",
    "Fetch requests of consumers.",
)
FAILED_PRODUCES = _jmx(
    Kind.COUNTER,
    "kafka_server_brokertopicmetrics_failedproducerequests",
    BROKER,
    _TOPIC_BEAN + "FailedProduceRequestsPerSec",
    "Errors in responses to Produce requests; each partition with an error counts.",
)
FAILED_FETCHES = _jmx(
    Kind.COUNTER,
    "kafka_server_brokertopicmetrics_failedfetchrequests",
    BROKER,
    _TOPIC_BEAN + "FailedFetchRequestsPerSec",
    "Errors in responses to Fetch requests; each partition with an error counts.",
)
REPLICATION_IN = _jmx(
    Kind.COUNTER,
    "kafka_server_brokertopicmetrics_replicationbytesin",
    BROKER,
    _TOPIC_BEAN + "ReplicationBytesInPerSec",
    "Bytes of record batches that this broker received from leaders.",
)
REPLICATION_OUT = _jmx(
    Kind.COUNTER,
    "kafka_server_brokertopicmetrics_replicationbytesout",
    BROKER,
    _TOPIC_BEAN + "ReplicationBytesOutPerSec",
    "Bytes of record batches that this broker sent to followers.",
)
RECORDS_OUT = _ours(
    Kind.COUNTER,
    "broker_records_out",
    BROKER,
    "Offsets that consumers have received: records, and markers of transactions. Gaps of compacted topics count too.",
    ("topic",),
)
QUOTA_THROTTLES = _ours(
    Kind.COUNTER,
    "broker_quota_throttles",
    BROKER,
    "How often the broker made a client that exceeded a quota wait; the label has the quota's key.",
    ("quota",),
)
QUOTA_THROTTLE_SECONDS = _ours(
    Kind.COUNTER,
    "broker_quota_throttle_seconds",
    BROKER,
    "How long the broker made clients that exceeded a quota wait, in seconds; the label has the quota's key.",
    ("quota",),
)

# -- brokers: replicas -----------------------------------------------------------------------------------------------

_REPLICAS = "kafka.server:type=ReplicaManager,name="
LEADER_COUNT = _jmx(
    Kind.GAUGE,
    "kafka_server_replicamanager_leadercount",
    BROKER,
    _REPLICAS + "LeaderCount",
    "Partitions that this broker leads.",
)
PARTITION_COUNT = _jmx(
    Kind.GAUGE,
    "kafka_server_replicamanager_partitioncount",
    BROKER,
    _REPLICAS + "PartitionCount",
    "Replicas on this broker.",
)
OFFLINE_REPLICAS = _jmx(
    Kind.GAUGE,
    "kafka_server_replicamanager_offlinereplicacount",
    BROKER,
    _REPLICAS + "OfflineReplicaCount",
    "Replicas that the broker should have and cannot serve, because their logs or directories failed.",
)
UNDER_REPLICATED = _jmx(
    Kind.GAUGE,
    "kafka_server_replicamanager_underreplicatedpartitions",
    BROKER,
    _REPLICAS + "UnderReplicatedPartitions",
    "Partitions that the broker leads and that have a replica that is not in sync; replicas that a reassignment is "
    "adding do not count.",
)
UNDER_MIN_ISR = _jmx(
    Kind.GAUGE,
    "kafka_server_replicamanager_underminisrpartitioncount",
    BROKER,
    _REPLICAS + "UnderMinIsrPartitionCount",
    "Partitions that the broker leads and that have fewer in-sync replicas than min.insync.replicas, so writes with "
    "acks=all fail.",
)
AT_MIN_ISR = _jmx(
    Kind.GAUGE,
    "kafka_server_replicamanager_atminisrpartitioncount",
    BROKER,
    _REPLICAS + "AtMinIsrPartitionCount",
    "Partitions that the broker leads and that have exactly min.insync.replicas in-sync replicas.",
)
LATE_TRANSACTIONS = _jmx(
    Kind.GAUGE,
    "kafka_server_replicamanager_partitionswithlatetransactionscount",
    BROKER,
    _REPLICAS + "PartitionsWithLateTransactionsCount",
    "Partitions that the broker leads and that have a transaction that has been open for longer than "
    "transaction.max.timeout.ms plus five minutes.",
)
REASSIGNING_PARTITIONS = _jmx(
    Kind.GAUGE,
    "kafka_server_replicamanager_reassigningpartitions",
    BROKER,
    _REPLICAS + "ReassigningPartitions",
    "Partitions that the broker leads and whose replicas a reassignment is changing.",
)
ISR_SHRINKS = _jmx(
    Kind.COUNTER,
    "kafka_server_replicamanager_isrshrinks",
    BROKER,
    _REPLICAS + "IsrShrinksPerSec",
    "How often this broker, as the leader of a partition, shrank its ISR. When a broker dies, the controllers shrink "
    "ISRs; as in Kafka, this metric does not count these changes.",
)
ISR_EXPANDS = _jmx(
    Kind.COUNTER,
    "kafka_server_replicamanager_isrexpands",
    BROKER,
    _REPLICAS + "IsrExpandsPerSec",
    "How often this broker, as the leader of a partition, added a replica to its ISR.",
)
ISR_FAILURES = _jmx(
    Kind.COUNTER,
    "kafka_server_replicamanager_failedisrupdates",
    BROKER,
    _REPLICAS + "FailedIsrUpdatesPerSec",
    "Changes of an ISR that this broker, as the leader, proposed and the controllers did not make. The broker "
    "proposes a change again if it is still needed.",
)
PURGATORY = _jmx(
    Kind.GAUGE,
    "kafka_server_delayedoperationpurgatory_purgatorysize",
    BROKER,
    "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize",
    "Requests that wait. The row Produce counts requests and transaction markers that wait for the log or for other "
    "replicas. The row Fetch counts requests that wait for records.",
    ("delayedOperation",),
)
BROKER_STATE = _jmx(
    Kind.GAUGE,
    "kafka_server_kafkaserver_brokerstate",
    BROKER,
    "kafka.server:type=KafkaServer,name=BrokerState",
    "State of the broker: 3 is running, 6 is stopping, 1 is starting or fenced.",
)
FOLLOWER_LAG = _ours(
    Kind.GAUGE,
    "replica_lag_records",
    BROKER,
    "For each follower broker (the label), the largest number of records that one of its replicas lacks, over the "
    "partitions that this node leads.",
    ("follower",),
)

_LOG_BEAN = "kafka.log:type=Log,name="
LOG_SIZE = _jmx(
    Kind.GAUGE, "kafka_log_log_size", BROKER, _LOG_BEAN + "Size", "Bytes of a replica's log on this broker.", _PARTITION
)
LOG_START = _jmx(
    Kind.GAUGE,
    "kafka_log_log_logstartoffset",
    BROKER,
    _LOG_BEAN + "LogStartOffset",
    "Log start offset of a replica.",
    _PARTITION,
)
LOG_END = _jmx(
    Kind.GAUGE,
    "kafka_log_log_logendoffset",
    BROKER,
    _LOG_BEAN + "LogEndOffset",
    "Log end offset of a replica: the offset after its last record.",
    _PARTITION,
)
LOG_SEGMENTS = _jmx(
    Kind.GAUGE,
    "kafka_log_log_numlogsegments",
    BROKER,
    _LOG_BEAN + "NumLogSegments",
    "Segments of a replica's log.",
    _PARTITION,
)
FLUSH_MS = _jmx(
    Kind.SUMMARY,
    "kafka_log_logflushstats_logflushrateandtimems",
    BROKER,
    "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
    "Duration of a flush of a log directory, in ms; the quantiles are over the last five minutes. Kafka's metric "
    "has no label `dir`.",
    ("dir",),
)
OFFLINE_DIRECTORIES = _jmx(
    Kind.GAUGE,
    "kafka_log_logmanager_offlinelogdirectorycount",
    BROKER,
    "kafka.log:type=LogManager,name=OfflineLogDirectoryCount",
    "Log directories that have failed.",
)
TOPIC_BYTES = _ours(Kind.GAUGE, "topic_log_bytes", BROKER, "Bytes of a topic's replicas on this broker.", ("topic",))

# -- brokers: disks --------------------------------------------------------------------------------------------------

FSYNC = _ours(
    Kind.HISTOGRAM,
    "log_fsync_seconds",
    ("broker", "controller"),
    "Duration of a flush to the disk. On a controller, duration of one write to the metadata log with its flush.",
    ("dir",),
)
COMMIT_APPENDS = _ours(
    Kind.HISTOGRAM,
    "log_group_commit_appends",
    BROKER,
    "Number of appends that the writer of a log directory writes and flushes together.",
    ("dir",),
)
COMMIT_BYTES = _ours(
    Kind.COUNTER, "log_group_commit_bytes", BROKER, "Bytes that the writer of a log directory has appended.", ("dir",)
)
WRITE_QUEUE = _ours(
    Kind.GAUGE, "log_pending_bytes", BROKER, "Bytes of appends that wait for the writer of a log directory.", ("dir",)
)
DIR_FREE = _ours(
    Kind.GAUGE, "log_dir_free_bytes", BROKER, "Free bytes of the file system of a log directory.", ("dir",)
)
DIR_TOTAL = _ours(Kind.GAUGE, "log_dir_size_bytes", BROKER, "Size of the file system of a log directory.", ("dir",))
DIR_RESERVE = _ours(
    Kind.GAUGE,
    "log_dir_reserve_bytes",
    BROKER,
    "Number of free bytes below which the broker refuses appends to the log directory (log.dir.reserve.bytes).",
    ("dir",),
)
DIR_FULL = _ours(
    Kind.GAUGE,
    "log_dir_full",
    BROKER,
    "1 while the broker refuses appends to the log directory for lack of space, otherwise 0.",
    ("dir",),
)
DIR_OFFLINE = _ours(
    Kind.GAUGE, "log_dir_offline", BROKER, "1 after the log directory has failed, otherwise 0.", ("dir",)
)

# -- brokers: credit -------------------------------------------------------------------------------------------------

PRODUCE_IN_FLIGHT = _ours(
    Kind.GAUGE, "produce_in_flight_bytes", BROKER, "Bytes of Produce requests whose records are not in the log yet."
)
PRODUCE_IN_FLIGHT_MAX = _ours(
    Kind.GAUGE,
    "produce_in_flight_limit_bytes",
    BROKER,
    "Limit of headrace_produce_in_flight_bytes, above which the broker reads no more Produce requests.",
)
UNREAD_ANSWERS = _ours(
    Kind.GAUGE, "unread_answer_bytes", BROKER, "Bytes of responses to Fetch requests that clients have not read yet."
)
CLIENT_STREAMS = _ours(Kind.GAUGE, "client_streams", BROKER, "Open produce and fetch streams of clients.")
FENCED = _ours(
    Kind.GAUGE, "broker_fenced", BROKER, "1 while the broker is fenced and serves no partition, otherwise 0."
)

# -- partitions and topics, as kafka_exporter names them -------------------------------------------------------------

CURRENT_OFFSET = _exporter(
    "kafka_topic_partition_current_offset", BROKER, "High watermark of a partition, as its leader knows it.", _PARTITION
)
OLDEST_OFFSET = _exporter(
    "kafka_topic_partition_oldest_offset",
    BROKER,
    "Log start offset of a partition, as its leader knows it.",
    _PARTITION,
)
BROKERS = _exporter("kafka_brokers", CONTROLLER, "Brokers that are not fenced.")
BROKER_INFO = _exporter("kafka_broker_info", CONTROLLER, "Always 1; the labels name a broker.", ("id", "address"))
TOPIC_PARTITIONS = _exporter("kafka_topic_partitions", CONTROLLER, "Partitions of a topic.", ("topic",))
PARTITION_LEADER = _exporter(
    "kafka_topic_partition_leader",
    CONTROLLER,
    "Broker id of a partition's leader; -1 while the partition has no leader.",
    _PARTITION,
)
PARTITION_REPLICAS = _exporter("kafka_topic_partition_replicas", CONTROLLER, "Replicas of a partition.", _PARTITION)
PARTITION_ISR = _exporter("kafka_topic_partition_in_sync_replica", CONTROLLER, "Replicas in sync.", _PARTITION)
PREFERRED = _exporter(
    "kafka_topic_partition_leader_is_preferred",
    CONTROLLER,
    "1 if the preferred (first) replica leads the partition, otherwise 0.",
    _PARTITION,
)
PARTITION_UNDER_REPLICATED = _exporter(
    "kafka_topic_partition_under_replicated_partition",
    CONTROLLER,
    "1 if a replica of the partition is not in sync, otherwise 0.",
    _PARTITION,
)
TOPIC_UNDER_REPLICATED = _ours(
    Kind.GAUGE,
    "topic_under_replicated_partitions",
    CONTROLLER,
    "Partitions of a topic that have a replica that is not in sync.",
    ("topic",),
)
TOPIC_OFFLINE = _ours(
    Kind.GAUGE, "topic_offline_partitions", CONTROLLER, "Partitions of a topic without a leader.", ("topic",)
)

# -- controllers -----------------------------------------------------------------------------------------------------

_CONTROLLER = "kafka.controller:type=KafkaController,name="
ACTIVE_CONTROLLER = _jmx(
    Kind.GAUGE,
    "kafka_controller_kafkacontroller_activecontrollercount",
    CONTROLLER,
    _CONTROLLER + "ActiveControllerCount",
    "1 on the active controller, 0 on the other controllers; the sum over all nodes must be 1.",
)
ACTIVE_BROKERS = _jmx(
    Kind.GAUGE,
    "kafka_controller_kafkacontroller_activebrokercount",
    CONTROLLER,
    _CONTROLLER + "ActiveBrokerCount",
    "Registered brokers that are not fenced.",
)
FENCED_BROKERS = _jmx(
    Kind.GAUGE,
    "kafka_controller_kafkacontroller_fencedbrokercount",
    CONTROLLER,
    _CONTROLLER + "FencedBrokerCount",
    "Registered brokers that are fenced.",
)
TOPIC_COUNT = _jmx(
    Kind.GAUGE,
    "kafka_controller_kafkacontroller_globaltopiccount",
    CONTROLLER,
    _CONTROLLER + "GlobalTopicCount",
    "Topics.",
)
GLOBAL_PARTITIONS = _jmx(
    Kind.GAUGE,
    "kafka_controller_kafkacontroller_globalpartitioncount",
    CONTROLLER,
    _CONTROLLER + "GlobalPartitionCount",
    "Partitions.",
)
OFFLINE_PARTITIONS = _jmx(
    Kind.GAUGE,
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    CONTROLLER,
    _CONTROLLER + "OfflinePartitionsCount",
    "Partitions without a leader.",
)
IMBALANCE = _jmx(
    Kind.GAUGE,
    "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
    CONTROLLER,
    _CONTROLLER + "PreferredReplicaImbalanceCount",
    "Partitions whose leader is not the preferred (first) replica.",
)
LAST_APPLIED = _jmx(
    Kind.GAUGE,
    "kafka_controller_kafkacontroller_lastappliedrecordoffset",
    CONTROLLER,
    _CONTROLLER + "LastAppliedRecordOffset",
    "Offset of the last metadata record that the controller has applied.",
)
LAST_COMMITTED = _jmx(
    Kind.GAUGE,
    "kafka_controller_kafkacontroller_lastcommittedrecordoffset",
    CONTROLLER,
    _CONTROLLER + "LastCommittedRecordOffset",
    "Offset of the last metadata record that the controller knows as committed.",
)
UNCLEAN_ELECTIONS = _jmx(
    Kind.COUNTER,
    "kafka_controller_controllerstats_uncleanleaderelections",
    CONTROLLER,
    "kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec",
    "Unclean elections: the elected leader may lack acknowledged records, because no in-sync or eligible replica "
    "worked. Only the active controller counts unclean elections.",
)
CLUSTER_UNDER_REPLICATED = _ours(
    Kind.GAUGE,
    "cluster_under_replicated_partitions",
    CONTROLLER,
    "Partitions of the cluster that have a replica that is not in sync.",
)
REASSIGNMENTS = _ours(
    Kind.GAUGE, "cluster_reassigning_partitions", CONTROLLER, "Partitions whose replicas a reassignment is changing."
)

_RAFT = "kafka.server:type=raft-metrics"
RAFT_LEADER = _jmx(
    Kind.GAUGE, "kafka_server_raft_metrics_current_leader", CONTROLLER, _RAFT, "Id of the quorum's leader; -1: unknown."
)
RAFT_EPOCH = _jmx(
    Kind.GAUGE, "kafka_server_raft_metrics_current_epoch", CONTROLLER, _RAFT, "Epoch (term) of the quorum."
)
RAFT_COMMITTED = _jmx(
    Kind.GAUGE,
    "kafka_server_raft_metrics_high_watermark",
    CONTROLLER,
    _RAFT,
    "Offset after the last committed metadata record.",
)
RAFT_END = _jmx(
    Kind.GAUGE,
    "kafka_server_raft_metrics_log_end_offset",
    CONTROLLER,
    _RAFT,
    "Offset after the last record of this controller's metadata log.",
)
RAFT_VOTERS = _jmx(Kind.GAUGE, "kafka_server_raft_metrics_number_of_voters", CONTROLLER, _RAFT, "Voters of the quorum.")
RAFT_STATE = _jmx(
    Kind.GAUGE,
    "kafka_server_raft_metrics_current_state_info",
    CONTROLLER,
    _RAFT,
    "Always 1; the label says whether this controller is leader, follower, candidate or observer.",
    ("state",),
)
VOTER_LAG_RECORDS = _ours(
    Kind.GAUGE,
    "quorum_replica_lag_records",
    CONTROLLER,
    "Metadata records that a controller lacks. Only the quorum's leader serves this metric.",
    ("controller", "kind"),
)
VOTER_LAG_SECONDS = _ours(
    Kind.GAUGE,
    "quorum_replica_lag_seconds",
    CONTROLLER,
    "Time since a controller last had the leader's whole log; +Inf if it has not had the whole log under this leader. "
    "Only the quorum's leader serves this metric.",
    ("controller", "kind"),
)
QUORUM_REQUESTS = _ours(
    Kind.GAUGE,
    "controller_queued_requests",
    CONTROLLER,
    "Requests that the controller has received and not decided yet.",
)

# -- coordinators ----------------------------------------------------------------------------------------------------

_GROUPS = "kafka.coordinator.group:type=GroupMetadataManager,name="
GROUPS = _jmx(
    Kind.GAUGE, "kafka_coordinator_group_groupmetadatamanager_numgroups", COORDINATOR, _GROUPS + "NumGroups", "Groups."
)
GROUPS_STABLE = _jmx(
    Kind.GAUGE,
    "kafka_coordinator_group_groupmetadatamanager_numgroupsstable",
    COORDINATOR,
    _GROUPS + "NumGroupsStable",
    "Groups whose members all have their partitions.",
)
GROUPS_EMPTY = _jmx(
    Kind.GAUGE,
    "kafka_coordinator_group_groupmetadatamanager_numgroupsempty",
    COORDINATOR,
    _GROUPS + "NumGroupsEmpty",
    "Groups without members.",
)
GROUPS_DEAD = _jmx(
    Kind.GAUGE,
    "kafka_coordinator_group_groupmetadatamanager_numgroupsdead",
    COORDINATOR,
    _GROUPS + "NumGroupsDead",
    "Groups that are being deleted.",
)
OFFSETS = _jmx(
    Kind.GAUGE,
    "kafka_coordinator_group_groupmetadatamanager_numoffsets",
    COORDINATOR,
    _GROUPS + "NumOffsets",
    "Pairs of a group and a partition with a committed offset.",
)
GROUPS_PREPARING = _jmx(
    Kind.GAUGE,
    "kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance",
    COORDINATOR,
    _GROUPS + "NumGroupsPreparingRebalance",
    "Groups in a rebalance that have no new assignment yet.",
)
GROUPS_COMPLETING = _jmx(
    Kind.GAUGE,
    "kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance",
    COORDINATOR,
    _GROUPS + "NumGroupsCompletingRebalance",
    "Groups in a rebalance whose members change to the new assignment.",
)
GROUP_MEMBERS = _exporter("kafka_consumergroup_members", COORDINATOR, "Members of a group.", ("consumergroup",))
GROUP_OFFSET = _exporter(
    "kafka_consumergroup_current_offset", COORDINATOR, "Committed offset of a group for a partition.", _GROUP_PARTITION
)
GROUP_LAG = _exporter(
    "kafka_consumergroup_lag",
    COORDINATOR,
    "Records of a partition between a group's committed offset and the high watermark.",
    _GROUP_PARTITION,
)
GROUP_OFFSET_SUM = _exporter(
    "kafka_consumergroup_current_offset_sum",
    COORDINATOR,
    "Sum of a group's committed offsets for the partitions of a topic.",
    ("consumergroup", "topic"),
)
GROUP_LAG_SUM = _exporter(
    "kafka_consumergroup_lag_sum",
    COORDINATOR,
    "Sum of a group's lags in the partitions of a topic whose lag the coordinator knows. The coordinator serves no "
    "row while it knows none of these lags.",
    ("consumergroup", "topic"),
)
GROUP_LAG_SECONDS = _ours(
    Kind.GAUGE,
    "group_lag_seconds",
    COORDINATOR,
    "Age of the first unread record of a group in a partition. For a lag that began before the coordinator's start, "
    "the value is a lower bound.",
    _GROUP_PARTITION,
)
GROUP_LAG_SECONDS_MAX = _ours(
    Kind.GAUGE,
    "group_lag_seconds_max",
    COORDINATOR,
    "The largest headrace_group_lag_seconds of a group. For some seconds after the coordinator has taken over a "
    "group, it knows no lag of the group, and serves no row.",
    ("consumergroup",),
)
GROUP_STATUS = _ours(
    Kind.GAUGE,
    "group_status",
    COORDINATOR,
    "One row for each verdict of Burrow's rules (OK, WARN, STALL, STOP, REWIND): 1 for the present verdict of the "
    "group's worst partition, 0 for the others. `headrace lag` and `headrace doctor` show the same verdict.",
    ("consumergroup", "status"),
)
GROUP_RECORDS_LOST = _ours(
    Kind.GAUGE,
    "group_records_lost",
    COORDINATOR,
    "Records that were deleted before the group had read them.",
    ("consumergroup",),
)
SHARDS = _ours(
    Kind.GAUGE, "coordinator_shards", COORDINATOR, "The coordinator's shards, by their state.", ("topic", "state")
)
TRANSACTIONS = _ours(
    Kind.GAUGE, "transactions", COORDINATOR, "Transactional ids by the state of their transaction.", ("state",)
)
TRANSACTIONS_PREPARED = _ours(
    Kind.GAUGE,
    "transactions_prepared",
    COORDINATOR,
    "Prepared transactions (two-phase commit).",
)
TRANSACTION_AGE = _ours(
    Kind.GAUGE,
    "transaction_oldest_seconds",
    COORDINATOR,
    "Age of the oldest open or ending transaction; 0 if there is none.",
)

# -- Kafka's clients and registries ----------------------------------------------------------------------------------

CONNECTIONS = _jmx(
    Kind.GAUGE,
    "kafka_server_socket_server_metrics_connection_count",
    BROKER,
    "kafka.server:type=socket-server-metrics",
    "Open connections of Kafka clients.",
)
FAILED_AUTHENTICATIONS = _jmx(
    Kind.COUNTER,
    "kafka_server_socket_server_metrics_failed_authentication",
    BROKER,
    "kafka.server:type=socket-server-metrics",
    "Connections of Kafka clients whose TLS handshake or login failed.",
)
KAFKA_IN = _ours(Kind.COUNTER, "kafka_bytes_in", BROKER, "Bytes of requests from Kafka clients.")
KAFKA_OUT = _ours(Kind.COUNTER, "kafka_bytes_out", BROKER, "Bytes of answers to Kafka clients.")
KAFKA_QUEUED = _ours(Kind.GAUGE, "kafka_queued_bytes", BROKER, "Bytes of Kafka clients' requests in memory.")
KAFKA_UNREAD = _ours(
    Kind.GAUGE, "kafka_unread_answer_bytes", BROKER, "Bytes of responses that Kafka clients have not read yet."
)

REGISTRY_WRITER = _ours(
    Kind.GAUGE, "registry_is_writer", REGISTRY, "1 on the replica that is the writer, 0 on the other replicas."
)
REGISTRY_SCHEMAS = _ours(
    Kind.GAUGE, "registry_schemas", REGISTRY, "Schemas in the registry; a schema of several subjects counts once."
)
REGISTRY_SUBJECTS = _ours(Kind.GAUGE, "registry_subjects", REGISTRY, "Subjects that are not deleted.")
