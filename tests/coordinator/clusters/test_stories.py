"""Clusters: a named hold with a line of its own."""

from typing import Any

import pytest

from kernpool_coordinator.clusters.book import Cluster, ClusterState, IllegalClusterStepError
from kernpool_coordinator.errors import ConflictError, InvalidError, NotFoundError
from kernpool_coordinator.placement import Ask
from kernpool_coordinator.simulation import SimAgent
from kernpool_mesh.messages import Gpu


async def cluster(stage: Any, name: str = "dev") -> dict[str, Any]:
    found: dict[str, Any] = await stage.plane.cluster(stage.ann, name)
    return found


async def test_launch_makes_a_cluster_that_stays(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch(cluster="dev", resources={"cpus": "3+"})
    await stage.until_state(job_id, "running")
    body = await cluster(stage)
    assert (body["state"], body["nodes"], body["jobs_running"]) == ("up", ["n-a"], 1)
    link.tell(link.agent.finish(job_id))
    await stage.plane.wait_job(stage.ann, job_id, 10)
    free = (await stage.plane.node(stage.ann, "n-a"))["free"]
    assert free["cpus"] == 1
    second = await stage.launch(cluster="dev", must_exist=True, resources={"cpus": 3})
    await stage.until_state(second, "running")


async def test_exec_needs_the_cluster(stage: Any) -> None:
    await stage.open()
    with pytest.raises(NotFoundError, match="no cluster dev") as caught:
        await stage.launch(cluster="dev", must_exist=True)
    assert caught.value.hint == "kernpool launch -c dev FILE"
    with pytest.raises(InvalidError):
        await stage.launch(must_exist=True)


async def test_what_never_fits_the_cluster_is_refused_at_once(stage: Any) -> None:
    await stage.open()
    await stage.join(SimAgent("n-a"))
    await stage.launch(cluster="dev", resources={"cpus": 2})
    with pytest.raises(ConflictError, match="3 CPUs asked, 2 there"):
        await stage.launch(cluster="dev", resources={"cpus": 3})
    with pytest.raises(ConflictError, match="it has 1 node, the task asks for 2"):
        await stage.launch(cluster="dev", num_nodes=2)


async def test_jobs_of_a_cluster_share_its_hold_and_nothing_else(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    ids = [await stage.launch(cluster="dev", resources={"cpus": 2}) for _ in range(2)]
    await stage.until_state(ids[0], "running")
    waiting = await stage.job(ids[1])
    assert waiting["state"] == "pending"
    assert waiting["detail"].startswith("waits in cluster dev: needs a node with 2 CPUs")
    link.tell(link.agent.finish(ids[0]))
    await stage.until_state(ids[1], "running")


async def test_a_small_job_in_a_cluster_overtakes_a_blocked_one(stage: Any) -> None:
    """Jobs of 3, 3 and 1 CPUs in a hold of 4: the small one runs beside the first, and the second is not delayed."""
    await stage.open()
    await stage.join(SimAgent("n-a"))
    base = await stage.launch(cluster="dev", resources={"cpus": "4+"})
    await stage.plane.cancel_job(stage.ann, base)
    await stage.plane.wait_job(stage.ann, base, 10)
    first, second, small = [await stage.launch(cluster="dev", resources={"cpus": n}) for n in (3, 3, 1)]
    await stage.until_state(small, "running")
    assert (await stage.state(first), await stage.state(second)) == ("running", "pending")


async def test_gpus_of_a_cluster_are_given_out_within_it(stage: Any) -> None:
    await stage.open()
    gpus = [Gpu(index, f"GPU-{index}", "H100", 80_000) for index in range(8)]
    link = await stage.join(SimAgent("n-a", gpus=gpus))
    first = await stage.launch(resources={"accelerators": "H100:2"})
    await stage.until_state(first, "running")
    held = await stage.launch(cluster="dev", resources={"accelerators": "H100:4"})
    await stage.until_state(held, "running")
    link.tell(link.agent.finish(held))
    pair = [await stage.launch(cluster="dev", resources={"accelerators": "H100:2"}) for _ in range(2)]
    for job_id in pair:
        await stage.until_state(job_id, "running")
    given = {order.job_id: order.gpu_indices for order in link.agent.messages}
    assert given == {first: [0, 1], held: [2, 3, 4, 5], pair[0]: [2, 3], pair[1]: [4, 5]}


async def test_a_cluster_waits_for_its_nodes_and_says_why(stage: Any) -> None:
    await stage.open()
    await stage.join(SimAgent("n-a"))
    job_id = await stage.launch(cluster="dev", num_nodes=2)
    assert (await cluster(stage))["state"] == "pending"
    assert "waits for cluster dev, which waits: needs 2 nodes" in (await stage.job(job_id))["detail"]
    await stage.join(SimAgent("n-b"))
    await stage.until_state(job_id, "running")
    assert (await cluster(stage))["nodes"] == ["n-a", "n-b"]


async def test_down_ends_its_jobs_and_gives_all_back(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    running = await stage.launch(cluster="dev", resources={"cpus": 4})
    waiting = await stage.launch(cluster="dev", resources={"cpus": 4})
    await stage.until_state(running, "running")
    assert (await stage.plane.down(stage.ann, "dev"))["state"] == "down"
    for job_id in (running, waiting):
        body = await stage.plane.wait_job(stage.ann, job_id, 10)
        assert (body["state"], body["detail"]) == ("cancelled", "cancelled by ann: cluster dev was taken down")
    await stage.until(lambda: not stage.plane._rooms.scheduler.clusters.clusters)
    with pytest.raises(NotFoundError):
        await cluster(stage)
    assert (await stage.plane.node(stage.ann, "n-a"))["free"]["cpus"] == 4
    assert link.agent.live(running) is None
    again = await stage.launch(cluster="dev")
    await stage.until_state(again, "running")


async def test_a_cluster_that_is_going_down_takes_no_jobs(stage: Any) -> None:
    """Its node is away, so its job cannot be ended yet: the name is not free before that."""
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch(cluster="dev")
    await stage.until_state(job_id, "running")
    link.cut()
    await stage.plane.down(stage.ann, "dev")
    assert (await cluster(stage))["state"] == "down"
    with pytest.raises(ConflictError, match="being taken down"):
        await stage.launch(cluster="dev")
    await stage.reopen()
    assert (await cluster(stage))["state"] == "down"
    await stage.join(link.agent)
    await stage.until(lambda: not stage.plane._rooms.scheduler.clusters.clusters)


async def test_a_cluster_and_its_jobs_outlive_the_coordinator(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    running = await stage.launch(cluster="dev", resources={"cpus": 2})
    waiting = await stage.launch(cluster="dev", resources={"cpus": 2})
    other = await stage.launch(resources={"cpus": 3})
    await stage.until_state(running, "running")
    await stage.reopen()
    again = await stage.join(link.agent)
    body = await cluster(stage)
    assert (body["state"], body["nodes"], body["jobs_running"], body["jobs_waiting"]) == ("up", ["n-a"], 1, 1)
    assert await stage.state(other) == "pending"
    again.tell(again.agent.finish(running))
    await stage.until_state(waiting, "running")
    assert await stage.state(other) == "pending"


async def test_a_lost_node_of_a_cluster_is_replaced(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch(cluster="dev")
    await stage.until_state(job_id, "running")
    await stage.plane.remove_node(stage.ann, "n-a")
    assert ((await cluster(stage))["state"], (await cluster(stage))["nodes"]) == ("pending", [])
    other = await stage.join(SimAgent("n-b"))
    assert (await cluster(stage))["state"] == "up"
    await stage.pass_time(5, beating=(other,))
    body = await stage.until_state(job_id, "running")
    assert body["attempts"][0]["node"] == "n-b"
    assert link.closed


async def test_names_belong_to_their_workspace(stage: Any) -> None:
    await stage.open()
    await stage.join(SimAgent("n-a"))
    await stage.launch(cluster="dev")
    with pytest.raises(NotFoundError):
        await stage.plane.cluster(stage.eve, "dev")
    assert (await stage.plane.clusters(stage.eve)).items == []
    assert [one["name"] for one in (await stage.plane.clusters(stage.bob)).items] == ["dev"]


async def test_clusters_are_paged(stage: Any) -> None:
    await stage.open()
    for name in ("c", "a", "b"):
        await stage.launch(cluster=name)
    first = await stage.plane.clusters(stage.ann, limit=2)
    second = await stage.plane.clusters(stage.ann, limit=2, after=first.next)
    assert [one["name"] for one in first.items + second.items] == ["a", "b", "c"]


def test_a_step_that_is_not_in_the_table_is_refused() -> None:
    one = Cluster("default", "dev", "ann", 1, (Ask(),), (0, 1), 0.0, ClusterState.DOWN)
    with pytest.raises(IllegalClusterStepError, match="down -> up"):
        one.step(ClusterState.UP)
