"""kp-agent, the node daemon: link, inventory, workloads, data plane and journal."""

__version__ = "0.1.0"
