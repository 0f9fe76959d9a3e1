"""A rolling restart of a local cluster, node by node.

The module ``rules`` decides which node is next, what prevents its restart, and whether the cluster is healthy enough
to stop another node. The module ``restarting`` observes the cluster, waits and restarts nodes.
"""
