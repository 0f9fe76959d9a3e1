"""The start of every server process: configuration, formatted directories, listeners, logging, signals."""
