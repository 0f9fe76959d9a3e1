#!/usr/bin/env bash
# The console in headless Chromium. Installs Debian's chromium where it is missing, and playwright and
# axe-core from the package index; the script downloads no browser from other sources. CONSOLE_PICTURES=1 writes
# docs/pictures/console-*.png.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v chromium >/dev/null; then
  root=()
  [ "$(id -u)" = 0 ] || root=(sudo)
  mkdir -p build
  { "${root[@]}" apt-get -q update && "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -y install --no-install-recommends chromium; } >build/chromium.log 2>&1 || { tail -n 20 build/chromium.log; exit 1; }
fi
.venv/bin/python -c 'import playwright, axe_playwright_python' 2>/dev/null ||
  .venv/bin/pip install -q -c constraints.txt --group browser
exec .venv/bin/python -m pytest -p no:xdist tests/integration/console/browser/test_console_browser.py "$@"
