"""What `penstock check --from` says of who writes the stream: this server's capture, and does it run?"""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.finding import Finding, Level
from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.outside.postgres_look import PostgresLook
from penstock.outside.source_judgement import silence, stranger
from penstock.outside.source_look import SourceLook
from penstock.postgres.timeline import ServerIdentity
from penstock.settings.services import ShapesSettings


async def server_now(settings: ShapesSettings) -> ServerIdentity | None:
    """The server that the settings name; None if it can't be asked, which others say."""
    look = PostgresLook(settings.replication, settings.leader)
    try:
        return (await look.look()).server
    except PenstockError:
        return None
    finally:
        look.close()


def check_writer(address: StreamAddress, server: ServerIdentity | None, stall_s: float) -> list[Finding]:
    """A finding if the stream is another server's, or nobody writes it; none if all is well. Blocks.

    What can't be read at all is said by those who look at the stream itself.
    """
    try:
        look = SourceLook(address, stall_s)
    except PenstockError:
        return []
    try:
        facts = look.look(None)
    finally:
        look.close()
    if facts.problem is not None:
        return []
    if (sentence := stranger(facts, server)) is not None:
        return [Finding.from_error("manifests", PenstockError(sentence))]
    if (sentence := silence(facts, stall_s)) is not None:
        # Legal: whoever checks before the first start has no capture yet.
        return [Finding.from_error("manifests", PenstockError(sentence))._replace(level=Level.WARN)]
    return []
