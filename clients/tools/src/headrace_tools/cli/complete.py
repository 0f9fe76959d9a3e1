"""Shell completion of topics, partitions, groups, transactional ids and brokers. The completions come from the cluster
whose address the command line gives. If the cluster does not answer within a second, there are no completions and no
message."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable
from typing import Any

import typer

_TIMEOUT_S = 1.0


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, lambda client: (each.name for each in client.describe_topics(timeout=_TIMEOUT_S)))


def partitions(ctx: typer.Context, incomplete: str) -> list[str]:
    """``orders-0``"""
    return _names(
        ctx,
        incomplete,
        lambda client: (
            f"{topic.name}-{each.partition}"
            for topic in client.describe_topics(timeout=_TIMEOUT_S)
            for each in topic.partitions
        ),
    )


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, lambda client: (each.group_id for each in client.list_groups(timeout=_TIMEOUT_S)))


def transactional_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    return _names(
        ctx,
        incomplete,
        lambda client: (
            each.transactional_id for each in client.list_transactions(prefix=incomplete, timeout=_TIMEOUT_S)
        ),
    )


def brokers(ctx: typer.Context, incomplete: str) -> list[str]:
    def ids(client: Any) -> Iterable[str]:
        found = client.describe_cluster(include_fenced_brokers=True, timeout=_TIMEOUT_S)
        return (str(each.broker_id) for each in found.brokers)

    return _names(ctx, incomplete, ids)


def _names(context: typer.Context, incomplete: str, ask: Callable[[Any], Iterable[str]]) -> list[str]:
    from headrace import Admin
    from headrace_core.errors import HeadraceError

    from .client import config_for_completion

    names: list[str] = []
    with (
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(HeadraceError, OSError),
        Admin(config_for_completion(context, _TIMEOUT_S)) as client,
    ):
        names = sorted(name for name in ask(client) if name.startswith(incomplete))
    return names
