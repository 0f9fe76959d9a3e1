"""What every server process needs to come up: configuration, formatted directories, listeners, logging, signals."""
