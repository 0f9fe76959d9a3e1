"""The tests are one package. A module imports another module by its full name, `tests.worlds.raft_world`.

A test may not depend on the speed of the machine, nor on the tests before it in the same process. A test that needs

    a condition that comes true later        uses ``until`` or ``until_async`` (worlds/waiting.py), and waits for
                                             exactly what it asserts
    an upper bound on a time                 uses ``check_in_time`` or ``check_spent`` (worlds/waiting.py), which only
                                             `make verify` enforces
    a time limit of the product that passes  uses ``LoopClock`` (worlds/waiting.py) or ``ManualClock``, not a
                                             limit of half a second
    an empty log                             uses ``logged`` (worlds/this_process.py): a client of an earlier test may
                                             log
    a port that refuses connections          binds a socket that does not listen, and keeps it open
    the port of a server that restarts       uses ``free_port`` (worlds/this_process.py)
    the files of a running cluster           uses ``contents_of`` (worlds/security.py): nodes replace files
"""
