"""The keywords of the clients for type checkers, which then reject a misspelled ``Producer(bootstrap_server=...)``.

``settings.py`` declares the keys; a test compares the two files. A value of None means the default of the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict


class CommonSettings(TypedDict, total=False):
    """Keywords of every client."""

    bootstrap_servers: str | Sequence[str] | None
    client_id: str | None
    client_rack: str | None
    client_dns_lookup: str | None
    bootstrap_timeout_ms: int | None
    request_timeout_ms: int | None
    default_api_timeout_ms: int | None
    retry_backoff_ms: int | None
    retry_backoff_max_ms: int | None
    reconnect_backoff_ms: int | None
    reconnect_backoff_max_ms: int | None
    connections_max_idle_ms: int | None
    metadata_max_age_ms: int | None
    security_protocol: str | None
    sasl_mechanism: str | None
    allow_auto_create_topics: bool | None
    metrics_sample_window_ms: int | None
    metrics_num_samples: int | None
    metrics_recording_level: str | None
    metric_reporters: str | Sequence[str] | None
    auto_include_jmx_reporter: bool | None
    enable_metrics_push: bool | None
    metadata_recovery_strategy: str | None
    metadata_recovery_rebootstrap_trigger_ms: int | None
    receive_buffer_bytes: int | None
    send_buffer_bytes: int | None
    socket_connection_setup_timeout_ms: int | None
    socket_connection_setup_timeout_max_ms: int | None
    config_providers: str | Sequence[str] | None
    security_providers: str | None


class ProducerSettings(CommonSettings, total=False):
    """Keywords of Producer and AsyncProducer."""

    acks: str | int | None
    linger_ms: float | None
    batch_size: int | None
    buffer_memory: int | None
    max_block_ms: int | None
    max_request_size: int | None
    max_in_flight_requests_per_connection: int | None
    delivery_timeout_ms: int | None
    retries: int | None
    compression_type: str | None
    compression_gzip_level: int | None
    compression_lz4_level: int | None
    compression_zstd_level: int | None
    enable_idempotence: bool | None
    transactional_id: str | None
    transaction_timeout_ms: int | None
    key_serializer: Any
    value_serializer: Any
    partitioner_class: Any
    partitioner_ignore_keys: bool | None
    partitioner_adaptive_partitioning_enable: bool | None
    partitioner_availability_timeout_ms: int | None
    interceptor_classes: str | Sequence[str] | None
    transaction_two_phase_commit_enable: bool | None
    metadata_max_idle_ms: int | None


class ConsumerSettings(CommonSettings, total=False):
    """Keywords of Consumer, AsyncConsumer and RangeReader."""

    group_id: str | None
    group_instance_id: str | None
    group_protocol: str | None
    group_remote_assignor: str | None
    partition_assignment_strategy: str | Sequence[str] | None
    auto_offset_reset: str | None
    enable_auto_commit: bool | None
    auto_commit_interval_ms: int | None
    isolation_level: str | None
    max_poll_interval_ms: int | None
    max_poll_records: int | None
    session_timeout_ms: int | None
    heartbeat_interval_ms: int | None
    fetch_min_bytes: int | None
    fetch_max_wait_ms: int | None
    fetch_max_bytes: int | None
    max_partition_fetch_bytes: int | None
    fetch_queue_max_bytes: int | None
    check_crcs: bool | None
    key_deserializer: Any
    value_deserializer: Any
    exclude_internal_topics: bool | None
    interceptor_classes: str | Sequence[str] | None


class AdminSettings(CommonSettings, total=False):
    """Keywords of Admin and AsyncAdmin."""

    bootstrap_controllers: str | Sequence[str] | None
    retries: int | None
