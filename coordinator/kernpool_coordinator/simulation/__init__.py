"""An agent and its link in memory, for tests and simulations: the coordinator cannot tell it from a real one."""

from kernpool_coordinator.simulation.agent import SimAgent
from kernpool_coordinator.simulation.clock import ManualClock
from kernpool_coordinator.simulation.link import SimLink

__all__ = ["ManualClock", "SimAgent", "SimLink"]
