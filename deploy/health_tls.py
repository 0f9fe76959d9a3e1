"""The health check of containers whose ports are encrypted: health_tls.py HOST PORT [http [PATH]].

It asks as the user health, whose certificate is in /certs. Exit code 0: the server answers SERVING, or the HTTP status
200.
"""

from __future__ import annotations

import ssl
import sys

from headrace_tools.local.health import answers_http, is_serving

CERTS = "/certs"
TIMEOUT_S = 4.0


def main(host: str, port: str, kind: str = "grpc") -> int:
    context = ssl.create_default_context(cafile=f"{CERTS}/ca.pem")
    context.load_cert_chain(f"{CERTS}/health.pem")
    context.set_alpn_protocols(["h2", "http/1.1"] if kind == "grpc" else ["http/1.1"])
    ready = answers_http if kind == "http" else is_serving
    return 0 if ready(host, int(port), timeout_s=TIMEOUT_S, tls=context) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
