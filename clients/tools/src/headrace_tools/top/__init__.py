"""`headrace top`: the throughput of a cluster, by broker, topic and group.

frames.py     two samples make a frame: rates, lags, leaders, partitions in trouble; pure
sampling.py   the requests, through Admin
"""
