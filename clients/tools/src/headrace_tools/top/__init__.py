"""`headrace top`: what flows through a cluster, and who carries it.

frames.py     two samples make a frame: rates, lags, leaders, partitions in trouble; pure
sampling.py   the questions, through Admin
"""
