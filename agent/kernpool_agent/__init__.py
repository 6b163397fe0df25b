"""kp-agent, the node daemon: link, inventory, workloads, data plane and journal."""
