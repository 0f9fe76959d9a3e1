"""The broker keys that change at run time: the effective value, and which parts are notified."""

from __future__ import annotations

import dataclasses
import math

import pytest

from headrace_broker.settings import BrokerSettings, LiveSettings
from headrace_core.config import key_of
from headrace_core.config.server_keys import SERVER
from headrace_core.metadata import EMPTY_IMAGE, ConfigRecord, MetadataDelta, MetadataImage
from headrace_core.metadata.records import ConfigResourceType
from headrace_core.telemetry import BrokerSettingsChanged, Emitter, Event

BROKER = int(ConfigResourceType.BROKER)


def image_with(*entries: tuple[str, str, str]) -> MetadataImage:
    """Broker settings from (broker's name, key, text)."""
    records = [ConfigRecord(BROKER, *entry) for entry in entries]
    return EMPTY_IMAGE.apply(records, len(records), 1)


def delta_of(*names: str) -> MetadataDelta:
    return MetadataDelta(0, 1, configs=frozenset((ConfigResourceType.BROKER, name) for name in names))


class Recorder:
    """A subscriber that records its notifications."""

    def __init__(self) -> None:
        self.changes: list[tuple[BrokerSettings, BrokerSettings]] = []

    def __call__(self, old: BrokerSettings, new: BrokerSettings) -> None:
        self.changes.append((old, new))


def test_every_field_has_a_key_and_its_default() -> None:
    settings = BrokerSettings.of({})
    for field in dataclasses.fields(BrokerSettings):
        default = SERVER.keys[key_of(field)].default
        assert getattr(settings, field.name) == (tuple(default) if isinstance(default, list) else default)
    assert math.isinf(settings.cleaner_io_bytes_per_second)


def test_this_broker_goes_before_all_brokers_before_the_file() -> None:
    static = {"log.cleaner.threads": 2, "log.cleaner.backoff.ms": 7, "log.open.files.max": 100}
    image = image_with(
        ("", "log.cleaner.threads", "3"), ("1", "log.cleaner.threads", "4"), ("", "log.open.files.max", "50")
    )
    settings = BrokerSettings.of(static, image, 1)
    assert (settings.cleaner_threads, settings.open_files_max, settings.cleaner_backoff_ms) == (4, 50, 7)
    assert BrokerSettings.of(static, image, 2).cleaner_threads == 3
    assert BrokerSettings.of(static).cleaner_threads == 2


def test_a_subscriber_is_notified_once_of_each_change_and_no_more_after_leaving() -> None:
    seen: list[Event] = []
    events = Emitter()
    events.subscribe(seen.append)
    live, recorder = LiveSettings({}, events), Recorder()
    leave = live.subscribe(recorder)
    image = image_with(("", "log.scrub.bytes.per.second", "0"))
    live.apply(image, 1, delta_of(""))
    live.apply(image, 1, delta_of(""))
    ((old, new),) = recorder.changes
    assert (old.scrub_bytes_per_second, new.scrub_bytes_per_second) == (4_194_304, 0)
    assert live.current is new
    assert seen == [BrokerSettingsChanged(changed={"log.scrub.bytes.per.second": "4194304 -> 0"})]
    leave()
    live.apply(EMPTY_IMAGE, 1, delta_of(""))
    assert len(recorder.changes) == 1
    assert live.current == old


@pytest.mark.parametrize(("name", "concerns"), [("", True), ("1", True), ("2", False)])
def test_only_changes_of_this_broker_or_of_all_are_looked_at(name: str, concerns: bool) -> None:
    live = LiveSettings({}, Emitter())
    live.apply(image_with((name, "log.cleaner.threads", "5")), 1, delta_of(name))
    assert (live.current.cleaner_threads == 5) is concerns


def test_a_value_that_is_not_legal_any_more_counts_as_not_set(caplog: pytest.LogCaptureFixture) -> None:
    image = image_with(
        ("", "log.cleaner.threads", "lots"), ("1", "no.such.key", "1"), ("1", "log.cleaner.enable", "false")
    )
    settings = BrokerSettings.of({"log.cleaner.threads": 2}, image, 1)
    assert settings.cleaner_threads == 2
    assert settings.cleaner_enable  # cannot be changed at run time, not even by the metadata
    assert "log.cleaner.threads='lots'" in caplog.text
    assert "no.such.key" in caplog.text


def test_a_subscriber_that_fails_keeps_nobody_from_the_change(caplog: pytest.LogCaptureFixture) -> None:
    def broken(old: BrokerSettings, new: BrokerSettings) -> None:
        raise ValueError("broken on purpose")

    live, recorder = LiveSettings({}, Emitter()), Recorder()
    live.subscribe(broken)
    live.subscribe(recorder)
    live.apply(image_with(("1", "log.cleaner.threads", "5")), 1)
    assert len(recorder.changes) == 1
    assert "broken on purpose" in caplog.text
