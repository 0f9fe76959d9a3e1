"""The options of the Spark source, with the names, meanings, defaults and refusals of the Kafka source.

Spark passes option names in lower case, so this module compares names in lower case; messages use the documented
spelling. This module is pure: it turns options into a frozen ``SourceOptions``, or raises InvalidConfigError.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace_core.errors import InvalidConfigError
from headrace_core.types import TopicPartition, check_topic_name

from .delegation import take_mechanism
from .offsets import EARLIEST, LATEST, parse_offsets, parse_partitions, parse_timestamps

STRATEGIES = ("subscribe", "subscribePattern", "assign")
KNOWN = (
    *STRATEGIES,
    "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets",
    "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets",
    "startingOffsetsByTimestampStrategy", "failOnDataLoss",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "minPartitions", "maxRecordsPerPartition", "includeHeaders", "groupIdPrefix",
    "isolation.level", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
)  # fmt: skip
CLIENT_PREFIXES = ("headrace.", "kafka.")
#: The client key that is also accepted as a source option without a prefix.
ISOLATION = "isolation.level"

#: Client keys that the user cannot set because the source sets them, each with the reason.
REFUSED_CLIENT_KEYS = {
    "auto.offset.reset": "set the source option startingOffsets to earliest or latest instead: Spark "
    "stores the progress, and a query that starts again continues from its checkpoint",
    "key.deserializer": "keys are always bytes; use DataFrame functions to decode them",
    "value.deserializer": "values are always bytes; use DataFrame functions to decode them",
    "enable.auto.commit": "Spark stores the progress in the query's checkpoint",
    "interceptor.classes": "an interceptor could change what is read",
}


#: The error message if Spark passes no options of the user, with the cure.
NO_OPTIONS = (
    "no option is given: headrace.bootstrap.servers and a topic are required. If this is a table: Spark keeps no "
    "OPTIONS of CREATE TABLE ... USING headrace. Use SELECT ... FROM t WITH ('headrace.bootstrap.servers' = '...', "
    "subscribe = '...'), INSERT INTO t WITH ('headrace.bootstrap.servers' = '...', topic = '...') ..., or CREATE "
    "TEMPORARY VIEW v USING headrace OPTIONS (...)"
)


class Limit(enum.Enum):
    """The ways to specify a starting or ending position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMESTAMPS = "timestamps"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class OffsetLimit:
    """A starting or ending position. ``values``: offsets (-2 earliest, -1 latest) or milliseconds, by partition."""

    kind: Limit
    values: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Checked options of a query."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()
    starting: OffsetLimit
    ending: OffsetLimit
    latest_when_no_match: bool
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    include_headers: bool
    poll_timeout_ms: int
    offset_attempts: int
    offset_retry_interval_ms: int
    #: The group to which a stream commits its progress; None without a group, or if the source generates a group name
    #: with the prefix.
    group_id: str | None
    group_id_prefix: str | None
    client: Mapping[str, str]
    #: The mechanism with which tasks use a delegation token; None: tasks log in as the driver does.
    token_mechanism: str | None = None
    notes: tuple[str, ...] = ()


def parse_options(given: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Check the options ``given``. ``streaming`` None: the kind of query is not known yet, so only the rules for both
    kinds are checked.

    Raises InvalidConfigError.
    """
    options = lower_case(given)
    notes: list[str] = []
    if streaming:
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if name.lower() in options:
                raise InvalidConfigError(f"{name}: a streaming query does not end; the option is for batch queries")
    topics, pattern, assigned = _strategy(options)
    client = client_settings(options, REFUSED_CLIENT_KEYS, where="Spark source")
    if ISOLATION in options:
        client.setdefault(ISOLATION, options[ISOLATION])
    token_mechanism = take_mechanism(client, where="Spark source")
    group_id, prefix = _group(options, client, notes, streaming=streaming)
    starting = _limit(options, "starting", Limit.LATEST if streaming is not False else Limit.EARLIEST)
    ending = _limit(options, "ending", Limit.LATEST)
    if streaming is False:
        _check_batch(starting, ending)
        notes += [
            f"{name} is ignored in batch queries"
            for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
            if name.lower() in options
        ]
    smallest = _positive(options, "minOffsetsPerTrigger")
    largest = _positive(options, "maxOffsetsPerTrigger")
    if smallest is not None and largest is not None and smallest > largest:
        raise InvalidConfigError(
            f"minOffsetsPerTrigger={smallest} is higher than maxOffsetsPerTrigger={largest}; lower the minimum"
        )
    no_match = options.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if no_match not in ("error", "latest"):
        raise InvalidConfigError(f"startingOffsetsByTimestampStrategy={no_match!r}: must be error or latest")
    return SourceOptions(
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=starting,
        ending=ending,
        latest_when_no_match=no_match == "latest",
        fail_on_data_loss=_boolean(options, "failOnDataLoss", True),
        max_offsets_per_trigger=largest,
        min_offsets_per_trigger=smallest,
        max_trigger_delay_ms=parse_duration_ms("maxTriggerDelay", options.get("maxtriggerdelay", "15m")),
        min_partitions=_positive(options, "minPartitions"),
        max_records_per_partition=_positive(options, "maxRecordsPerPartition"),
        include_headers=_boolean(options, "includeHeaders", False),
        poll_timeout_ms=_positive(options, "kafkaConsumer.pollTimeoutMs") or 120_000,
        offset_attempts=_positive(options, "fetchOffset.numRetries") or 3,
        offset_retry_interval_ms=_positive(options, "fetchOffset.retryIntervalMs") or 1_000,
        group_id=group_id,
        group_id_prefix=prefix,
        client=client,
        token_mechanism=token_mechanism,
        notes=(*notes, *unknown_notes(options, KNOWN, where="headrace source")),
    )


def lower_case(given: Mapping[str, str]) -> dict[str, str]:
    """The options with names in lower case. Raises InvalidConfigError if Spark passes no options."""
    if not given:
        raise InvalidConfigError(NO_OPTIONS)
    return {str(name).lower(): str(value) for name, value in given.items()}


def _strategy(options: Mapping[str, str]) -> tuple[tuple[str, ...], str | None, tuple[TopicPartition, ...]]:
    given = [name for name in STRATEGIES if name.lower() in options]
    if len(given) != 1:
        some = "none" if not given else " and ".join(given)
        raise InvalidConfigError(f"exactly one of the options {', '.join(STRATEGIES)} must be given; got {some}")
    value = options[given[0].lower()]
    if given[0] == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
        if not topics:
            raise InvalidConfigError(f"subscribe={value!r}: must name at least one topic")
        return tuple(map(check_topic_name, topics)), None, ()
    if given[0] == "subscribePattern":
        pattern = value.strip()
        if not pattern:
            raise InvalidConfigError(f"subscribePattern={value!r}: the pattern is empty")
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidConfigError(f"subscribePattern={value!r}: not a regular expression: {error}") from None
        return (), pattern, ()
    partitions = tuple(parse_partitions("assign", value))
    if not partitions:
        raise InvalidConfigError(f"assign={value!r}: must name at least one partition")
    return (), None, partitions


def _group(
    options: Mapping[str, str], client: dict[str, str], notes: list[str], *, streaming: bool | None
) -> tuple[str | None, str | None]:
    """The consumer group, and the prefix for the name of a generated group. Removes ``group.id`` from the settings
    ``client``, because tasks do not join a group."""
    group_id, prefix = client.pop("group.id", None), options.get("groupidprefix")
    for name, value in (("kafka.group.id", group_id), ("groupIdPrefix", prefix)):
        if value is None:
            continue
        if not value.strip():
            raise InvalidConfigError(f"{name}={value!r}: must be the name of a consumer group")
        if streaming is False:
            notes.append(f"{name} is ignored in batch queries: they have no progress to commit")
    if group_id is not None and prefix is not None:
        notes.append("groupIdPrefix is ignored because kafka.group.id is set")
        prefix = None
    return group_id, prefix


def client_settings(options: Mapping[str, str], refused: Mapping[str, str], *, where: str) -> dict[str, str]:
    """The client configuration from the options ``kafka.*`` and ``headrace.*``; ``headrace.*`` has precedence.

    Raises InvalidConfigError for a key of ``refused`` (key -> reason), and when ``bootstrap.servers`` is missing.
    """
    client: dict[str, str] = {}
    for prefix in reversed(CLIENT_PREFIXES):
        client.update({name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)})
    for key, why in refused.items():
        if key in client:
            raise InvalidConfigError(f"the client option {key!r} is not supported by the {where}: {why}")
    if not client.get("bootstrap.servers", "").strip():
        raise InvalidConfigError(
            "the option headrace.bootstrap.servers (or kafka.bootstrap.servers) is missing; set it, for instance "
            "to 127.0.0.1:9095"
        )
    return client


def _limit(options: Mapping[str, str], end: str, default: Limit) -> OffsetLimit:
    """The starting or ending position, from ``<end>Timestamp``, ``<end>OffsetsByTimestamp`` or ``<end>Offsets``."""
    name = f"{end}Timestamp"
    if name.lower() in options:
        text = options[name.lower()].strip()
        try:
            time_ms = int(text)
        except ValueError:
            raise InvalidConfigError(f"{name}={text!r}: must be one whole number, milliseconds since 1970") from None
        _refuse_before_1970(name, time_ms, end)
        return OffsetLimit(Limit.TIMESTAMP, timestamp_ms=time_ms)
    name = f"{end}OffsetsByTimestamp"
    if name.lower() in options:
        times = parse_timestamps(name, options[name.lower()].strip())
        for time_ms in times.values():
            _refuse_before_1970(name, time_ms, end)
        return OffsetLimit(Limit.TIMESTAMPS, times)
    name = f"{end}Offsets"
    text = options.get(name.lower(), default.value).strip()
    if text.lower() in ("earliest", "latest"):
        return OffsetLimit(Limit(text.lower()))
    return OffsetLimit(Limit.OFFSETS, parse_offsets(name, text))


def _refuse_before_1970(option: str, time_ms: int, end: str) -> None:
    """Refuse negative times, because -1 and -2 mean the latest and the earliest offset in a request for offsets."""
    if time_ms < 0:
        raise InvalidConfigError(
            f"{option}: the time {time_ms} must be 0 or more, milliseconds since 1970; for the first or the last "
            f"offset set {end}Offsets to earliest or latest"
        )


def _check_batch(starting: OffsetLimit, ending: OffsetLimit) -> None:
    if starting.kind is Limit.LATEST:
        raise InvalidConfigError("startingOffsets=latest: a batch query cannot start at the end of the log")
    if ending.kind is Limit.EARLIEST:
        raise InvalidConfigError("endingOffsets=earliest: a batch query cannot end at the start of the log")
    if starting.kind is Limit.OFFSETS:
        _refuse("startingOffsets", starting.values, LATEST, "a batch query cannot start at the latest offset")
    if ending.kind is Limit.OFFSETS:
        _refuse("endingOffsets", ending.values, EARLIEST, "a batch query cannot end at the earliest offset")
    if starting.kind is Limit.TIMESTAMP or ending.kind is Limit.TIMESTAMP:
        _check_times(starting, ending)
    if starting.kind is ending.kind and starting.kind in (Limit.OFFSETS, Limit.TIMESTAMPS):
        if starting.values.keys() != ending.values.keys():
            raise InvalidConfigError(
                "the options for the start and for the end of a batch query must name the same partitions"
            )
        for partition, start in starting.values.items():
            end = ending.values[partition]
            if 0 <= end < start:
                raise InvalidConfigError(f"partition {partition}: the given start {start} is after the given end {end}")


def _check_times(starting: OffsetLimit, ending: OffsetLimit) -> None:
    """Refuse an end that is earlier than the start, if both are times and one of them holds for all partitions."""
    starts, ends = (
        [each.timestamp_ms] if each.kind is Limit.TIMESTAMP else each.values.values() if each.kind is Limit.TIMESTAMPS
        else []
        for each in (starting, ending)
    )  # fmt: skip
    if starts and ends and min(ends) < max(starts):
        raise InvalidConfigError(
            f"the starting time {max(starts)} is after the ending time {min(ends)} (milliseconds since 1970); swap them"
        )


def _refuse(option: str, values: Mapping[TopicPartition, int], value: int, why: str) -> None:
    for partition, offset in values.items():
        if offset == value:
            raise InvalidConfigError(f"{option}: {partition} has the offset {value}, and {why}")


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    try:
        value = int(text.strip())
    except ValueError:
        raise InvalidConfigError(f"{name}={text!r}: must be a whole number") from None
    if value <= 0:
        raise InvalidConfigError(f"{name}={text!r}: must be 1 or more")
    return value


def _boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidConfigError(f"{name}={text!r}: must be true or false")
    return text == "true"


_UNITS_MS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(name: str, text: str) -> int:
    """Milliseconds of a Spark time string such as ``100ms``, ``50s``, ``15m``, ``3h`` or ``5d``; a bare number is in
    ms."""
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if match is None or (match[2] or "ms") not in _UNITS_MS:
        raise InvalidConfigError(f"{name}={text!r}: must be a duration such as 500ms, 30s, 15m or 2h")
    return int(int(match[1]) * _UNITS_MS[match[2] or "ms"])


def unknown_notes(options: Mapping[str, str], known_names: Iterable[str], *, where: str) -> list[str]:
    """Notes for the user about unknown options. Spark sources ignore unknown options; this source also reports them."""
    known = {name.lower(): name for name in known_names}
    notes = []
    for name in options:
        if name in known or name.startswith(CLIENT_PREFIXES):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
        hint = f"; did you mean {known[near[0]]}?" if near else ""
        notes.append(f"option {name!r} is not known to the {where} and is ignored{hint}")
    return notes
