"""What is known of the slot, compared with what is found: holes in the stream, and switches of timelines."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from penstock.model.lsn import format_lsn
from penstock.postgres.slot.note import SlotNote
from penstock.postgres.timeline import ServerIdentity


class Discovery(StrEnum):
    """Something that happened to the slot or the server, and that readers of the stream must know."""

    GAP = "GAP"
    """Changes are missing from the stream."""
    TIMELINE_SWITCHED = "timeline_switched"
    """A standby was promoted: LSNs go on from the point at which it left the former history."""
    SYSTEM_CHANGED = "system_changed"
    """Another server: LSNs have nothing to do with those before."""


class SlotFinding(NamedTuple):
    """A discovery, with what to say of it."""

    kind: Discovery
    sentence: str
    fields: Mapping[str, object] = {}
    """The positions in it, for machines."""

    @property
    def is_of_another_history(self) -> bool:
        """Whether its two positions are of different timelines."""
        return self.fields.get("timeline") != self.fields.get("last_known_timeline")


def compare(known: SlotNote | None, server: ServerIdentity, start_lsn: int) -> list[SlotFinding]:
    """What has happened since the note was written, if the slot now starts at `start_lsn`.

    1. Nothing known: nothing to say.
    2. Another system id, or a timeline that doesn't descend from the known one: positions can't be compared,
       so changes may be missing, and that is said.
    3. A later timeline: the history that we know ended at its switch point. What was confirmed beyond that
       never happened in the new one.
    4. Everything up to the note (and not beyond the switch point) is in the stream. A slot that starts
       behind it was made or moved by somebody else: what lies between is missing.
    """
    if known is None:
        return []
    if known.system_id != server.system_id:
        return [
            SlotFinding(
                Discovery.SYSTEM_CHANGED,
                f"the server's system id is {server.system_id}, it was {known.system_id}: another server, or"
                " one made by initdb, a dump or pg_upgrade. LSNs before and after can't be compared",
            ),
            _gap(known, server, start_lsn, "the slot is of another server"),
        ]
    if known.timeline == server.timeline:
        return _behind(known.confirmed_lsn, known, server, start_lsn)
    switch_lsn = server.switch_points.get(known.timeline)
    if switch_lsn is None:
        return [
            _gap(
                known, server, start_lsn,
                f"timeline {server.timeline} of this server doesn't descend from timeline {known.timeline}",
            )
        ]  # fmt: skip
    switched = (
        f"timeline {known.timeline} was left at {format_lsn(switch_lsn)}; this is timeline {server.timeline}"
    )
    if known.confirmed_lsn > switch_lsn:
        switched += (
            f". The stream has changes up to {format_lsn(known.confirmed_lsn)} of the former: those from"
            f" {format_lsn(switch_lsn)} on never happened here, and LSNs repeat from there"
        )
    reached = min(known.confirmed_lsn, switch_lsn)
    return [SlotFinding(Discovery.TIMELINE_SWITCHED, switched), *_behind(reached, known, server, start_lsn)]


def latest(note: SlotNote | None, memory: SlotNote | None) -> SlotNote | None:
    """What is known last, of the note and of what this process remembers.

    After a failover the note is as old as the standby's log, and the process may know of more. A process that
    comes from another server knows where the stream comes from.
    """
    if note is None or memory is None:
        return note or memory
    if note.system_id != memory.system_id:
        return memory
    return max(note, memory, key=lambda known: (known.timeline, known.confirmed_lsn))


def _behind(reached: int, known: SlotNote, server: ServerIdentity, start_lsn: int) -> list[SlotFinding]:
    if start_lsn <= reached:
        return []
    known = known._replace(confirmed_lsn=reached)
    return [_gap(known, server, start_lsn, "the slot was gone, or somebody moved it")]


def _gap(known: SlotNote, server: ServerIdentity, start_lsn: int, why: str) -> SlotFinding:
    return SlotFinding(
        Discovery.GAP,
        f"{why}. The stream has everything up to {format_lsn(known.confirmed_lsn)} (timeline"
        f" {known.timeline}), and goes on at {format_lsn(start_lsn)} (timeline {server.timeline}): changes"
        " between these positions, if there were any, are missing. Fix: take new snapshots downstream",
        {
            "last_known_lsn": format_lsn(known.confirmed_lsn),
            "last_known_timeline": known.timeline,
            "start_lsn": format_lsn(start_lsn),
            "timeline": server.timeline,
        },
    )


class SlotMemory:
    """What this process knows by itself, for servers on which no note can be kept."""

    def __init__(self) -> None:
        self._known: SlotNote | None = None

    @property
    def known(self) -> SlotNote | None:
        """The highest position at which the slot was seen, and on which server."""
        return self._known

    def saw(self, server: ServerIdentity, lsn: int) -> None:
        """The slot exists and stands at this position, or we have confirmed it."""
        known = self._known
        if (
            known is not None
            and (known.system_id, known.timeline) == server[:2]
            and known.confirmed_lsn >= lsn
        ):
            return
        self._known = SlotNote(server.system_id, server.timeline, lsn)
