"""A rolling restart of a local cluster, node by node.

``rules`` decides from facts: the next node, obstacles, and whether the cluster is whole. ``restarting`` looks, waits
and restarts.
"""
