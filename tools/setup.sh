#!/usr/bin/env bash
# Prepare a checkout for work: system packages (if the script may install them), .venv, pinned dependencies, native
# code. Repeatable; without changes it takes about a second. Prints the time of each step.
#
#   PYTHON=/usr/bin/python3.12 tools/setup.sh   use another interpreter for a new .venv
#   HEADRACE_NO_APT=1 tools/setup.sh            never call apt-get: only report missing packages
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
started=$SECONDS

python_is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.11 python3.12 python3.13 python3.14 /usr/bin/python3; do
    if command -v "$candidate" >/dev/null 2>&1 && python_is_new_enough "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

python_lacks() { # the parts that the interpreter lacks for a virtual environment and compiled extensions
  "$1" -c 'import ensurepip, venv' >/dev/null 2>&1 || echo venv
  "$1" -c 'import pathlib, sys, sysconfig; sys.exit(not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists())' || echo headers
}

java_is_new_enough() {
  local java="${JAVA_HOME:+$JAVA_HOME/bin/}java" version
  version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || return 1
  [ "${version:-0}" -ge 17 ]
}

apt_prefix() { # print the command prefix that runs apt-get as root; fail if there is none
  if [ -n "${HEADRACE_NO_APT:-}" ] || ! command -v apt-get >/dev/null; then return 1; fi
  if [ "$(id -u)" = 0 ]; then echo "env"
  elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then echo "sudo env"
  else return 1; fi
}

apt_updated=""
apt_install() { # each argument is a package, or alternatives "a|b"; the first existing package is installed
  local prefix alternatives package found log=build/setup-apt.log
  prefix=$(apt_prefix) || return 1
  mkdir -p build
  if [ -z "$apt_updated" ]; then
    say "apt-get update"
    $prefix apt-get -q update >"$log" 2>&1 || { tail -n 5 "$log" >&2; return 1; }
    apt_updated=1
  fi
  local packages=()
  for alternatives in "$@"; do
    found=""
    for package in ${alternatives//|/ }; do
      if [ -n "$(apt-cache policy "$package" 2>/dev/null | sed -n '/Candidate: [0-9]/p')" ]; then found=$package; break; fi
    done
    [ -n "$found" ] || { say "no Debian package for $alternatives"; return 1; }
    packages+=("$found")
  done
  say "apt-get install ${packages[*]}"
  $prefix DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends "${packages[@]}" >>"$log" 2>&1 ||
    { tail -n 5 "$log" >&2; return 1; }
}

# --- The system: a Python with venv and headers, a C compiler, Java --------------------------------------------------
if [ ! -x .venv/bin/python ] || ! python_is_new_enough .venv/bin/python ||
  ! grep -qF " $PWD/.venv" .venv/pyvenv.cfg; then # the last condition: the checkout was moved or copied
  python=$(find_python) || { apt_install python3 && python=$(find_python); } ||
    fail "Python 3.11 or newer is missing; install it (Debian: apt-get install python3 python3-venv python3-dev), or set PYTHON"
  wanted=()
  for lack in $(python_lacks "$python"); do
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    case $lack in
      venv) wanted+=("python$version-venv|python3-venv") ;;
      headers) wanted+=("python$version-dev|python3-dev") ;;
    esac
  done
else
  python=.venv/bin/python
  wanted=()
fi
command -v cc >/dev/null 2>&1 || wanted+=(gcc libc6-dev)
if [ ${#wanted[@]} -gt 0 ]; then
  apt_install "${wanted[@]}" || fail "missing: ${wanted[*]} (apt-get install these as root, then run this again)"
  [ "$python" = .venv/bin/python ] || [ -z "$(python_lacks "$python")" ] ||
    fail "$python has no venv module or no headers ($(python_lacks "$python" | tr '\n' ' ')), and Debian's packages do not belong to it; set PYTHON to another one"
fi
if ! java_is_new_enough; then
  apt_install "openjdk-17-jre-headless|openjdk-21-jre-headless|default-jre-headless" && java_is_new_enough ||
    say "Java 17 or newer is missing: everything works but Spark; get it with 'apt-get install openjdk-17-jre-headless', or set JAVA_HOME"
fi
system_s=$((SECONDS - started))

# --- The virtual environment ------------------------------------------------------------------------------------------
if [ "$python" != .venv/bin/python ]; then
  say "new virtual environment from $python ($("$python" -V))"
  "$python" -m venv --clear .venv
fi
[ "$system_s" -lt 2 ] || say "system packages took $system_s s"
.venv/bin/python tools/dashboards.py
exec .venv/bin/python tools/install.py
