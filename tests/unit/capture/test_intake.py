from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.capture import intake
from penstock.capture.ack import AckTracker
from penstock.capture.intake import Batch, Intake
from penstock.decoding.wal2json import Wal2Json
from penstock.errors import ProtocolViolation
from penstock.kinesis.marked.prefix import PREFIX_BYTES, MarkPrefix, unmarked
from penstock.kinesis.write.event import NO_OBJECT, ChangeEvent
from penstock.kinesis.write.partition_key import Fallback, KeyedRelation, PartitionKeys
from penstock.model.change import Truncate
from penstock.model.key_indexes import KeyIndexes
from penstock.model.log_offset import OP_INFINITY, LogOffset
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.model.stream_position import History
from penstock.postgres.stream.walk import FrameWalk

NOW = 77.0
SERVER_TIME_US = 123_456_789
PK = b'[{"name":"id","type":"integer"}]'


class Parts(NamedTuple):
    intake: Intake
    walk: FrameWalk
    tracker: AckTracker
    keys: PartitionKeys

    def take(self, *frames: bytes) -> Batch:
        return self.intake.take([memoryview(frame) for frame in frames], 0, NOW)


def parts(
    *,
    start_lsn: int = 10,
    publish_transactions: bool = False,
    max_bytes: int = 10_000,
    window: int = 100,
    prefix: MarkPrefix | None = None,
) -> Parts:
    tracker = AckTracker(initial_lsn=start_lsn)
    keys = PartitionKeys(Wal2Json(), by_primary_key=True, fallback=Fallback.LSN)
    keys.learn(KeyedRelation(Relation("public", "t"), PK), KeyIndexes(["id"]))
    walk = FrameWalk(Wal2Json(), confirmed_lsn=start_lsn)
    intake = Intake(
        tracker=tracker,
        walk=walk,
        keys=keys,
        publish_transactions=publish_transactions,
        max_event_bytes=max_bytes,
        window=window,
        prefix=prefix,
    )
    return Parts(intake, walk, tracker, keys)


def xlogdata(payload: bytes, wal_start: int = 0) -> bytes:
    return struct.pack("!cqqq", b"w", wal_start, wal_start, SERVER_TIME_US) + payload


def keepalive(wal_end: int, *, reply: bool = False) -> bytes:
    return struct.pack("!cqqB", b"k", wal_end, SERVER_TIME_US, reply)


def boundary(action: str, commit_lsn: int, end_lsn: int) -> bytes:
    return xlogdata(
        f'{{"action":"{action}","lsn":"{format_lsn(commit_lsn)}","nextlsn":"{format_lsn(end_lsn)}"}}'.encode(),
        wal_start=end_lsn,
    )


def row(number: int, *, table: str = "t") -> bytes:
    return b'{"action":"I","schema":"public","table":"%b","columns":[{"name":"id","value":%d}],"pk":%b}' % (
        table.encode(),
        number,
        PK,
    )


def transaction(commit_lsn: int, end_lsn: int, *rows: int, wal_start: int = 0) -> list[bytes]:
    changes = [xlogdata(row(number), wal_start) for number in rows]
    return [boundary("B", commit_lsn, end_lsn), *changes, boundary("C", commit_lsn, end_lsn)]


def offsets(events: Sequence[ChangeEvent]) -> list[LogOffset]:
    return [event.offset for event in events]


def test_a_change_becomes_an_event_with_its_position_key_and_payload_untouched() -> None:
    some = parts()

    taken = some.take(*transaction(100, 110, 7, 8))

    first, second = taken.events
    assert (first.payload, first.partition_key, first.received_at) == (row(7), "public.t/7", NOW)
    assert offsets(taken.events) == [LogOffset(100, 0), LogOffset(100, 2)]
    assert (first.ack_id, second.ack_id) == (1, 2)
    assert (first.fault, first.is_pointer) == (None, False)
    assert taken[1:] == (4, None, None, False)


def test_when_a_transaction_was_committed_is_kept_until_it_is_delivered() -> None:
    some = parts()
    dated = f'{{"action":"B","timestamp":"2026-11-17 11:47:02+00","lsn":"{format_lsn(200)}"}}'.encode()
    undated, *rest = transaction(100, 110, 7)
    some.take(undated, *rest, xlogdata(dated, 210))
    sent_at = 946_684_800 + SERVER_TIME_US / 1_000_000

    assert some.intake.commit_times.oldest(10) == (100, sent_at), "when it was sent, if nothing else is known"
    assert some.intake.commit_times.oldest(110) == (200, 1_794_916_022.0)


def test_the_size_is_what_kinesis_counts() -> None:
    some = parts()
    some.keys.learn(KeyedRelation(Relation("public", "ë"), PK), KeyIndexes(["id"]))
    frames = [boundary("B", 100, 110), xlogdata(row(7)), xlogdata(row(7, table="ë"))]

    sizes = [event.record_size_bytes for event in some.take(*frames).events]

    assert sizes == [len(row(7)) + len(b"public.t/7"), len(row(7, table="ë")) + len(b"public.%C3%AB/7")]


def test_a_key_that_is_not_ascii_counts_in_bytes() -> None:
    tracker = AckTracker()
    intake = Intake(
        tracker=tracker,
        walk=FrameWalk(Wal2Json(), confirmed_lsn=0),
        keys=PartitionKeys(Wal2Json(), by_primary_key=False, fallback=Fallback.STATIC, static="ë"),
        publish_transactions=False,
        max_event_bytes=10_000,
        window=10,
    )

    taken = intake.take([memoryview(frame) for frame in transaction(100, 110, 7)], 0, NOW)

    assert taken.events[0].record_size_bytes == len(row(7)) + 2


def test_nothing_of_a_transaction_may_be_confirmed_before_all_of_it() -> None:
    some = parts(start_lsn=10)
    some.take(*transaction(100, 110, 7, 8))
    assert some.tracker.frontier_lsn == 10

    assert some.tracker.mark_published_by_id(1) is None
    assert some.tracker.frontier_lsn == 10
    assert some.tracker.mark_published_by_id(2) == 110


def test_a_transaction_is_confirmed_only_with_its_commit() -> None:
    some = parts(start_lsn=10)
    *head, commit = transaction(100, 110, 7)
    some.take(*head)

    some.tracker.mark_published_by_id(1)
    assert some.tracker.frontier_lsn == 10

    some.take(commit)
    assert some.tracker.frontier_lsn == 110


def test_without_lsns_in_the_frames_the_headers_tell_where_a_transaction_ends() -> None:
    made = parts()
    begin, commit = xlogdata(b'{"action":"B"}', wal_start=15), xlogdata(b'{"action":"C"}', wal_start=30)

    taken = made.take(begin, xlogdata(row(1), wal_start=15), commit)

    assert offsets(taken.events) == [LogOffset(15, 0)]
    assert made.tracker.frontier_lsn == 10
    assert made.tracker.mark_published_by_id(taken.events[0].ack_id) == 30


@pytest.mark.parametrize(
    "payload", [b'{"action":"C","lsn":"x","nextlsn":"y"}', b'{"action":"C"', b'{"action":"B"']
)
def test_a_boundary_that_cannot_be_read_is_a_violation(payload: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        parts().take(xlogdata(payload))


def test_an_empty_transaction_is_confirmed_at_once() -> None:
    some = parts()

    assert some.take(*transaction(100, 110)).events == []

    assert (some.tracker.frontier_lsn, some.tracker.pending_count) == (110, 0)


def test_change_lsns_may_go_backwards_between_transactions() -> None:
    some = parts()

    taken = some.take(*transaction(100, 110, 1, wal_start=90), *transaction(200, 210, 2, wal_start=50))

    assert offsets(taken.events) == [LogOffset(100, 0), LogOffset(200, 0)]
    assert some.tracker.mark_published_by_id(2) is None
    assert some.tracker.mark_published_by_id(1) == 210


def test_a_keepalive_between_transactions_is_confirmed_behind_what_is_pending() -> None:
    some = parts(start_lsn=10)
    some.take(keepalive(50))
    assert some.tracker.frontier_lsn == 50

    some.take(*transaction(100, 110, 7), keepalive(500))
    assert some.tracker.frontier_lsn == 50

    assert some.tracker.mark_published_by_id(1) == 500


def test_a_keepalive_inside_a_transaction_confirms_nothing() -> None:
    some = parts(start_lsn=10)
    begin, change, commit = transaction(100, 110, 7)

    some.take(begin, keepalive(100), change, keepalive(100))
    some.tracker.mark_published_by_id(1)
    assert some.tracker.frontier_lsn == 10

    some.take(commit)
    assert some.tracker.frontier_lsn == 110


def test_received_is_the_highest_position_heard_of() -> None:
    some = parts(start_lsn=10)
    heard = [some.walk.received_lsn]
    *frames, commit = transaction(100, 110, 1, 2, wal_start=90)
    begin, late_change, _ = transaction(400, 410, 3, wal_start=50)
    for frame in (*frames, keepalive(100), commit, keepalive(300), keepalive(200), begin, late_change):
        some.take(frame)
        heard.append(some.walk.received_lsn)

    assert heard == [10, 10, 90, 90, 100, 110, 300, 300, 300, 300]


def test_a_question_of_the_server_is_kept_until_it_is_answered() -> None:
    some = parts()

    some.take(keepalive(50, reply=True), keepalive(51))

    assert some.walk.reply_requested
    assert some.walk.server_time_us == SERVER_TIME_US


@pytest.mark.parametrize("inside", [False, True])
def test_logical_messages_are_counted_and_move_nothing(inside: bool) -> None:
    some = parts(start_lsn=10)
    begin, change, commit = transaction(100, 110, 7)
    message = xlogdata(b'{"action":"M","transactional":false,"prefix":"p","content":"c"}', wal_start=5_000)

    taken = some.take(*([begin, message, change, commit] if inside else [message, begin, change, commit]))

    assert offsets(taken.events) == [LogOffset(100, 0)]
    assert (some.walk.messages, some.walk.received_lsn) == (1, 110)
    assert some.tracker.mark_published_by_id(1) == 110


@pytest.mark.parametrize("payload", [b"", b"not json", b'{"action":"I","t":"a"b"}', b'{"x":1}'])
def test_a_payload_that_cannot_be_read_is_published_all_the_same(payload: bytes) -> None:
    some = parts()
    some.keys.learn(KeyedRelation(Relation("", ""), b""), KeyIndexes())
    begin, _, commit = transaction(100, 110, 7)

    (event,) = some.take(begin, xlogdata(payload, wal_start=0x20), commit).events

    assert (event.payload, event.partition_key, event.offset) == (payload, "0/20", LogOffset(100, 0))
    assert some.tracker.mark_published_by_id(event.ack_id) == 110


def test_an_unknown_relation_stops_before_its_frame_and_nothing_is_taken_twice() -> None:
    some = parts()
    frames = [boundary("B", 100, 110), xlogdata(row(1)), xlogdata(row(2, table="u")), xlogdata(row(3))]
    views = [memoryview(frame) for frame in frames]

    first = some.intake.take(views, 0, NOW)
    assert (offsets(first.events), first.next_frame) == ([LogOffset(100, 0)], 2)
    assert first.unknown == KeyedRelation(Relation("public", "u"), PK)

    some.keys.learn(first.unknown, KeyIndexes(["id"]))
    second = some.intake.take(views, first.next_frame, NOW)
    assert offsets(second.events) == [LogOffset(100, 2), LogOffset(100, 4)]
    assert (second.next_frame, second.unknown) == (4, None)
    assert (some.intake.totals.changes, some.tracker.pending_count) == (3, 3)


def test_an_event_that_is_too_large_is_registered_in_its_place_and_handed_out_alone() -> None:
    limit = len(row(1)) + len("public.t/1")
    some = parts(max_bytes=limit)
    frames = [boundary("B", 100, 110), xlogdata(row(1)), xlogdata(row(22)), xlogdata(row(3))]
    views = [memoryview(frame) for frame in frames]

    first = some.intake.take(views, 0, NOW)

    assert offsets(first.events) == [LogOffset(100, 0)], "as large as the limit is not too large"
    assert first.unfit is not None
    assert (first.unfit.offset, first.unfit.ack_id, first.next_frame) == (LogOffset(100, 2), 2, 3)
    assert offsets(some.intake.take(views, 3, NOW).events) == [LogOffset(100, 4)]


MARK = MarkPrefix(History(1, {}), "0123456789ab")


def test_in_a_marked_stream_each_event_has_its_prefix_its_table_and_its_size() -> None:
    some = parts(prefix=MARK, publish_transactions=True)
    truncate = xlogdata(b'{"action":"T","schema":"public","table":"t"}')

    taken = some.take(
        boundary("B", 100, 110), xlogdata(row(7)), truncate, boundary("C", 100, 110), keepalive(120)
    )

    assert [event.data[8:46] for event in taken.events] == [
        b"00000001.0000000000000064.000000000000",
        b"00000001.0000000000000064.000000000001",
        b"00000001.0000000000000064.000000000003",
        b"00000001.0000000000000064.FFFFFFFFFFFF",
    ]
    table = Relation("public", "t")
    assert [event.relation for event in taken.events] == [None, table, table, None]
    assert [isinstance(event.table, Truncate) for event in taken.events] == [False, False, True, False]
    assert all(
        event.record_size_bytes == len(event.data) + len(event.partition_key) for event in taken.events
    )
    assert taken.events[1].payload == unmarked(taken.events[1].data) == row(7)
    assert taken.events[1].partition_key == "public.t/7"


def test_the_prefix_counts_in_what_is_too_large() -> None:
    some = parts(prefix=MARK, max_bytes=len(row(7)) + len("public.t/7") + PREFIX_BYTES - 2)
    taken = some.take(*transaction(100, 110, 7))
    assert taken.events == []
    assert taken.unfit is not None
    assert taken.unfit.fault is None


def test_what_is_too_large_is_not_looked_at_in_passing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    monkeypatch.setattr(intake, "validate", seen.append)
    some = parts(prefix=MARK, max_bytes=len(row(7)) + len("public.t/7") + PREFIX_BYTES)
    large = row(8).replace(b'"pk"', b'"pad":"' + b"x" * 100 + b'","pk"')
    taken = some.take(boundary("B", 100, 110), xlogdata(row(7)), xlogdata(large))
    assert taken.unfit is not None
    assert taken.unfit.payload == large
    assert set(seen) == {row(7)}


def test_what_is_no_object_is_unfit_for_a_marked_stream() -> None:
    """A type name with quotes in it makes wal2json's JSON invalid."""
    some = parts(prefix=MARK)
    broken = row(7)[:-1]

    taken = some.take(boundary("B", 100, 110), xlogdata(broken), xlogdata(row(8)))

    assert [event.payload for event in taken.events] == [broken, row(8)]
    assert [event.fault for event in taken.events] == [NO_OBJECT, None]
    assert (taken.has_faults, taken.next_frame) == (True, 3)
    assert not some.take(xlogdata(row(9))).has_faults


ODD_COLUMN = b'},{"name":"odd","type":"we""ird","value":"x"}'


def odd(number: int) -> bytes:
    """A change of a table that was altered: one of its columns has a type with a quote in its name now."""
    return row(number).replace(b"}]", ODD_COLUMN + b"]", 1)


@pytest.mark.parametrize("before", [0, 1, 5])
@pytest.mark.parametrize("alike", [1, 2, 9])
def test_a_table_that_is_altered_to_an_odd_type_is_noticed_by_its_first_change(
    before: int, alike: int
) -> None:
    """However many changes were read that were in order, and however the frames come."""
    some = parts(prefix=MARK)
    some.take(*transaction(100, 110, *range(1, before + 1)))

    taken = some.take(
        *transaction(200, 210, 7),
        boundary("B", 300, 310),
        *[xlogdata(odd(number)) for number in range(alike)],
        boundary("C", 300, 310),
        *transaction(400, 410, 8),
    )

    assert [event.fault for event in taken.events] == [None, *[NO_OBJECT] * alike, None]
    assert taken.has_faults
    assert not some.take(*transaction(500, 510, 9)).has_faults


def test_a_transaction_that_alters_its_table_is_noticed_by_its_last_change() -> None:
    some = parts(prefix=MARK)
    some.take(*transaction(100, 110, 1, 2))
    taken = some.take(boundary("B", 200, 210), *map(xlogdata, [row(3), row(4), odd(5), odd(6)]))
    assert [event.fault for event in taken.events] == [None, None, NO_OBJECT, NO_OBJECT]


def test_updates_that_leave_a_toasted_column_out_prove_nothing_for_others() -> None:
    some = parts(prefix=MARK)
    whole, odd_one = [each.replace(b'"I"', b'"U"') for each in (row(1), odd(1))]
    some.take(boundary("B", 100, 110), xlogdata(whole), xlogdata(whole), boundary("C", 100, 110))
    updates = [whole, odd_one, whole, odd_one, odd_one, whole]
    taken = some.take(boundary("B", 200, 210), *map(xlogdata, updates))
    assert [event.fault for event in taken.events] == [
        None if update is whole else NO_OBJECT for update in updates
    ]


def test_a_table_that_had_a_fault_is_looked_at_change_by_change() -> None:
    """An insert was in order before the table was altered."""
    some = parts(prefix=MARK)
    some.take(*transaction(100, 110, 1))
    whole, odd_one = [each.replace(b'"I"', b'"U"') for each in (row(1), odd(1))]
    some.take(boundary("B", 200, 210), xlogdata(whole), boundary("C", 200, 210))
    some.take(boundary("B", 300, 310), xlogdata(odd_one), boundary("C", 300, 310))
    updates = [whole, odd_one, odd_one, whole]
    taken = some.take(boundary("B", 400, 410), *map(xlogdata, updates))
    assert [event.fault for event in taken.events] == [None, NO_OBJECT, NO_OBJECT, None]


def test_a_change_of_another_kind_ends_a_run() -> None:
    some = parts(prefix=MARK)
    some.take(*transaction(100, 110, 1, 2))
    other = b'{"action":"T","schema":"public","table":"t"}'
    taken = some.take(boundary("B", 200, 210), *map(xlogdata, [row(3), odd(4), other, row(5)]))
    assert [event.fault for event in taken.events] == [None, NO_OBJECT, None, None]


def test_what_is_json_but_no_object_is_unfit_too() -> None:
    some = parts(prefix=MARK)
    taken = some.take(boundary("B", 100, 110), xlogdata(b"[7]"), xlogdata(row(8)))
    assert [event.fault for event in taken.events] == [NO_OBJECT, None]
    assert taken.has_faults


def test_a_table_whose_name_is_no_utf_8_goes_into_a_marked_stream_without_one() -> None:
    """Frames are in the encoding of the database: LATIN1, or anything."""
    some = parts(prefix=MARK)
    payload = b'{"action":"I","schema":"public","table":"caf\xe9","columns":[{"name":"id","value":7}]}'

    (event,) = some.take(boundary("B", 100, 110), xlogdata(payload), boundary("C", 100, 110)).events

    assert (event.payload, event.relation, event.fault) == (payload, None, None)


def test_a_full_window_stops_reading_until_it_moves() -> None:
    some = parts(window=2)
    views = [memoryview(frame) for frame in [*transaction(100, 110, 1, 2, 3), keepalive(500)]]
    taken = some.intake.take(views, 0, NOW)
    while not some.intake.window_is_full:
        taken = some.intake.take(views, taken.next_frame, NOW)

    assert some.tracker.pending_count == 2
    assert some.intake.take(views, taken.next_frame, NOW) == Batch([], taken.next_frame)

    some.tracker.mark_published_by_id(1)
    assert not some.intake.window_is_full
    (event,) = some.intake.take(views, taken.next_frame, NOW).events
    assert event.payload == row(3)


def test_every_call_with_room_takes_something() -> None:
    some = parts(window=1)
    frames = [*transaction(100, 110), *transaction(200, 210), *transaction(300, 310, 1)]
    views = [memoryview(frame) for frame in frames]
    start, calls = 0, 0
    while start < len(views):
        assert not some.intake.window_is_full
        start, before = some.intake.take(views, start, NOW).next_frame, start
        assert start > before
        calls += 1
        if some.tracker.pending_count:
            some.tracker.mark_published_by_id(1)

    assert some.tracker.frontier_lsn == 310


def test_begin_and_commit_can_be_published_round_their_changes() -> None:
    some = parts(start_lsn=10, publish_transactions=True)
    frames = transaction(100, 110, 7)

    begin, change, commit = some.take(*frames).events

    assert begin.offset < change.offset < commit.offset == LogOffset(100, OP_INFINITY)
    assert (begin.payload, commit.payload) == (frames[0][25:], frames[2][25:])
    assert begin.partition_key == "0/6E", "the fallback"
    assert some.tracker.mark_published_ids([begin.ack_id, change.ack_id]) is None
    assert some.tracker.mark_published_by_id(commit.ack_id) == 110


def test_totals() -> None:
    some = parts()

    taken = some.take(*transaction(100, 110, 1, 2), *transaction(200, 210), keepalive(300))

    totals = some.intake.totals
    assert (totals.changes, totals.transactions, some.walk.messages) == (2, 2, 0)
    assert totals.bytes == sum(event.record_size_bytes for event in taken.events)


@pytest.mark.parametrize(
    "frame",
    [b"", b"x", b"k", keepalive(5)[:-1]],
    ids=["empty", "unknown tag", "tag alone", "short keepalive"],
)
def test_a_frame_that_is_unknown_is_a_violation(frame: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        parts().take(frame)


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([xlogdata(row(1))], id="a change outside"),
        pytest.param([boundary("C", 100, 110)], id="a commit outside"),
        pytest.param([boundary("B", 100, 110), boundary("B", 200, 210)], id="a begin inside"),
        pytest.param([boundary("B", 100, 110), boundary("C", 200, 210)], id="another's commit"),
    ],
)
def test_transactions_are_whole_and_never_interleaved(frames: Sequence[bytes]) -> None:
    with pytest.raises(ProtocolViolation):
        parts().take(*frames)


lengths = st.lists(st.integers(0, 4), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(lengths=lengths, quiet=st.lists(st.booleans(), min_size=24), data=st.data())
def test_the_frontier_stays_below_every_commit_that_is_not_wholly_published(
    lengths: Sequence[int], quiet: Sequence[bool], data: st.DataObject
) -> None:
    """Whatever comes between, and in whichever order the results come."""
    some = parts(start_lsn=10)
    commits: dict[int, int] = {}
    lsn = 10
    for length in lengths:
        commit_lsn, end_lsn = lsn + 5, lsn + 9
        begin, *changes, commit = transaction(commit_lsn, end_lsn, *range(length))
        frames = [begin, *changes, keepalive(commit_lsn), commit]
        frames += [keepalive(end_lsn + 2)] if quiet[length] else []
        commits |= {event.ack_id: event.commit_lsn for event in some.take(*frames).events}
        lsn = end_lsn + 2 * quiet[length]

    for ack_id in data.draw(st.permutations(sorted(commits))):
        some.tracker.mark_published_by_id(ack_id)
        del commits[ack_id]
        assert some.tracker.frontier_lsn <= min(commits.values(), default=lsn)
    assert some.tracker.frontier_lsn == lsn
