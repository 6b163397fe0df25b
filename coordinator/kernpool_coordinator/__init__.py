"""The control plane: HTTP API, placement, jobs, clusters, nodes and the store."""
