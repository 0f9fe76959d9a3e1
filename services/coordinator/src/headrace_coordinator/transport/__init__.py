"""The coordinator as a client of the brokers that lead its shards' partitions, and of the controllers."""
