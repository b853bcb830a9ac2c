"""A private PostgreSQL with wal2json in a temporary directory, for tests, the demo and the bench."""

from __future__ import annotations

import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from penstock.local.errors import LocalServerError
from penstock.local.free_ports import free_port
from penstock.local.postgres_programs import PostgresPrograms, give_to_server_user

StopMode = Literal["smart", "fast", "immediate"]

_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_HOST = "127.0.0.1"
_USER = "postgres"
_START_S = 60.0
_PLUGIN_SETTING = "output_plugin_libraries"
_SETTINGS = {
    "listen_addresses": _HOST,
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "wal_keep_size": "128MB",  # a standby made here has no slot of its own
    "log_line_prefix": "%m [%p] %q%a@%d ",
}


class PrivatePostgres:
    """One private server: made at its first `start()`, deleted at `close()`.

    `settings` go to its configuration file, over ours. It listens on 127.0.0.1 and on a socket in its own
    directory, and trusts everyone who reaches it. Where the server can forbid wal2json
    (`knows_plugin_setting`), it is allowed unless `allow_wal2json` is false.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        fsync: bool = False,
        allow_wal2json: bool = True,
        programs: PostgresPrograms | None = None,
        primary: PrivatePostgres | None = None,
    ) -> None:
        self._programs = programs or PostgresPrograms.find()
        self._settings = {**_SETTINGS, "fsync": "on" if fsync else "off", **(settings or {})}
        self._allow_wal2json = allow_wal2json
        self._primary = primary
        self._directory: Path | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._knows_plugin_setting = False

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """The server's own directory: data, socket and log."""
        if self._directory is None:
            raise LocalServerError("this PostgreSQL was not started yet, or was closed")
        return self._directory

    @property
    def port(self) -> int:
        """The TCP port, the same for the server's whole life."""
        _ = self.directory
        return int(self._settings["port"])

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        return self._require_process().pid

    @property
    def running(self) -> bool:
        """Whether the postmaster lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def knows_plugin_setting(self) -> bool:
        """Whether this server has `output_plugin_libraries`, and so forbids wal2json by default."""
        _ = self.directory
        return self._knows_plugin_setting

    def start(self) -> None:
        """Start the server, and make it first if need be; return when it accepts connections."""
        if self.running:
            raise LocalServerError("this PostgreSQL is already running")
        if self._directory is None:
            self._create()
            self._launch(may_move=True)
        else:
            self._launch(may_move=False)

    def stop(self, mode: StopMode = "fast", timeout: float = 60.0) -> float:
        """Stop the server and give the seconds it took; LocalServerError if it still runs after `timeout`."""
        process = self._require_process()
        began = time.monotonic()
        process.send_signal(_SIGNALS[mode])
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise LocalServerError(f"PostgreSQL still runs {timeout} s after a {mode} stop") from None
        self._process = None
        return time.monotonic() - began

    def restart(self) -> None:
        """A clean stop and a start, on the same port."""
        self.stop()
        self.start()

    def crash(self) -> None:
        """End the server without a shutdown checkpoint: the next start recovers from WAL."""
        self.stop("immediate")

    def close(self) -> None:
        """End the server and delete its directory."""
        if self._process is not None:
            self.crash()
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            self._guard.wait()
        self._guard = self._directory = None

    def conninfo(self, dbname: str = "postgres", **over: Any) -> str:
        """A libpq connection string over TCP; `over` replaces or adds parts."""
        return make_conninfo(**{"host": _HOST, "port": self.port, "user": _USER, "dbname": dbname, **over})

    def env(self, dbname: str = "postgres") -> dict[str, str]:
        """libpq's variables for this server."""
        return {"PGHOST": _HOST, "PGPORT": str(self.port), "PGUSER": _USER, "PGDATABASE": dbname}

    def psql(self, sql: str, dbname: str = "postgres") -> list[tuple[Any, ...]]:
        """Run SQL as superuser, outside a transaction block, and give the rows of its last statement."""
        with psycopg.connect(self._socket_conninfo(dbname), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def create_database(self, name: str | None = None) -> str:
        """A fresh database, under a name of its own if none is given."""
        name = name or f"db_{secrets.token_hex(4)}"
        with psycopg.connect(self._socket_conninfo("postgres"), autocommit=True) as connection:
            connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        return name

    def set(self, name: str, value: str) -> None:
        """Change a setting and wait until a running server has reloaded it; some need a `restart()` too."""
        self._settings[name] = value
        self._write_settings()
        if not self.running:
            return
        before = self.psql("SELECT pg_conf_load_time()")
        self._require_process().send_signal(signal.SIGHUP)
        deadline = time.monotonic() + _START_S
        while self.psql("SELECT pg_conf_load_time()") == before:
            if time.monotonic() > deadline:
                raise LocalServerError(f"PostgreSQL did not reload {name} = {value!r}: {self._log_tail()}")
            time.sleep(0.01)

    def standby(self, *, settings: Mapping[str, str] | None = None) -> PrivatePostgres:
        """A streaming standby of this server, not started yet; its base backup is taken at its `start()`."""
        return PrivatePostgres(
            settings={**self._settings, **(settings or {})},
            allow_wal2json=self._allow_wal2json,
            programs=self._programs,
            primary=self,
        )

    def promote(self) -> None:
        """Make this standby a primary, and wait until it is."""
        if self.psql("SELECT pg_promote(true, 60)") != [(True,)]:
            raise LocalServerError(f"PostgreSQL was not promoted: {self._log_tail()}")

    def log_text(self) -> str:
        """Everything that the server has logged."""
        return self._log.read_text(errors="replace")

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"

    def _socket_conninfo(self, dbname: str) -> str:
        # Only our own server can have a socket in our directory; a port may turn out to be someone else's.
        return self.conninfo(dbname, host=str(self.directory))

    def _create(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
        give_to_server_user(self._directory)
        self._guard = self._programs.guard(self._directory, self._data)
        if self._primary is None:
            self._programs.run(
                "initdb", "--no-sync", "--auth=trust", "--username", _USER, "--encoding=UTF8", "--locale=C",
                "--pgdata", self._data,
            )  # fmt: skip
            self._write_settings()
            with (self._data / "postgresql.conf").open("a") as configuration:
                configuration.write("\ninclude 'penstock.conf'\n")
        else:
            self._programs.run(
                "pg_basebackup", "--no-sync", "--checkpoint=fast", "--wal-method=stream",
                "--write-recovery-conf", "--dbname", self._primary.conninfo(), "--pgdata", self._data,
            )  # fmt: skip
        self._allow_plugin()

    def _allow_plugin(self) -> None:
        # A server that does not know the setting refuses to start with it in its file.
        asked = self._programs.attempt("postgres", "-C", _PLUGIN_SETTING, "-D", self._data)
        if asked.returncode and "unrecognized configuration parameter" not in asked.stderr:
            raise LocalServerError(f"postgres -C {_PLUGIN_SETTING} failed: {asked.stderr.strip()}")
        self._knows_plugin_setting = asked.returncode == 0
        if self._knows_plugin_setting and self._allow_wal2json:
            self._settings.setdefault(_PLUGIN_SETTING, "pgoutput, test_decoding, wal2json")

    def _launch(self, *, may_move: bool) -> None:
        for _ in range(5):
            if may_move:
                self._settings |= {"port": str(free_port()), "unix_socket_directories": str(self.directory)}
                self._write_settings()
            with self._log.open("ab") as output:
                logged = output.tell()
                self._process = self._programs.spawn("postgres", "-D", self._data, output=output)
            if self._accepts_connections():
                return
            self._process = None
            if not (may_move and b"Address already in use" in self._log.read_bytes()[logged:]):
                break
        raise LocalServerError(f"PostgreSQL did not start: {self._log_tail()}")

    def _accepts_connections(self) -> bool:
        """Wait for the server: false if it ended, LocalServerError if it does neither."""
        process = self._require_process()
        deadline = time.monotonic() + _START_S
        while process.poll() is None:
            try:
                psycopg.connect(self._socket_conninfo("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise LocalServerError(f"PostgreSQL is not ready: {self._log_tail()}") from None
                time.sleep(0.02)
            else:
                return True
        return False

    def _require_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise LocalServerError("this PostgreSQL is not running")
        return self._process

    def _write_settings(self) -> None:
        quoted = {name: value.replace("'", "''") for name, value in self._settings.items()}
        text = "".join(f"{name} = '{value}'\n" for name, value in quoted.items())
        (self._data / "penstock.conf").write_text(text)

    def _log_tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-20:])
