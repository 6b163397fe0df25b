"""Where work may go: what a node has, what an ask needs, one `fits()`, and the engine that chooses."""

from kernpool_coordinator.placement.amounts import Amounts, Ask, Holding, Shortage, fits
from kernpool_coordinator.placement.engine import Engine, FirstFit, Placement, Refusal
from kernpool_coordinator.placement.queue import Line, Start, Waiting, plan
from kernpool_coordinator.placement.room import Holder, Room

__all__ = [
    "Amounts",
    "Ask",
    "Engine",
    "FirstFit",
    "Holder",
    "Holding",
    "Line",
    "Placement",
    "Refusal",
    "Room",
    "Shortage",
    "Start",
    "Waiting",
    "fits",
    "plan",
]
