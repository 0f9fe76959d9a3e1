"""The tests, as one package: a module imports another by its whole name, `tests.worlds.raft_world`."""
