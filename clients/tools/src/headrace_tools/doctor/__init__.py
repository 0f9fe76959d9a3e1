"""The rules behind `headrace doctor`: faults of a cluster and their cures.

facts.py       observations: frozen values
diagnosis.py   findings from them: one function per rule, pure
gathering.py   requests: Admin, sockets, the files of a local cluster
probing.py     one address: its name, a connection, TLS, the health check
logins.py      one address: the login (SASL), and why it fails
"""
