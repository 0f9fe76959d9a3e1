"""A child after a fork: gRPC's state is the parent's, and its threads are gone."""

from __future__ import annotations


def revive_grpc() -> None:
    """Placeholder until measured."""
