"""Clusters as rows of the store, and back."""

import json
from typing import Any

from sqlalchemy import Connection, select

from kernpool_coordinator.clusters.book import Cluster, ClusterState
from kernpool_coordinator.placement import Ask, Holding
from kernpool_coordinator.store import Delete, Put, schema


def put_cluster(cluster: Cluster) -> Put:
    """Write a cluster; should the store be away, the row is made anew when it is back."""

    def row() -> dict[str, Any]:
        return {
            "workspace": cluster.workspace,
            "name": cluster.name,
            "owner": cluster.owner,
            "state": str(cluster.state),
            "num_nodes": cluster.num_nodes,
            "asks": json.dumps({"asks": [ask.as_row() for ask in cluster.asks], "order": cluster.order}),
            "holdings": json.dumps([holding.as_row() for holding in cluster.holdings.values()]),
            "created_unix_s": cluster.created_unix_s,
        }

    return Put(schema.clusters, row(), row)


def delete_cluster(cluster: Cluster) -> Delete:
    """Remove a cluster that is gone."""
    return Delete(schema.clusters, {"workspace": cluster.workspace, "name": cluster.name})


def read_clusters(connection: Connection) -> list[tuple[Cluster, list[Holding]]]:
    """Read all, each with what it holds."""
    found = []
    for row in connection.execute(select(schema.clusters)):
        needs = json.loads(row.asks)
        cluster = Cluster(
            row.workspace,
            row.name,
            row.owner,
            row.num_nodes,
            tuple(Ask(**ask) for ask in needs["asks"]),
            (needs["order"][0], needs["order"][1]),
            row.created_unix_s,
            ClusterState(row.state),
        )
        found.append((cluster, [Holding.from_row(holding) for holding in json.loads(row.holdings)]))
    return found
