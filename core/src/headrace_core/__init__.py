"""What more than one Headrace service needs: types, errors, configuration, record batches, the log, RPC plumbing."""
