"""A private Kerberos realm for tests: MIT's KDC on a loopback port, with its files in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.worlds.this_process import free_port

REALM = "HEADRACE.TEST"
PASSWORD = "k3rb-s3cret"
#: Seconds that the clocks of this realm may differ.
CLOCK_SKEW_S = 2

_KRB5 = """[libdefaults]
 default_realm = {realm}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 clockskew = {skew}
 udp_preference_limit = 1
 ticket_lifetime = 10h
 renew_lifetime = 0
 default_ccache_name = FILE:{directory}/default.cache
 kdc_timesync = 0
[realms]
 {realm} = {{
  kdc = 127.0.0.1:{port}
 }}
 SILENT.TEST = {{
  kdc = 127.0.0.1:1
 }}
"""
_KDC = """[kdcdefaults]
 kdc_listen = 127.0.0.1:{port}
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {realm} = {{
  database_name = {directory}/principal
  key_stash_file = {directory}/stash
  acl_file = {directory}/kadm5.acl
  max_life = 10h
  default_principal_flags = +preauth
  supported_enctypes = aes256-cts-hmac-sha1-96:normal
 }}
[logging]
 kdc = FILE:{directory}/kdc.log
"""


class Realm:
    """A realm. ``environment``: the environment for child processes; the test's own process needs its KRB5_CONFIG."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        values = {"realm": REALM, "directory": directory, "port": self.port, "skew": CLOCK_SKEW_S}
        self.krb5_conf, kdc_conf = directory / "krb5.conf", directory / "kdc.conf"
        self.krb5_conf.write_text(_KRB5.format(**values))
        kdc_conf.write_text(_KDC.format(**values))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("KRB5")},
            "KRB5_CONFIG": str(self.krb5_conf),
            "KRB5_KDC_PROFILE": str(kdc_conf),
            "KRB5RCACHEDIR": str(directory),
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
        }
        self._kdc: subprocess.Popen[bytes] | None = None
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")

    def start(self) -> None:
        """Start the KDC; returns when it answers."""
        with (self.directory / "kdc.out").open("ab") as output:
            self._kdc = subprocess.Popen(
                [self._program("krb5kdc"), "-n"], env=self.environment, stdout=output, stderr=output
            )
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            assert self._kdc.poll() is None, (self.directory / "kdc.out").read_text()
            time.sleep(0.02)
        raise TimeoutError("the KDC does not answer")

    def stop(self) -> None:
        if self._kdc is not None:
            self._kdc.terminate()
            self._kdc.wait(timeout=10)
            self._kdc = None

    def admin(self, *commands: str) -> None:
        """Run commands of kadmin.local."""
        for command in commands:
            done = self._run("kadmin.local", "-r", REALM, "-q", command)
            assert "while" not in done.stderr, done.stderr

    def keytab(self, *principals: str, name: str | None = None, options: str = "") -> str:
        """Create principals with random keys, and return the path of a keytab with them."""
        path = self.directory / f"{name or principals[0].replace('/', '-')}.keytab"
        for principal in principals:
            self.admin(f"addprinc -randkey {options} {principal}", f"ktadd -k {path} {principal}")
        return str(path)

    def kinit(self, principal: str, keytab: str, *options: str, cache: str | None = None) -> str:
        """Get a ticket, and return the name of its cache."""
        name = cache or f"FILE:{self.directory}/{principal.replace('/', '-')}.cache"
        self._run("kinit", *options, "-k", "-t", keytab, "-c", name, principal)
        return name

    def run(self, program: str, *arguments: str) -> str:
        """Run a program with the realm's environment, and return what it prints."""
        return self._run(program, *arguments).stdout

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self._program(program), *arguments], env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{program}: {done.stderr}{done.stdout}"
        return done

    def _program(self, name: str) -> str:
        found = shutil.which(name, path=self.environment["PATH"])
        assert found, f"{name} is missing; tools/test_kerberos.sh installs MIT Kerberos"
        return found


@contextlib.contextmanager
def running_realm(directory: Path) -> Iterator[Realm]:
    """Run a KDC, with KRB5_CONFIG in the environment of this process."""
    realm = Realm(directory)
    realm.start()
    before = {name: os.environ.get(name) for name in ("KRB5_CONFIG", "KRB5RCACHEDIR", "KRB5CCNAME")}
    os.environ.update({name: realm.environment[name] for name in ("KRB5_CONFIG", "KRB5RCACHEDIR")})
    os.environ.pop("KRB5CCNAME", None)
    try:
        yield realm
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        realm.stop()


def krb5_module(keytab: str, principal: str) -> str:
    """The JAAS configuration for a login with a keytab, for servers and clients."""
    return (
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        f'keyTab="{keytab}" principal="{principal}";'
    )
