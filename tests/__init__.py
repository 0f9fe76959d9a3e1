"""The tests are one package. A module imports another module by its full name, `tests.worlds.raft_world`."""
