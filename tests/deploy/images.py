"""Images of deploy/Dockerfile, built by buildah; and processes in them, as a container runtime starts them.

No registry and no engine is needed: the base is a Debian in a directory, and a container is a few namespaces.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.deploy.programs import ROOT, run

BASE: Final = "localhost/penstock-base"
USER: Final = 10001
# The root is read-only and /tmp is the container's own, as with readOnlyRootFilesystem and an emptyDir.
# `$1` is the root; then pairs of a directory of ours and its place there, until `--`.
_ENTER: Final = """
set -e
root=$1; shift
mount --bind "$root" "$root"
printf '127.0.0.1 localhost %s\n' "$(hostname)" >"$root/etc/hosts"
mount -t tmpfs tmpfs "$root/tmp"
chmod 1777 "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
while [ "$1" != -- ]; do mount --bind "$1" "$root$2"; shift 2; done
shift
mount -o remount,bind,ro "$root"
ip link set lo up 2>/dev/null || true
exec chroot --userspec=10001:10001 "$root" /usr/bin/env -i -C /tmp "$@"
"""


@dataclass(frozen=True)
class Image:
    """One that was built: its settings, and its files in a directory."""

    root: Path
    config: dict[str, Any]

    @property
    def size_bytes(self) -> int:
        """Of its files, each counted once."""
        said = run("du", "--summarize", "--bytes", "--one-file-system", self.root)
        return int(said.split()[0])

    def command(
        self,
        env: Mapping[str, str],
        arguments: Sequence[str] = (),
        *,
        entrypoint: Sequence[str] | None = None,
        mounts: Mapping[Path, str] | None = None,
        network: bool = True,
    ) -> list[str]:
        """How to start it: as process 1 of its own namespace, with its own variables and `env` over them.

        `mounts`: directories of ours, and where it sees them. Without `network` it has a loopback of its own.
        """
        places = [str(part) for pair in (mounts or {}).items() for part in pair]
        own = [*self.config["Env"], *(f"{name}={value}" for name, value in env.items())]
        begins = self.config["Entrypoint"] if entrypoint is None else entrypoint
        return [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
            *(() if network else ("--net",)),
            *("/bin/sh", "-c", _ENTER, "sh", str(self.root), *places, "--", *own, *begins, *arguments),
        ]


class Builder:
    """buildah, with a storage of its own in a directory; `close` deletes it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # A minute, if nobody has made it yet and nothing else runs.
        base = run(ROOT / "scripts" / "image-base", timeout=900).strip()
        container = self._buildah("from", "scratch").strip()
        self._buildah("copy", "--quiet", container, base, "/")
        self._buildah("commit", "--quiet", "--rm", container, BASE)

    def build(self, target: str) -> Image:
        """Build a target of the Dockerfile. Takes minutes, and fetches packages."""
        name = f"localhost/penstock-{target}"
        self._buildah(
            *("build", "--quiet", "--isolation", "chroot", "--format", "docker", "--pull-never"),
            *("--file", str(ROOT / "deploy" / "Dockerfile")),
            *("--ignorefile", str(ROOT / "deploy" / "Dockerfile.dockerignore")),
            *("--build-arg", f"BASE={BASE}", "--target", target, "--tag", name, str(ROOT)),
        )
        container = self._buildah("from", "--pull-never", name).strip()
        root = self._buildah("mount", container).strip()
        said = json.loads(self._buildah("inspect", "--type", "image", name))
        return Image(Path(root), said["Docker"]["config"])

    def close(self) -> None:
        """Delete everything that was built."""
        shutil.rmtree(self._directory)

    def _buildah(self, *arguments: str) -> str:
        place = ("--root", f"{self._directory}/storage", "--runroot", f"{self._directory}/run")
        return run("buildah", *place, "--storage-driver", "vfs", *arguments, timeout=1200)
