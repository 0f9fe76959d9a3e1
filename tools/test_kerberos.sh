#!/usr/bin/env bash
# GSSAPI against a real KDC of MIT Kerberos, with the SDK, Kafka's Java tools and kcat. Installs the
# KDC, the headers, kcat, its SASL module and faketime from Debian where they are missing, and gssapi from the package
# index, which pip compiles. Java and Maven must be installed, as for tools/test_kafka.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"
has() { command -v "$1" >/dev/null; }
if ! { has krb5kdc && has kadmin.local && has kinit && has krb5-config && has faketime && has gcc && has kcat &&
  compgen -G '/usr/lib/*/sasl2/libgssapiv2.so' >/dev/null; }; then
  root=()
  [ "$(id -u)" = 0 ] || root=(sudo)
  mkdir -p build
  { "${root[@]}" apt-get -q update && "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -y install --no-install-recommends krb5-kdc krb5-admin-server krb5-user libkrb5-dev gcc \
    libsasl2-modules-gssapi-mit faketime kcat; } >build/kerberos.log 2>&1 || { tail -n 20 build/kerberos.log; exit 1; }
fi
.venv/bin/python -c 'import gssapi' 2>/dev/null || .venv/bin/pip install -q -c constraints.txt gssapi
exec .venv/bin/python -m pytest -p no:xdist tests/integration/security/kerberos/test_kerberos_exchange.py \
  tests/integration/security/kerberos/test_kerberos_cluster.py tests/integration/kafka_protocol/kerberos/test_kerberos_clients.py "$@"
