"""The walk over frames against a naive reading of the same stream, however it is cut and held up."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.decoding.wal2json import Wal2Json
from penstock.model.change import Action, Boundary, Change
from penstock.model.lsn import format_lsn
from penstock.postgres.stream.walk import FrameWalk

FIRST_LSN = 100
GARBAGE = "?"
KINDS = ("I", "U", "D", "T", GARBAGE, "M", "k", "R")
"""What stands inside a transaction; `M` is a message, `k` a keepalive, and `R` says nothing by itself."""

Visit = tuple[object, ...]


class Frame(NamedTuple):
    """A frame, and what a reader who sees the whole stream says of it."""

    data: bytes
    visit: Visit | None = None
    heard: int = 0
    """The position that it makes known."""
    safe: int = 0
    """What may be confirmed once it and everything before it is durable; 0 if it moves nothing."""
    opens: bool | None = None
    kind: str = ""


class Planned(NamedTuple):
    """A transaction and what follows it, before it has its place in the WAL."""

    inside: list[str]
    first_lsns: list[int]
    """Where the changes stand: they go backwards between concurrent transactions."""
    keepalive_after: int | None
    """How far beyond the transaction's end a keepalive comes; it may be behind."""


planned = st.builds(
    Planned,
    st.lists(st.sampled_from(KINDS), max_size=6),
    st.lists(st.integers(1, FIRST_LSN * 3), min_size=6, max_size=6),
    st.none() | st.integers(-5, 20),
)


def stream_of(transactions: Sequence[Planned], *, with_lsn: bool, confirmed_lsn: int) -> list[Frame]:
    """The stream as the server would send it."""
    frames: list[Frame] = []
    lsn, safe = FIRST_LSN, confirmed_lsn
    for index, each in enumerate(transactions):
        begins_at, commits_at, ends_at = lsn + 1, lsn + 10, lsn + 14
        position = commits_at if with_lsn else begins_at
        names = f',"lsn":"{format_lsn(commits_at)}","nextlsn":"{format_lsn(ends_at)}"' if with_lsn else ""
        ends = ends_at if with_lsn else None
        begin, commit = (f'{{"action":"{action}"{names}}}'.encode() for action in "BC")
        frames.append(
            Frame(xlogdata(begin, begins_at), ("begin", begin, begins_at, position, ends), opens=True)
        )
        op_offset = 0
        for kind, at in zip(each.inside, each.first_lsns, strict=False):
            if kind == "k":
                frames.append(Frame(keepalive(commits_at), None, heard=commits_at, kind=kind))
                continue
            if kind == "R":
                frames.append(Frame(xlogdata(b"R", at), None, kind=kind))
                continue
            payload = b"not json" if kind == GARBAGE else f'{{"action":"{kind}","n":{index}}}'.encode()
            if kind == "M":
                frames.append(Frame(xlogdata(payload, at), None, kind=kind))
                continue
            action = None if kind == GARBAGE else Action(kind)
            visit = ("change", action, payload, at, position, op_offset)
            frames.append(Frame(xlogdata(payload, at), visit, heard=at))
            op_offset += 2
        safe = max(safe, ends_at)
        boundary = ("commit", commit, ends_at, position, ends_at, safe)
        frames.append(Frame(xlogdata(commit, ends_at), boundary, heard=safe, safe=safe, opens=False))
        lsn = ends_at
        if each.keepalive_after is not None:
            lsn = max(lsn, wal_end := ends_at + each.keepalive_after)
            moves = wal_end > safe
            safe = max(safe, wal_end)
            frames.append(
                Frame(
                    keepalive(wal_end),
                    ("silence", wal_end) if moves else None,
                    heard=wal_end,
                    safe=safe,
                    kind="k",
                )
            )
    return frames


def xlogdata(payload: bytes, wal_start: int) -> bytes:
    return struct.pack("!cqqq", b"w", wal_start, wal_start, wal_start) + payload


def keepalive(wal_end: int) -> bytes:
    return struct.pack("!cqqB", b"k", wal_end, wal_end, 0)


class Swallowing(Wal2Json):
    """Takes some frames for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.payload = self.render  # type: ignore[assignment, misc]

    def render(self, raw: memoryview | bytes) -> bytes | None:
        return None if bytes(raw) == b"R" else bytes(raw)


class Recorder:
    """Writes down its visits; has as much room and patience as it is given."""

    def __init__(self, refusals: Sequence[bool] = ()) -> None:
        self.room = 10**9
        self.visits: list[Visit] = []
        self.refused = False
        self._refusals = list(refusals)

    def change(self, change: Change) -> bool:
        self.refused = bool(self._refusals) and self._refusals.pop()
        if self.refused:
            return False
        self.room -= 1
        self.visits.append(
            (
                "change",
                change.action,
                change.payload,
                change.wal_start,
                change.commit_lsn,
                change.op_offset,
            )
        )
        return True

    def begin(self, begin: Boundary) -> None:
        self.visits.append(("begin", begin.payload, begin.wal_start, begin.commit_lsn, begin.end_lsn))

    def commit(self, commit: Boundary, safe_lsn: int) -> None:
        self.visits.append(
            ("commit", commit.payload, commit.wal_start, commit.commit_lsn, commit.end_lsn, safe_lsn)
        )

    def silence(self, safe_lsn: int) -> None:
        self.visits.append(("silence", safe_lsn))


def check_state(walk: FrameWalk, taken: Sequence[Frame], confirmed_lsn: int) -> None:
    """What the walk knows is what a reader of exactly these frames knows."""
    assert walk.safe_lsn == max([confirmed_lsn, *(frame.safe for frame in taken)])
    assert walk.received_lsn == max([confirmed_lsn, *(frame.heard for frame in taken)])
    assert walk.messages == sum(frame.kind == "M" for frame in taken)
    opened = [frame.opens for frame in taken if frame.opens is not None]
    assert walk.in_transaction is (bool(opened) and opened[-1])


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    st.lists(planned, max_size=6),
    st.booleans(),
    st.sampled_from([0, FIRST_LSN, FIRST_LSN + 20]),
    st.lists(st.integers(0, 8), max_size=20),
    st.lists(st.integers(0, 3), max_size=20),
    st.lists(st.booleans(), max_size=20),
)
def test_however_the_stream_is_cut_and_held_up_the_visits_are_the_same(
    transactions: list[Planned],
    with_lsn: bool,
    confirmed_lsn: int,
    cuts: list[int],
    rooms: list[int],
    refusals: list[bool],
) -> None:
    frames = stream_of(transactions, with_lsn=with_lsn, confirmed_lsn=confirmed_lsn)
    walk = FrameWalk(Swallowing(), confirmed_lsn=confirmed_lsn, needs_lsn=with_lsn)
    visitor = Recorder(refusals)
    before = 0
    lsns = (confirmed_lsn, confirmed_lsn)
    while before < len(frames):
        size = cuts.pop() if cuts else len(frames)
        chunk = [memoryview(frame.data) for frame in frames[before : before + size]]
        start = 0
        while start < len(chunk):
            visitor.room, visitor.refused = (rooms.pop() if rooms else 10**9), False
            had_room = visitor.room > 0
            taken = walk.take(chunk, start, visitor)

            check_state(walk, frames[: before + taken], confirmed_lsn)
            assert taken == len(chunk) or visitor.refused or visitor.room <= 0
            assert had_room or taken == start, "nothing is taken without room"
            assert walk.received_lsn >= lsns[0]
            assert walk.safe_lsn >= lsns[1]
            lsns = (walk.received_lsn, walk.safe_lsn)
            start = taken
        assert walk.take(chunk, start, visitor) == len(chunk), "nothing is left of it"
        before += len(chunk)

    assert visitor.visits == [frame.visit for frame in frames if frame.visit is not None]
    in_one_go = Recorder()
    whole = FrameWalk(Swallowing(), confirmed_lsn=confirmed_lsn)
    assert whole.take([memoryview(frame.data) for frame in frames], 0, in_one_go) == len(frames)
    assert in_one_go.visits == visitor.visits


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(planned, min_size=1, max_size=6))
def test_positions_rise_and_what_is_safe_lies_behind_them(transactions: list[Planned]) -> None:
    frames = stream_of(transactions, with_lsn=True, confirmed_lsn=0)
    visitor = Recorder()
    FrameWalk(Swallowing(), confirmed_lsn=0).take([memoryview(frame.data) for frame in frames], 0, visitor)

    positions = [(visit[4], visit[5]) for visit in visitor.visits if visit[0] == "change"]
    assert positions == sorted(set(positions)), "none twice, none back"
    safe_lsn, highest = 0, 0
    for visit in visitor.visits:
        match visit:
            case ("change", _, _, _, int(commit_lsn), _):
                highest = commit_lsn
                assert safe_lsn <= commit_lsn, "Postgres sends it again if we confirmed only that"
            case ("commit", _, _, _, _, int(safe_lsn)):
                assert safe_lsn > highest
            case ("silence", int(next_safe_lsn)):
                assert next_safe_lsn > safe_lsn
                safe_lsn = next_safe_lsn
