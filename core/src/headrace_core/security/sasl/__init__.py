"""SASL (RFC 4422): the mechanisms as state machines, bytes in and bytes out, for servers and for clients.

``mechanisms.py`` makes the server's side of a listener from its configuration, ``client.py`` the client's side.
"""
