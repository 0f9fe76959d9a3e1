"""Transactions: which transactions are open and for how long, which readers wait for them, and which transactions
hang."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from headrace import TopicPartition
from headrace.transaction_models import UNFINISHED_STATES
from headrace_core.errors import HeadraceError
from headrace_tools.doctor.facts import NotAsked

from ..cluster import REQUEST_S
from ..console import Console, Paged, now_ms, required, text_of
from ..watching import Diagnosis

WAITS_MAX = 500  #: Maximum number of partitions whose offsets the page of a transaction shows.


async def transactions(console: Console, request: web.Request) -> web.StreamResponse:
    wanted, with_all = text_of(request, "q")[:4_096], text_of(request, "all") == "1"
    diagnosis = await console.watching.diagnosis.viewed(1.0)
    listed = await console.cluster.admin.list_transactions(None if with_all else UNFINISHED_STATES, timeout=REQUEST_S)
    rows = [each for each in listed if wanted.lower() in each.transactional_id.lower()]
    rows.sort(key=lambda each: (each.started_at_ms is None, each.started_at_ms or 0, each.transactional_id))
    return console.page(
        request,
        "transactions.html",
        section="transactions",
        q=wanted,
        with_all=with_all,
        paged=Paged(request, rows),
        unfinished=UNFINISHED_STATES,
        hanging=None if diagnosis is None else diagnosis.value.facts.hanging,
        gap=None if diagnosis is None else _gap(diagnosis.value),
        hanging_age_s=None if diagnosis is None else diagnosis.age_s,
        now=now_ms(),
    )


def _gap(diagnosis: Diagnosis) -> NotAsked | None:
    """The reason why the doctor could not look for hanging transactions in every partition; None if the doctor
    could."""
    return next((each for each in diagnosis.facts.not_asked if each.what.startswith("hanging transactions")), None)


async def transaction(console: Console, request: web.Request) -> web.StreamResponse:
    transactional_id = required(request, "id", "transactional id")
    described = (await console.cluster.admin.describe_transactions([transactional_id], timeout=REQUEST_S))[0]
    users = [each for each in described.partitions if not each.topic.startswith("__")]
    return console.page(
        request,
        "transaction.html",
        section="transactions",
        transaction=described,
        is_open=described.state in ("ongoing", "prepared"),
        waits=await _waits(console, users[:WAITS_MAX]),
        waiting_partitions=len(users),
        now=now_ms(),
    )


async def _waits(console: Console, partitions: list[TopicPartition]) -> list[dict[str, Any]]:
    """For each partition of the transaction: the offset at which readers with read_committed stop, and the number of
    records from that offset on."""
    if not partitions:
        return []
    wanted = dict.fromkeys(partitions, "latest")
    admin = console.cluster.admin
    try:
        stable, ends = await asyncio.gather(
            admin.list_offsets(wanted, isolation_level="read_committed", timeout=REQUEST_S),  # type: ignore[arg-type]
            admin.list_offsets(wanted, timeout=REQUEST_S),  # type: ignore[arg-type]
        )
    except HeadraceError as error:
        return [{"where": tp, "error": error} for tp in wanted]
    return [
        {
            "where": tp,
            "error": None,
            "stable": stable[tp].offset,
            "end": ends[tp].offset,
            "waiting": ends[tp].offset - stable[tp].offset,
        }
        for tp in wanted
    ]
