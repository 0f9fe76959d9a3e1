"""The topics of the pipelines that replay logs: their ticks, and the second consumer of the lines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from headrace import Admin, Producer
from headrace_pipelines.access import Access
from headrace_pipelines.clickstream import replay
from headrace_pipelines.clickstream import schema as clicks
from headrace_pipelines.clickstream.job import TOPICS, Job
from headrace_pipelines.dead_letters import PREFIX, dead_letter_topic
from headrace_pipelines.logs import schema
from headrace_pipelines.logs.hosts import HostLine
from headrace_pipelines.logs.job import Arrived, create_topics, send_tick
from headrace_pipelines.places import Places
from headrace_pipelines.sites import Site
from tests.worlds.waiting import until


def deleted(access: Access, *names: str) -> None:
    with Admin(access.admin()) as admin:
        admin.delete_topics([*names])


def test_a_log_of_today_ends_with_a_tick(headrace: Any, tmp_path: Path) -> None:
    """The tick is 30 days after the last line. By default brokers refuse a record of the future."""
    access, now_ms = Access(headrace.bootstrap_servers), int(time.time() * 1000)
    create_topics(access)
    send_tick(access, [HostLine("web-01", b"line", now_ms)])
    deleted(access, *schema.TOPICS, dead_letter_topic(schema.LINES))
    job = Job(
        MagicMock(), Site("clickstream", access.servers, tmp_path), Places(tmp_path), MagicMock(), MagicMock(), rows=1
    )
    job.create_topics()
    replay.send_tick(access, [replay.Line(b"0/1", b"", b"line", now_ms)])
    deleted(access, *TOPICS, clicks.DEAD_LETTERS)


def test_a_replayed_line_is_no_further_line_of_its_host(headrace: Any) -> None:
    access = Access(headrace.bootstrap_servers)
    create_topics(access)
    arrived = Arrived(access)
    arrived.start()
    try:
        path = ("path", b"/web-01/access.log")
        with Producer(access.producer()) as producer:
            producer.send(schema.LINES, b"bad line", headers=[path], partition=0)
            producer.send(schema.LINES, b"bad line", headers=[path, (PREFIX + "tries", b"1")], partition=0)
            producer.send(schema.LINES, None, b"tick", partition=0)
            producer.send(schema.LINES, b"next", headers=[path], partition=0)
        until(lambda: arrived.count >= 2)
        assert arrived.by_path == {"/web-01/access.log": [b"bad line", b"next"]}
    finally:
        arrived.stop()
    arrived.result()
    deleted(access, *schema.TOPICS, dead_letter_topic(schema.LINES))
