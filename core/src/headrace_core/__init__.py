"""Code shared by Headrace's services: types, errors, configuration, record batches, the log, RPC plumbing."""
