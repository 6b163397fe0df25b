"""Chooses nodes: the interface, and the first-fit engine behind it.

An engine is given rooms and asks and only answers; it changes nothing. Whoever acts on the answer takes the holdings
at once, in the same tick, so no plan is ever stale.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from kernpool_coordinator.placement.amounts import Amounts, Ask, Holding, fits
from kernpool_coordinator.placement.room import Room

NODES_NAMED_MAX = 3
"""Nodes named in a sentence that says why something waits."""


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """A place for every rank, all on distinct nodes."""

    ask: Ask
    """The alternative that was chosen, the same on every node."""
    holdings: tuple[Holding, ...]
    """By rank."""


@final
@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no place now."""

    sentence: str
    hopeless: bool
    """Not even if everything that is placed ended would there be one: only a new node helps."""


class Engine(Protocol):
    """All ranks or none: either `count` distinct rooms take one of the asks, or it says why not."""

    def place(self, rooms: Sequence[Room], asks: Sequence[Ask], count: int) -> Placement | Refusal:
        """Try the asks in order against what is free now."""
        ...


@final
class FirstFit:
    """Takes the first rooms that fit, in the order given. Packs well enough for few nodes, costs one look a room."""

    def place(self, rooms: Sequence[Room], asks: Sequence[Ask], count: int) -> Placement | Refusal:
        """Try the asks in order against what is free now."""
        for ask in asks:
            chosen = first_fitting(rooms, ask, count, Room.free)
            if len(chosen) == count:
                return Placement(ask, tuple([room.holding_for(ask) for room in chosen]))
        return _refusal(rooms, asks, count)


def first_fitting(rooms: Sequence[Room], ask: Ask, count: int, there: Callable[[Room], Amounts]) -> list[Room]:
    """Up to `count` open rooms whose `there` amounts take the ask."""
    chosen: list[Room] = []
    for room in rooms:
        if room.open and fits(there(room), ask) is None:
            chosen.append(room)
            if len(chosen) == count:
                break
    return chosen


def _refusal(rooms: Sequence[Room], asks: Sequence[Ask], count: int) -> Refusal:
    open_rooms = [room for room in rooms if room.open]
    needs = _needed(asks[0], count)
    if len(open_rooms) < count:
        return Refusal(f"needs {needs}; {_counted_nodes(len(open_rooms), len(rooms))}", hopeless=True)
    for ask in asks:
        able = first_fitting(open_rooms, ask, count, lambda room: room.total)
        if len(able) == count:
            return Refusal(f"needs {needs}; {_why_not_now(open_rooms, ask)}", hopeless=False)
    return Refusal(f"needs {needs}; no node could ever take it: {_why_never(open_rooms, asks[0])}", hopeless=True)


def _needed(ask: Ask, count: int) -> str:
    nodes = "a node" if count == 1 else f"{count} nodes"
    return f"{nodes} with {ask}{' each' if count > 1 else ''}" if ask.is_anything else nodes


def _counted_nodes(ready: int, known: int) -> str:
    if known == 0:
        return "no node has joined yet"
    return f"{ready} of {known} node{'' if known == 1 else 's'} {'is' if ready == 1 else 'are'} ready"


def _why_not_now(rooms: Sequence[Room], ask: Ask) -> str:
    able = [room for room in rooms if fits(room.total, ask) is None]
    return _list_of_shortages(able, ask, Room.free)


def _why_never(rooms: Sequence[Room], ask: Ask) -> str:
    return _list_of_shortages(rooms, ask, lambda room: room.total)


def _list_of_shortages(rooms: Sequence[Room], ask: Ask, there: Callable[[Room], Amounts]) -> str:
    short = [(room, shortage) for room in rooms if (shortage := fits(there(room), ask)) is not None]
    named = [f"{room.name}: {shortage}" for room, shortage in short[:NODES_NAMED_MAX]]
    more = f" and {len(short) - len(named)} more nodes" if len(short) > len(named) else ""
    return "; ".join(named) + more
