"""PostgreSQL 17 and 18, which Debian 12 lacks: programs of a newer Debian, run in its own root directory."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.local.postgres_programs import Identity, PostgresPrograms, server_identity

_SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "newer-postgres"
# A namespace of its own for the mounts: nothing is left behind, and nobody else sees them.
_ENTER = """
root=$1; user=$2; shift 2
for path in tmp dev etc/passwd; do mount --rbind "/$path" "$root/$path" || exit 1; done
exec chroot --userspec="$user" "$root" "$@"
"""


@dataclass(frozen=True)
class ChrootPrograms(PostgresPrograms):
    """An installation inside another root directory; it sees our /tmp, where private servers live."""

    root: Path

    def command(self, program: str) -> Sequence[str | Path]:
        """See PostgresPrograms. Only root can enter, and chroot then changes the user."""
        user = server_identity()
        enter = ["unshare", "--mount", "/bin/sh", "-c", _ENTER, "sh"]
        return [*enter, self.root, f"{user['user']}:{user['group']}", self.bindir / program]

    def identity(self) -> Identity:
        """See PostgresPrograms."""
        return {}


def newer_postgres(version: int) -> ChrootPrograms:
    """PostgreSQL of this version with wal2json; the first call on a machine takes a minute."""
    done = subprocess.run([_SCRIPT, str(version)], stdout=subprocess.PIPE, text=True, check=True)
    return ChrootPrograms(Path(f"/usr/lib/postgresql/{version}/bin"), Path(done.stdout.strip()))
