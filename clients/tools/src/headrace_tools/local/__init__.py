"""Clusters on this machine: real processes, started by one line, for development and for tests.

``LocalCluster`` is the face (also exported as ``headrace.LocalCluster``); ``directory.ClusterDirectory`` is what it and
``headrace up`` share. Nothing here imports grpc.
"""

from .cluster import LocalCluster
from .directory import ClusterDirectory, Started, Topology
from .state import ClusterState, Node

__all__ = ["ClusterDirectory", "ClusterState", "LocalCluster", "Node", "Started", "Topology"]
