"""A PostgreSQL of the tests' own: in a folder below /tmp, on a port of the tests, gone when they are."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.ports import free_port

USER: Final = "brownout"
PASSWORD: Final = "for-tests-only"
_START_S: Final = 60.0


def find_binaries() -> Path | None:
    """Return the folder of ``initdb`` and ``postgres``; None where PostgreSQL is not installed."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if (config := shutil.which("pg_config")) is not None:
        told = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        folders.insert(0, Path(told.stdout.strip()))
    if (found := shutil.which("postgres")) is not None:
        folders.append(Path(found).resolve().parent)
    return next((folder for folder in folders if all((folder / name).exists() for name in _PROGRAMS)), None)


_PROGRAMS: Final = ("initdb", "postgres", "psql")


class Postgres:
    """One server. It ends with the process that started it, also when that is killed."""

    def __init__(self, binaries: Path, *, fsync: bool = False) -> None:
        self.port = free_port()
        self._binaries = binaries
        self._fsync = fsync
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._folder = Path(tempfile.mkdtemp(prefix="brownout-postgres-", dir="/tmp"))
        self._as_user: list[str] = []
        if os.getuid() == 0:  # the server refuses to run as root
            user = _unprivileged()
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._as_user = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        self._run(
            "initdb",
            "--no-sync",
            "--no-instructions",
            "--encoding=UTF8",
            "--locale=C",
            "--auth=scram-sha-256",
            f"--username={USER}",
            f"--pwfile={self._password_file()}",
        )

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            AssertionError: it does not; the end of its log is in the text.
        """
        assert self._process is None, "it runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(
                    "postgres",
                    f"-p{self.port}",
                    "-clisten_addresses=127.0.0.1",
                    "-cunix_socket_directories=",
                    f"-cfsync={'on' if self._fsync else 'off'}",
                    "-cmax_connections=200",
                    "-cshared_buffers=16MB",
                ),
                stdout=log,
                stderr=log,
                cwd="/",
            )
        # Not by a parent death signal: that comes when the thread ends that happened to start the server.
        self._watcher = subprocess.Popen(
            ["sh", "-c", 'read -r ended || kill -INT "$1"', "sh", str(self._process.pid)],
            stdin=subprocess.PIPE,
        )
        give_up = time.monotonic() + _START_S
        while not self._answers():
            waiting = self._process.poll() is None and time.monotonic() < give_up
            assert waiting, f"no PostgreSQL: {self.log.read_text()[-2000:]}"
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as a crash does."""
        self._end(9)

    def stop(self) -> None:
        """End it in order; clients are cut off."""
        self._end(2)

    def remove(self) -> None:
        """Stop it and remove its folder."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def log(self) -> Path:
        return self._folder / "log"

    def url(self, database: str, port: int | None = None) -> str:
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port or self.port}/{database}"

    def new_database(self, template: str = "template0") -> str:
        """Make a database and return its name."""
        self._databases += 1
        name = f"tests_{self._databases}"
        self.sql(f'CREATE DATABASE {name} TEMPLATE "{template}" STRATEGY file_copy')
        return name

    def drop(self, database: str) -> None:
        self.sql(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement with ``psql`` and return what it prints, bare."""
        done = self._psql("-tAc", statement, database=database)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    # --- inside ------------------------------------------------------------------------------------------

    def _answers(self) -> bool:
        return self._psql("-tAc", "SELECT 1", database="postgres").returncode == 0

    def _psql(self, *arguments: str, database: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._binaries / "psql"), "-X", *arguments, self.url(database)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def _password_file(self) -> Path:
        path = self._folder / "password"
        path.write_text(PASSWORD)
        path.chmod(0o644)
        return path

    def _command(self, program: str, *arguments: str) -> list[str]:
        as_user = ["setpriv", *self._as_user] if self._as_user else []
        return [*as_user, str(self._binaries / program), "-D", str(self._folder / "data"), *arguments]

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            self._command(program, *arguments), capture_output=True, text=True, check=False, cwd="/"
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"

    def _end(self, signal: int) -> None:
        assert self._process is not None, "it does not run"
        children = _children(self._process.pid) if signal == 9 else ()
        self._process.send_signal(signal)
        self._process.wait(30)
        self._process = None
        assert self._watcher is not None
        self._watcher.communicate(b"ended\n")
        give_up = time.monotonic() + 30
        while any(Path(f"/proc/{child}").exists() for child in children):  # they notice by themselves
            assert time.monotonic() < give_up, "processes of the killed server do not end"
            time.sleep(0.02)


def _children(pid: int) -> Sequence[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _unprivileged() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")
