"""Certificates for a cluster: a development authority, and certificates for nodes and users (`headrace certs`)."""
