"""The PostgreSQL server programs of this machine, and how to run them as the right user."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypedDict

from penstock.local.errors import LocalServerError

_DEBIAN = Path("/usr/lib/postgresql")
_SERVER_USER = "postgres"
_PACKAGES = "on Debian or Ubuntu: apt-get install postgresql postgresql-<version>-wal2json"


class Identity(TypedDict, total=False):
    """A user, as `subprocess` takes it; empty for our own."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True)
class PostgresPrograms:
    """`initdb`, `postgres` and friends of one installation that has wal2json."""

    bindir: Path

    @classmethod
    def find(cls) -> PostgresPrograms:
        """The installation that `pg_config` names, or else Debian's newest, if it has wal2json."""
        seen = []
        for bindir in _candidates():
            if (bindir / "initdb").exists():
                programs = cls(bindir)
                if (programs.library_directory() / "wal2json.so").exists():
                    return programs
                seen.append(str(bindir))
        if seen:
            raise LocalServerError(f"no wal2json beside the PostgreSQL in {', '.join(seen)}; {_PACKAGES}")
        raise LocalServerError(f"no PostgreSQL server programs found; {_PACKAGES}")

    def command(self, program: str) -> Sequence[str | Path]:
        """How a program of this installation is called."""
        return [self.bindir / program]

    def identity(self) -> Identity:
        """As whom: PostgreSQL refuses to run as root, so root runs it as `postgres`."""
        return server_identity()

    def library_directory(self) -> Path:
        """Where this installation keeps its loadable modules."""
        pg_config = self.bindir / "pg_config"
        named = _output(str(pg_config), "--pkglibdir") if pg_config.exists() else ""
        return Path(named) if named else self.bindir.parent / "lib"

    def run(self, program: str, *args: str | Path) -> str:
        """Run a program to its end and give its output; LocalServerError with its words if it fails."""
        done = self.attempt(program, *args)
        if done.returncode:
            raise LocalServerError(f"{program} failed ({done.returncode}): {done.stderr.strip()}")
        return done.stdout

    def attempt(self, program: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, whatever that end is."""
        return subprocess.run(
            [*self.command(program), *args],
            cwd="/",
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            **self.identity(),
        )

    def spawn(self, program: str, *args: str | Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own, out of reach of a terminal's Ctrl-C."""
        return subprocess.Popen(
            [*self.command(program), *args],
            cwd="/",
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **self.identity(),
        )

    def guard(self, directory: Path, data: Path) -> subprocess.Popen[bytes]:
        """A process that, when its standard input closes, stops the server and deletes the directory.

        That input closes by itself when our process ends, however it ends, so no server is left behind.
        """
        script = 'read -r _; directory=$1; shift; "$@"; rm -rf "$directory"'
        stop = [*self.command("pg_ctl"), "stop", "-m", "immediate", "-D", data]
        return subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", directory, *stop],
            cwd="/",
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **self.identity(),
        )


def give_to_server_user(path: Path) -> None:
    """Let the user that runs the server own a path that we made."""
    identity = server_identity()
    if identity:
        os.chown(path, identity["user"], identity["group"])


def _candidates() -> Iterator[Path]:
    if shutil.which("pg_config") and (named := _output("pg_config", "--bindir")):
        yield Path(named)
    versions = [path for path in _DEBIAN.glob("*/bin") if re.fullmatch(r"\d+", path.parent.name)]
    yield from sorted(versions, key=lambda path: int(path.parent.name), reverse=True)


def _output(*command: str) -> str:
    """What a program prints; nothing if it fails, as Debian's `pg_config` may without libpq-dev."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode else done.stdout.strip()


def server_identity() -> Identity:
    """The user that runs servers: ourselves, or `postgres` if we are root."""
    if os.geteuid() != 0:
        return {}
    try:
        account = pwd.getpwnam(_SERVER_USER)
    except KeyError:
        raise LocalServerError(f"root needs a user {_SERVER_USER!r} to run PostgreSQL; {_PACKAGES}") from None
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _environment() -> Mapping[str, str]:
    """Ours without libpq's variables: PGDATA or PGOPTIONS of a developer must not reach a private server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
