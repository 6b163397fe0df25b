"""Jobs through the control plane, with agents in memory and a real store."""

import asyncio
from typing import Any

import pytest

from kernpool.bodies import SubmitJob
from kernpool_coordinator.errors import ConflictError, InvalidError, NotFoundError, TooLargeError
from kernpool_coordinator.simulation import SimAgent
from kernpool_mesh.messages import AttemptState, Gpu, Resources, StartAttempt, StopAttempt
from kernpool_mesh.reasons import EndReason


async def test_a_job_runs_and_succeeds(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch("echo hi", name="hello")
    await stage.until_state(job_id, "running")
    link.tell(link.agent.finish(job_id))
    body = await stage.plane.wait_job(stage.ann, job_id, 10)
    assert (body["state"], body["reason"], body["exit_code"]) == ("succeeded", "exited", 0)
    await stage.until(lambda: link.agent.repeat_ends() == [])
    order = link.agent.messages[0]
    assert (order.name, order.run, order.setup) == ("hello", "echo hi", "")


async def test_the_start_is_sent_only_after_the_commit(stage: Any) -> None:
    """A coordinator that dies between the two must not have work running that it knows nothing of."""
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    await stage.settled()
    commits = stage.plane._rooms.store.statistics().commits
    job_id = await stage.launch()
    starts = [message for message in link.sent if isinstance(message, StartAttempt)]
    assert [start.job_id for start in starts] == [job_id]
    assert stage.plane._rooms.store.statistics().commits == commits + 1


async def test_a_bad_exit_fails_the_job(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch("false")
    await stage.until_state(job_id, "running")
    link.tell(link.agent.finish(job_id, exit_code=3))
    body = await stage.plane.wait_job(stage.ann, job_id, 10)
    assert (body["state"], body["reason"], body["exit_code"]) == ("failed", "exited", 3)
    assert body["detail"] == "exited with 3"
    assert body["restarts"] == 0


async def test_setting_up_is_shown(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a", runs_at_once=False))
    job_id = await stage.launch("train", setup="pip install x")
    await stage.until_state(job_id, "starting")
    link.tell(link.agent.begin(job_id, state=AttemptState.SETTING_UP))
    place = await stage.plane.wait_attempt_started(stage.ann, job_id, 0, 10)
    assert (place.node_id, place.fence, place.started, place.ended) == ("n-a", 1, True, False)
    assert (await stage.job(job_id))["state"] == "setting_up"
    link.tell(link.agent.begin(job_id))
    await stage.until_state(job_id, "running")


async def test_without_a_node_a_job_waits_and_says_why(stage: Any) -> None:
    await stage.open()
    job_id = await stage.launch()
    body = await stage.job(job_id)
    assert body["state"] == "pending"
    assert "no node has joined yet" in body["detail"]
    await stage.join(SimAgent("n-a"))
    await stage.until_state(job_id, "running")


async def test_what_no_node_could_ever_take_says_so(stage: Any) -> None:
    await stage.open()
    await stage.join(SimAgent("n-a", hostname="alpha"))
    job_id = await stage.launch(resources={"cpus": 64})
    assert "no node could ever take it: alpha: 64 CPUs asked, 4 there" in (await stage.job(job_id))["detail"]
    small = await stage.launch()
    await stage.until_state(small, "running")


async def test_more_nodes_than_there_are_waits_and_says_so(stage: Any) -> None:
    await stage.open()
    await stage.join(SimAgent("n-a"))
    job_id = await stage.launch(num_nodes=2)
    body = await stage.job(job_id)
    assert (body["state"], "needs 2 nodes; 1 of 1 node is ready" in body["detail"]) == ("pending", True)
    await stage.join(SimAgent("n-b"))
    await stage.until_state(job_id, "running")


async def test_a_gang_starts_on_distinct_nodes_or_not_at_all(stage: Any) -> None:
    await stage.open()
    links = [await stage.join(SimAgent(f"n-{name}")) for name in "abc"]
    job_id = await stage.launch(num_nodes=3, resources={"cpus": "2+"})
    body = await stage.until_state(job_id, "running")
    assert sorted(attempt["node"] for attempt in body["attempts"]) == ["n-a", "n-b", "n-c"]
    for rank in range(3):
        owner = next(link for link in links if link.agent.live(job_id, rank))
        owner.tell(owner.agent.finish(job_id, rank))
    assert (await stage.plane.wait_job(stage.ann, job_id, 10))["state"] == "succeeded"


async def test_one_bad_rank_ends_the_others(stage: Any) -> None:
    """Rank 1 of a training run dies: its peers would wait in a collective for ever."""
    await stage.open()
    first, second = [await stage.join(SimAgent(f"n-{name}")) for name in "ab"]
    job_id = await stage.launch(num_nodes=2)
    await stage.until_state(job_id, "running")
    second.tell(second.agent.finish(job_id, 1, exit_code=7))
    body = await stage.plane.wait_job(stage.ann, job_id, 10)
    assert (body["state"], body["exit_code"], body["detail"]) == ("failed", 7, "rank 1 exited with 7")
    assert [attempt["reason"] for attempt in body["attempts"]] == ["cancelled", "exited"]
    stops = [message for message in first.sent if isinstance(message, StopAttempt)]
    assert [stop.reason for stop in stops] == [EndReason.CANCELLED]


async def test_ranks_know_their_place(stage: Any) -> None:
    """torchrun needs rank, world size and the address of rank 0, in SkyPilot's spelling too."""
    await stage.open()
    gpus = [Gpu(index, f"GPU-{index}", "H100", 81559) for index in range(4)]
    links = [await stage.join(SimAgent(f"n-{name}", gpus=gpus)) for name in "ab"]
    job_id = await stage.launch(num_nodes=2, resources={"accelerators": "H100:2"}, envs={"LR": 0.1, "KP_NODE_RANK": 9})
    await stage.until_state(job_id, "running")
    orders = sorted((order for link in links for order in link.agent.messages), key=lambda order: order.index)
    env = orders[1].env
    addresses = [link.agent.inventory().addresses[0] for link in links]
    assert env["KP_NODE_RANK"] == env["SKYPILOT_NODE_RANK"] == "1"
    assert env["KP_NUM_NODES"] == env["SKYPILOT_NUM_NODES"] == "2"
    assert env["KP_NODE_IPS"] == env["SKYPILOT_NODE_IPS"] == "\n".join(addresses)
    assert env["KP_HEAD_IP"] == addresses[0]
    assert env["KP_NUM_GPUS_PER_NODE"] == env["SKYPILOT_NUM_GPUS_PER_NODE"] == "2"
    assert (env["KP_JOB_ID"], env["SKYPILOT_INTERNAL_JOB_ID"], env["LR"]) == (job_id, job_id[2:], "0.1")
    assert env["SKYPILOT_TASK_ID"].endswith(f"_job_{job_id[2:]}")
    assert (env["CUDA_VISIBLE_DEVICES"], orders[1].gpu_indices) == ("0,1", [0, 1])


async def test_limits_follow_the_plus(stage: Any) -> None:
    """`4` is held and is the limit; `4+` is held and more may be used."""
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    for resources in ({"cpus": 2, "memory": 4}, {"cpus": "2+", "memory": "4+"}):
        job_id = await stage.launch(resources=resources)
        await stage.until_state(job_id, "running")
        link.tell(link.agent.finish(job_id))
    limits = [(order.limits.cpu_millis, order.limits.memory_mib) for order in link.agent.messages]
    assert limits == [(2000, 4096), (0, 0)]


async def test_secrets_reach_the_process_and_nothing_else(stage: Any) -> None:
    """Somebody reads the store, the events or the job's body: no secret is in any of them."""
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch(secrets={"HF_TOKEN": "hunter2hunter2"})
    body = await stage.until_state(job_id, "running")
    order = link.agent.messages[0]
    assert order.secret_env == {"HF_TOKEN": "hunter2hunter2"}
    assert "HF_TOKEN" not in order.env
    events = (await stage.plane.events(stage.ann)).items
    await stage.settled()
    on_disk = b"".join(path.read_bytes() for path in stage.state_dir.iterdir())
    assert "hunter2hunter2" not in f"{body}{events}{stage.plane._rooms.scheduler.jobs.jobs}"
    assert b"hunter2hunter2" not in on_disk


async def test_secrets_survive_a_restart_of_the_coordinator(stage: Any) -> None:
    await stage.open()
    job_id = await stage.launch(secrets={"HF_TOKEN": "hunter2"})
    await stage.reopen()
    link = await stage.join(SimAgent("n-a"))
    await stage.until_state(job_id, "running")
    assert link.agent.messages[0].secret_env == {"HF_TOKEN": "hunter2"}


async def test_a_lost_key_file_fails_the_job_with_a_reason(stage: Any) -> None:
    await stage.open()
    job_id = await stage.launch(secrets={"HF_TOKEN": "hunter2"})
    await stage.planes.pop().close()
    (stage.state_dir / "key").unlink()
    await stage.open()
    link = await stage.join(SimAgent("n-a"))

    async def failed() -> bool:
        await stage.pass_time(120, beating=(link,))
        return bool(await stage.state(job_id) == "failed")

    await stage.until(failed)
    body = await stage.job(job_id)
    assert body["reason"] == "start_failed"
    assert "cannot be opened" in body["detail"]
    assert link.agent.starts.total() == 0


# --- cancelling ---


async def test_a_waiting_job_is_cancelled_at_once(stage: Any) -> None:
    await stage.open()
    job_id = await stage.launch()
    body = await stage.plane.cancel_job(stage.bob, job_id, cause="changed my mind")
    assert (body["state"], body["reason"]) == ("cancelled", "cancelled")
    assert body["detail"] == "cancelled by bob: changed my mind"


async def test_a_running_job_is_stopped_by_its_node(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch("sleep 1000")
    await stage.until_state(job_id, "running")
    await stage.plane.cancel_job(stage.ann, job_id)
    assert (await stage.plane.wait_job(stage.ann, job_id, 10))["state"] == "cancelled"
    assert link.agent.live(job_id) is None
    again = await stage.plane.cancel_job(stage.ann, job_id)
    assert again["state"] == "cancelled"


async def test_a_cancel_reaches_a_node_that_was_away(stage: Any) -> None:
    """The link is cut while the user cancels: the job must not run on for ever once the node is back."""
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch("sleep 1000")
    await stage.until_state(job_id, "running")
    link.cut()
    body = await stage.plane.cancel_job(stage.ann, job_id)
    assert body["state"] == "cancelling"
    await stage.reopen()
    again = await stage.join(link.agent)
    assert (await stage.plane.wait_job(stage.ann, job_id, 10))["state"] == "cancelled"
    assert again.agent.live(job_id) is None


async def test_a_job_that_ends_by_itself_before_the_stop_has_succeeded(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch()
    await stage.until_state(job_id, "running")
    link.deaf = True
    await stage.plane.cancel_job(stage.ann, job_id)
    link.tell(link.agent.finish(job_id))
    assert (await stage.plane.wait_job(stage.ann, job_id, 10))["state"] == "succeeded"


# --- refusals and retries ---


async def test_a_node_without_room_is_left_alone_for_a_while(stage: Any) -> None:
    """The agent's truth is its own: its no is no failure of the job."""
    await stage.open()
    full = await stage.join(SimAgent("n-a", refuses="no_capacity"))
    job_id = await stage.launch()
    await stage.until(lambda: any(isinstance(message, StartAttempt) for message in full.sent))
    other = await stage.join(SimAgent("n-b"))
    body = await stage.until_state(job_id, "running")
    assert body["attempts"][0]["node"] == "n-b"
    assert other.agent.starts.total() == 1
    assert stage.plane._rooms.scheduler.jobs.get(job_id).failures == 0


async def test_a_policy_of_the_node_is_final(stage: Any) -> None:
    await stage.open()
    await stage.join(SimAgent("n-a", refuses="refused"))
    body = await stage.plane.wait_job(stage.ann, await stage.launch(), 10)
    assert (body["state"], body["reason"], body["restarts"]) == ("failed", "policy", 0)


async def test_a_failed_start_is_tried_again_with_growing_delays(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch()
    fences = []
    for fence in range(1, 5):
        await stage.until(lambda fence=fence: (job_id, 0, fence) in link.agent.attempts)
        await stage.until_state(job_id, "running")
        fences.append(fence)
        link.tell(link.agent.finish(job_id, reason=EndReason.START_FAILED, exit_code=127))
        await stage.until_state(job_id, "pending", "failed")
        await stage.pass_time(10, beating=(link,))
    body = await stage.plane.wait_job(stage.ann, job_id, 10)
    assert (body["state"], body["reason"], body["restarts"]) == ("failed", "start_failed", 3)
    assert fences == [1, 2, 3, 4]
    assert all(number == 1 for number in link.agent.starts.values())


async def test_a_lost_attempt_is_not_started_again(stage: Any) -> None:
    """Nobody knows what it did: starting it again silently could send the same mail twice."""
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch()
    await stage.until_state(job_id, "running")
    link.cut()
    link.agent.attempts.clear()
    await stage.join(link.agent)
    body = await stage.plane.wait_job(stage.ann, job_id, 10)
    assert (body["state"], body["reason"], body["restarts"]) == ("failed", "lost", 0)


async def test_the_task_may_ask_for_tries_after_a_bad_exit(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch(resources={"job_recovery": {"strategy": "none", "max_restarts_on_errors": 1}})
    for _ in range(2):
        await stage.until_state(job_id, "running")
        link.tell(link.agent.finish(job_id, exit_code=1))
        await stage.until_state(job_id, "pending", "failed")
        await stage.pass_time(5, beating=(link,))
    body = await stage.plane.wait_job(stage.ann, job_id, 10)
    assert (body["state"], body["restarts"]) == ("failed", 1)


async def test_a_silent_start_is_sent_again_and_started_once(stage: Any) -> None:
    """The answer to StartAttempt is lost on a link that lives."""
    await stage.open(start_deadline_s=5.0)
    link = await stage.join(SimAgent("n-a"))
    link.mute = True
    job_id = await stage.launch()
    await stage.until(lambda: link.agent.starts.total() == 1)
    link.mute = False
    await stage.pass_time(6, beating=(link,))
    await stage.until(lambda: len([m for m in link.sent if isinstance(m, StartAttempt)]) == 2)
    await stage.until_state(job_id, "starting", "running")
    assert link.agent.starts == {(job_id, 0, 1): 1}


# --- nodes that go away ---


async def test_a_job_outlives_its_link(stage: Any) -> None:
    """The agent restarts, or the network blinks: the work goes on and is found again."""
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch("sleep 1000")
    await stage.until_state(job_id, "running")
    link.cut()
    link.agent.restart()
    again = await stage.join(link.agent)
    assert await stage.state(job_id) == "running"
    again.tell(again.agent.finish(job_id))
    assert (await stage.plane.wait_job(stage.ann, job_id, 10))["state"] == "succeeded"
    assert again.agent.starts.total() == 1


async def test_a_job_that_ended_while_its_node_was_away_is_told_on_return(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch()
    await stage.until_state(job_id, "running")
    link.cut()
    link.agent.finish(job_id, exit_code=5)
    await stage.join(link.agent)
    body = await stage.plane.wait_job(stage.ann, job_id, 10)
    assert (body["state"], body["exit_code"]) == ("failed", 5)


async def test_what_was_never_sent_to_a_dead_node_goes_elsewhere(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    link.full = True
    job_id = await stage.launch()
    assert (await stage.job(job_id))["attempts"][0]["node"] == "n-a"
    link.cut()
    other = await stage.join(SimAgent("n-b"))
    await stage.pass_time(9, beating=(other,))
    body = await stage.until_state(job_id, "running")
    assert body["attempts"][0]["node"] == "n-b"
    assert link.agent.starts.total() == 0


async def test_a_lost_node_is_replaced_and_fenced_off(stage: Any) -> None:
    """A node is silent for five minutes: its job starts elsewhere, and is stopped there should it come back."""
    await stage.open(node_lost_after_s=60.0)
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch("sleep 1000")
    await stage.until_state(job_id, "running")
    link.cut()
    other = await stage.join(SimAgent("n-b"))
    await stage.pass_time(50, beating=(other,))
    assert (await stage.job(job_id))["attempts"][0]["node"] == "n-a"
    await stage.pass_time(30, beating=(other,))
    await stage.until(lambda: other.agent.live(job_id))
    body = await stage.until_state(job_id, "running")
    assert (body["attempts"][0]["node"], body["attempts"][0]["fence"], body["restarts"]) == ("n-b", 2, 1)
    assert link.agent.live(job_id) is not None
    await stage.join(link.agent)
    await stage.until(lambda: link.agent.live(job_id) is None)
    assert link.agent.attempts[job_id, 0, 1].reason is EndReason.NODE_LOST
    assert await stage.state(job_id) == "running"
    await stage.until(lambda: link.agent.repeat_ends() == [])


async def test_removing_a_node_ends_its_work(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch()
    await stage.until_state(job_id, "running")
    await stage.plane.remove_node(stage.ann, "n-a")
    body = await stage.job(job_id)
    assert (body["state"], body["restarts"]) == ("pending", 1)
    assert "was removed by ann" in body["detail"]
    assert link.closed_because == "this node was removed from the cluster"


# --- the coordinator goes away ---


async def test_fifty_jobs_outlive_a_coordinator(stage: Any) -> None:
    """SIGKILL of the coordinator with 50 jobs running: all are still running and listed, each started once."""
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    ids = [await stage.launch("sleep 1000") for _ in range(50)]
    for job_id in ids:
        await stage.until_state(job_id, "running")
    await stage.reopen()
    listed = await stage.plane.jobs(stage.ann, limit=100)
    assert [item["id"] for item in listed.items] == ids[::-1]
    again = await stage.join(link.agent)
    assert {item["state"] for item in (await stage.plane.jobs(stage.ann, limit=100)).items} == {"running"}
    assert again.agent.starts.total() == 50
    assert all(number == 1 for number in again.agent.starts.values())
    for job_id in ids:
        again.tell(again.agent.finish(job_id))
    for job_id in ids:
        assert (await stage.plane.wait_job(stage.ann, job_id, 10))["state"] == "succeeded"


async def test_a_start_that_may_have_been_sent_is_not_placed_elsewhere(stage: Any) -> None:
    """The coordinator dies right after its commit: whether the start went out only the node can say."""
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    link.deaf = True
    job_id = await stage.launch()
    assert await stage.state(job_id) == "starting"
    await stage.reopen()
    other = await stage.join(SimAgent("n-b"))
    assert (await stage.job(job_id))["attempts"][0]["node"] == "n-a"
    link.cut()
    await stage.join(link.agent)
    await stage.until_state(job_id, "running")
    assert link.agent.starts == {(job_id, 0, 1): 1}
    assert other.agent.starts.total() == 0


async def test_work_that_the_store_has_lost_is_adopted(stage: Any) -> None:
    """The state directory was restored from an old backup: what runs on the nodes is taken in, not killed."""
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch("sleep 1000", name="old")
    await stage.until_state(job_id, "running")
    await stage.planes.pop().close()
    for path in stage.state_dir.glob("kernpool.db*"):
        path.unlink()
    await stage.open()
    again = await stage.join(link.agent)
    body = await stage.until_state(job_id, "running")
    assert (body["name"], body["owner"]) == ("adopted", "unknown")
    assert await stage.launch() == f"j-{int(job_id[2:]) + 1}"
    again.tell(again.agent.finish(job_id))
    assert (await stage.plane.wait_job(stage.ann, job_id, 10))["state"] == "succeeded"


async def test_an_end_is_acknowledged_only_when_it_is_on_disk(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch()
    await stage.until_state(job_id, "running")
    link.tell(link.agent.finish(job_id))
    assert link.agent.acked == set()
    await stage.until(lambda: link.agent.acked == {(job_id, 0, 1)})
    await stage.reopen()
    assert await stage.state(job_id) == "succeeded"


# --- asking ---


async def test_the_same_key_submits_once(stage: Any) -> None:
    """A client that lost the answer sends its request again."""
    await stage.open()
    both = await asyncio.gather(*[stage.launch(idempotency_key="k1") for _ in range(2)])
    assert both == ["j-1", "j-1"]
    await stage.reopen()
    assert await stage.launch(idempotency_key="k1") == "j-1"
    with pytest.raises(ConflictError, match="different request"):
        await stage.launch("other", idempotency_key="k1")


async def test_a_bad_task_creates_nothing(stage: Any) -> None:
    await stage.open()
    for task, word in (
        ({"run": "x", "nmu_nodes": 2}, "num_nodes"),
        ({"run": ["x"]}, "run"),
        ({"run": "x", "workdir": "."}, "workdir"),
    ):
        with pytest.raises(InvalidError) as caught:
            await stage.plane.submit_job(stage.ann, SubmitJob(task=task))
        assert word in str(caught.value.details)
    with pytest.raises(InvalidError, match="leaves TOKEN to the caller"):
        await stage.launch(envs={"TOKEN": None})
    with pytest.raises(TooLargeError):
        await stage.launch("x" * (1 << 20))
    with pytest.raises(TooLargeError):
        await stage.launch(secrets={"BIG": "x" * (1 << 20)})
    assert (await stage.plane.jobs(stage.ann)).items == []


async def test_lists_are_paged_and_filtered(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a", total=Resources(4000, 8192, 1000)))
    ids = [await stage.launch(resources={"cpus": 3}) for _ in range(5)]
    await stage.until_state(ids[0], "running")
    first = await stage.plane.jobs(stage.ann, limit=2)
    second = await stage.plane.jobs(stage.ann, limit=3, after=first.next)
    assert [item["id"] for item in first.items + second.items] == ids[::-1]
    assert second.next == ""
    link.tell(link.agent.finish(ids[0]))
    await stage.plane.wait_job(stage.ann, ids[0], 10)
    assert [item["id"] for item in (await stage.plane.jobs(stage.ann, state="succeeded")).items] == ids[:1]
    pending = await stage.plane.jobs(stage.ann, state="pending", limit=2)
    assert [item["id"] for item in pending.items] == [ids[4], ids[3]]
    assert [item["id"] for item in (await stage.plane.jobs(stage.ann, state="pending", after=pending.next)).items]
    assert (await stage.plane.status(stage.ann))["jobs"]["succeeded"] == 1
    with pytest.raises(InvalidError):
        await stage.plane.jobs(stage.ann, state="asleep")


async def test_another_workspace_sees_nothing(stage: Any) -> None:
    await stage.open()
    job_id = await stage.launch()
    with pytest.raises(NotFoundError):
        await stage.plane.job(stage.eve, job_id)
    assert (await stage.plane.jobs(stage.eve)).items == []
    assert (await stage.plane.events(stage.eve)).items == []


async def test_waiting_has_a_deadline(stage: Any) -> None:
    await stage.open()
    job_id = await stage.launch()
    body = await stage.plane.wait_job(stage.ann, job_id, 0.01)
    assert body["state"] == "pending"
    place = await stage.plane.wait_attempt_started(stage.ann, job_id, 0, 0.01)
    assert (place.node_id, place.started) == ("", False)
    with pytest.raises(NotFoundError, match="no rank 1"):
        await stage.plane.attempt_place(stage.ann, job_id, 1)


async def test_every_step_is_an_event_with_its_actor(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch()
    await stage.until_state(job_id, "running")
    await stage.plane.cancel_job(stage.bob, job_id, cause="enough")
    await stage.plane.wait_job(stage.ann, job_id, 10)
    events = (await stage.plane.events(stage.ann, object_=f"job/{job_id}")).items
    told = [(event["verb"], event["actor"]) for event in events]
    assert told == [("submitted", "ann"), ("placed", "system"), ("cancel_asked", "bob"), ("cancelled", "system")]
    assert link.agent.live(job_id) is None
