"""`penstock status`: what a running capture or shapes says of itself, for a person at a terminal.

It asks the process's own ops port, and so tells what that process knows; a process that is gone says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from penstock import exit_codes
from penstock.errors import PenstockError
from penstock.status import words
from penstock.status.model import ShapeReading, Status
from penstock.status.shape_words import shape_note, shape_sentence

_TIMEOUT_S: Final = 5.0
# A proxy for the world knows nothing of this machine's own ports.
_DIRECT: Final = build_opener(ProxyHandler({}))


class NoAnswer(PenstockError):
    """Nobody, or somebody else, listens on the ops port."""


def ask(url: str, token: str | None = None) -> Status:
    """Ask the process at `url`, with its OPS_TOKEN. Blocks; NoAnswer if that can't be done."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = Request(f"{url}/status", headers=headers)  # noqa: S310 - whose URL it is, says our own user
    try:
        with _DIRECT.open(request, timeout=_TIMEOUT_S) as answer:
            return msgspec.json.decode(answer.read(), type=Status)
    except HTTPError as error:
        if error.code == HTTPStatus.UNAUTHORIZED:
            raise NoAnswer(f"{url} wants another OPS_TOKEN. Fix: set OPS_TOKEN or OPS_TOKEN_FILE") from error
        raise NoAnswer(f"{url} answers {error.code}. Fix: give the --url of a penstock's ops port") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise NoAnswer(f"no penstock answers at {url}: {reason}. Fix: start it, or give its --url") from error


def exit_code(status: Status) -> int:
    """For scripts."""
    return exit_codes.OK if status.ready else exit_codes.FAILED


def as_json(status: Status) -> str:
    """The same for programs."""
    return msgspec.json.format(msgspec.json.encode(status), indent=2).decode()


def as_text(status: Status, url: str) -> str:
    """A line for each thing that matters: no zeros that tell nothing, and no row values."""
    return "\n".join(_lines(status, url))


def _lines(status: Status, url: str) -> Iterator[str]:
    yield f"{words.headline(status)} ({url})"
    for trouble in (*words.troubles(status), *words.warnings(status)):
        yield f"  {words.in_a_line(trouble)}"
    for fact in words.facts(status):
        yield f"  {fact.label:<8} {fact.sentence}"
    if status.shapes is not None:
        yield from _shape_lines(status.shapes.shapes)


def _shape_lines(shapes: Sequence[ShapeReading]) -> Iterator[str]:
    width = max((len(shape.name) for shape in shapes), default=0)
    for shape in shapes:
        failing = "FAILING, " if shape.error is not None else ""
        note = shape_note(shape)
        yield (
            f"  shape    {shape.name:<{width}}  {failing}{shape_sentence(shape)}{f': {note}' if note else ''}"
        )
