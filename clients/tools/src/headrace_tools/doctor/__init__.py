"""`headrace doctor`: what is wrong with a cluster, and what cures it.

facts.py       what was seen: frozen values
diagnosis.py   what follows from them: one rule a function, pure
gathering.py   the questions: Admin, sockets, the files of a local cluster
probing.py     one address, tried: its name, a connection, the health check
"""
