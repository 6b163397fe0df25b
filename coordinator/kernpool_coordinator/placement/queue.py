"""First in, first out, with what fits: who of those that wait may start now.

The line is ordered by priority, then by age. The first that cannot start now, but could once those before it have
ended, is the *head*. A later one may overtake the head only if the head would still find its place when all that
started before the head has ended. So a small job runs beside a waiting large one, and delays it by nothing. One that
no node could ever take is nobody's head: it waits without holding up the line.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from kernpool_coordinator.placement.amounts import Ask, Holding
from kernpool_coordinator.placement.engine import Engine, Placement, Refusal, first_fitting
from kernpool_coordinator.placement.room import Order, Room

TRIES_MAX: Final = 256
"""Different asks tried in one pass: bounds a pass over a queue of thousands."""


@final
@dataclass(frozen=True, slots=True)
class Waiting:
    """One that waits for its place."""

    key: str
    asks: tuple[Ask, ...]
    """Alternatives, best first."""
    count: int
    """Distinct nodes."""
    order: Order
    avoid: frozenset[str] = frozenset()
    """Nodes that refused it lately."""


@final
@dataclass(frozen=True, slots=True)
class Start:
    """It may start here."""

    waiting: Waiting
    placement: Placement


@final
@dataclass(frozen=True, slots=True)
class Line:
    """It waits on, and why."""

    waiting: Waiting
    sentence: str


def plan(line: Iterable[Waiting], rooms: Sequence[Room], engine: Engine) -> Iterator[Start | Line]:
    """Go through the line in order. Take each Start's holdings before asking for the next answer."""
    head: Waiting | None = None
    refused: dict[tuple[tuple[Ask, ...], int, frozenset[str]], str] = {}
    for waiting in line:
        signature = (waiting.asks, waiting.count, waiting.avoid)
        if signature in refused:
            yield Line(waiting, refused[signature])
            continue
        if len(refused) >= TRIES_MAX:
            yield Line(waiting, f"waits behind {len(refused)} others that ask for different things")
            continue
        answer = _try(waiting, head, rooms, engine)
        if isinstance(answer, Placement):
            yield Start(waiting, answer)
            continue
        refused[signature] = answer.sentence
        if head is None and not answer.hopeless and _place_later(waiting, rooms):
            head = waiting
        yield Line(waiting, answer.sentence)


def _try(waiting: Waiting, head: Waiting | None, rooms: Sequence[Room], engine: Engine) -> Placement | Refusal:
    allowed = [room for room in rooms if room.node_id not in waiting.avoid] if waiting.avoid else rooms
    answer = engine.place(allowed, waiting.asks, waiting.count)
    if isinstance(answer, Placement) and head is not None and not _place_later(head, rooms, answer.holdings):
        return Refusal(f"would fit now, but would delay {head.key}, which came first", hopeless=False)
    return answer


def _place_later(head: Waiting, rooms: Sequence[Room], besides: tuple[Holding, ...] = ()) -> bool:
    """Whether the head finds its place once all that went before it has ended, with `besides` still there."""
    extra = {holding.node_id: holding for holding in besides}
    return any(
        len(first_fitting(rooms, ask, head.count, lambda room: room.free_later(head.order, extra.get(room.node_id))))
        == head.count
        for ask in head.asks
    )
