"""Clusters of real processes on this machine, started with one line of code, for development and tests.

``LocalCluster`` is the public class (also ``headrace.LocalCluster``). LocalCluster and the command ``headrace up`` both
use ``directory.ClusterDirectory``. The package imports its names at their first use, and none of its imports loads
grpc.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .cluster import LocalCluster
    from .directory import ClusterDirectory, Started, Topology
    from .state import ClusterState, Node

__all__ = ["ClusterDirectory", "ClusterState", "LocalCluster", "Node", "Started", "Topology"]

_HOMES = {"LocalCluster": "cluster", "ClusterState": "state", "Node": "state"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'directory')}"), name)
