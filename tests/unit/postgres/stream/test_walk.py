"""The walk over frames: streams that break the rules, and what keepalives say."""

from __future__ import annotations

import struct

import pytest

from penstock.decoding.decoder import Decoder
from penstock.decoding.wal2json import Wal2Json
from penstock.errors import ProtocolViolation
from penstock.model.change import Boundary, Change
from penstock.postgres.stream.walk import FrameWalk

BEGIN = b'{"action":"B","lsn":"0/64","nextlsn":"0/6E"}'
INSERT = b'{"action":"I"}'
COMMIT = b'{"action":"C","lsn":"0/64","nextlsn":"0/6E"}'
BARE_BEGIN, BARE_COMMIT = b'{"action":"B"}', b'{"action":"C"}'


class Recorder:
    """Writes down the names of its visits."""

    room = 100

    def __init__(self) -> None:
        self.visits: list[str] = []
        self.takes_changes = True

    def change(self, change: Change) -> bool:
        self.visits += ["change"] * self.takes_changes
        return self.takes_changes

    def begin(self, begin: Boundary) -> None:
        self.visits.append("begin")

    def commit(self, commit: Boundary, safe_lsn: int) -> None:
        self.visits.append("commit")

    def silence(self, safe_lsn: int) -> None:
        self.visits.append("silence")


def xlogdata(payload: bytes, *, wal_start: int = 90, server_time_us: int = 0) -> memoryview:
    return memoryview(struct.pack("!cqqq", b"w", wal_start, wal_start, server_time_us) + payload)


def keepalive(wal_end: int, *, reply: bool = False, server_time_us: int = 0) -> memoryview:
    return memoryview(struct.pack("!cqqB", b"k", wal_end, server_time_us, reply))


@pytest.mark.parametrize(
    ("frames", "visits", "says"),
    [
        ([xlogdata(INSERT)], [], "a change outside a transaction"),
        (
            [*map(xlogdata, (BEGIN, COMMIT, INSERT))],
            ["begin", "commit"],
            "a change outside a transaction",
        ),
        ([*map(xlogdata, (BEGIN, INSERT, BEGIN))], ["begin", "change"], "begins inside the one"),
        ([xlogdata(COMMIT)], [], "does not fit the open transaction"),
        ([*map(xlogdata, (BEGIN, COMMIT.replace(b"0/64", b"0/65")))], ["begin"], "0/65 does not fit"),
        ([xlogdata(BEGIN.replace(b"0/6E", b"0/64"))], [], "ends before"),
        ([xlogdata(b'{"action":"B","lsn":7}')], [], "can't be read"),
        ([xlogdata(b'{"action":"B","lsn":"zz"}')], [], "can't be read"),
        ([xlogdata(BARE_BEGIN)], [], "of wal2json without its LSN"),
        ([*map(xlogdata, (BEGIN, BARE_COMMIT))], ["begin"], "of wal2json without its LSN"),
        ([memoryview(b"w too short")], [], "unknown replication frame: tag 'w', 11 bytes"),
        ([memoryview(b"")], [], "tag none, 0 bytes"),
        ([memoryview(b"z" + bytes(40))], [], "tag 'z', 41 bytes"),
        ([keepalive(100), memoryview(b"k" + bytes(40))], ["silence"], "tag 'k', 41 bytes"),
    ],
)
def test_a_stream_that_breaks_the_rules_ends_there(
    frames: list[memoryview], visits: list[str], says: str
) -> None:
    visitor = Recorder()
    walk = FrameWalk(Wal2Json(), confirmed_lsn=10, needs_lsn=True)
    with pytest.raises(ProtocolViolation, match=says):
        walk.take(frames, 0, visitor)
    assert visitor.visits == visits


def test_a_violation_never_names_a_value() -> None:
    walk = FrameWalk(Wal2Json(), confirmed_lsn=10)
    with pytest.raises(ProtocolViolation) as raised:
        walk.take([xlogdata(b'{"action":"B","lsn":"secret"}')], 0, Recorder())
    assert "secret" not in str(raised.value)


def test_a_keepalive_asks_for_an_answer_until_somebody_gives_it() -> None:
    walk = FrameWalk(Wal2Json(), confirmed_lsn=10)
    for frames, asked in (
        ([keepalive(20)], False),
        ([keepalive(21, reply=True), keepalive(22)], True),
        ([keepalive(23)], True),
    ):
        walk.take(frames, 0, Recorder())
        assert walk.reply_requested is asked
    walk.reply_requested = False
    walk.take([keepalive(24)], 0, Recorder())
    assert not walk.reply_requested


def test_the_servers_clock_is_that_of_the_newest_frame_whatever_it_is() -> None:
    walk = FrameWalk(Wal2Json(), confirmed_lsn=10)
    seen = []
    for time_us, frame in enumerate(
        (
            keepalive(20, server_time_us=1),
            xlogdata(BEGIN, server_time_us=2),
            xlogdata(INSERT, server_time_us=3),
            xlogdata(b'{"action":"M"}', server_time_us=4),
            keepalive(100, server_time_us=5),
            xlogdata(COMMIT, server_time_us=6),
        ),
        start=1,
    ):
        walk.take([frame], 0, Recorder())
        seen.append((time_us, walk.server_time_us))
    assert all(sent == known for sent, known in seen)


def test_a_change_that_is_not_taken_is_not_received() -> None:
    """It is still to be read when the line breaks now."""
    walk, visitor = FrameWalk(Wal2Json(), confirmed_lsn=10), Recorder()
    frames = [xlogdata(BEGIN), xlogdata(INSERT, wal_start=95)]
    visitor.takes_changes = False
    assert walk.take(frames, 0, visitor) == 1
    assert walk.received_lsn == 10

    visitor.takes_changes = True
    assert walk.take(frames, 1, visitor) == 2
    assert walk.received_lsn == 95


class Numbering(Wal2Json):
    """Numbers every payload, and swallows those of `n`othing; counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.payload = self.render  # type: ignore[assignment, misc]

    def render(self, raw: memoryview | bytes) -> bytes | None:
        self.asked += 1
        if bytes(raw) == b"nothing":
            return None
        return bytes(raw) + b" " * self.asked


class Payloads(Recorder):
    """Keeps what it is shown of changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Change] = []

    def change(self, change: Change) -> bool:
        if self.takes_changes:
            self.changes.append(change)
        return super().change(change)


def test_the_decoder_renders_each_frame_once_and_may_swallow_it() -> None:
    """A swallowed frame moves no position: neither an operation's place nor what was received."""
    decoder: Decoder = Numbering()
    walk, visitor = FrameWalk(decoder, confirmed_lsn=10), Payloads()
    nothing = xlogdata(b"nothing", wal_start=5000, server_time_us=7)
    frames = [nothing, xlogdata(BEGIN), nothing, xlogdata(INSERT), nothing, xlogdata(INSERT), nothing]

    assert walk.take(frames, 0, visitor) == len(frames)

    assert visitor.visits == ["begin", "change", "change"]
    assert [(change.op_offset, change.payload) for change in visitor.changes] == [
        (0, INSERT + b" " * 4),
        (2, INSERT + b" " * 6),
    ]
    assert (walk.received_lsn, walk.server_time_us, walk.messages) == (90, 7, 0)


def test_a_change_that_is_not_taken_is_rendered_again() -> None:
    decoder = Numbering()
    walk, visitor = FrameWalk(decoder, confirmed_lsn=10), Payloads()
    frames = [xlogdata(BEGIN), xlogdata(INSERT), xlogdata(COMMIT)]
    visitor.takes_changes = False
    assert walk.take(frames, 0, visitor) == 1
    visitor.takes_changes = True

    assert walk.take(frames, 1, visitor) == 3

    assert decoder.asked == 4
    assert [change.op_offset for change in visitor.changes] == [0]


def test_no_room_means_that_the_next_frame_is_not_even_rendered() -> None:
    decoder, visitor = Numbering(), Recorder()
    visitor.room = 0
    assert FrameWalk(decoder, confirmed_lsn=10).take([xlogdata(BEGIN)], 0, visitor) == 0
    assert decoder.asked == 0
