"""Events, and changes that the store does not take at once."""

import asyncio
import json
from typing import Any

import pytest

from kernpool_coordinator.errors import StoreError
from kernpool_coordinator.simulation import SimAgent


async def test_events_are_paged_and_lasting(stage: Any) -> None:
    await stage.open()
    ids = [await stage.launch() for _ in range(5)]
    first = await stage.plane.events(stage.ann, limit=2)
    assert [event["object"] for event in first.items] == [f"job/{ids[0]}", f"job/{ids[1]}"]
    await stage.reopen()
    rest = await stage.plane.events(stage.ann, after=int(first.next), limit=100)
    assert [event["object"] for event in rest.items] == [f"job/{job_id}" for job_id in ids[2:]]
    assert rest.next == ""
    newer = await stage.launch()
    events = (await stage.plane.events(stage.ann, object_=f"job/{newer}")).items
    assert events[0]["id"] > rest.items[-1]["id"]
    json.dumps(events)


async def test_events_are_followed_as_they_come(stage: Any) -> None:
    await stage.open()
    old = await stage.launch()
    new_only = stage.plane.follow_events(stage.ann)
    everything = stage.plane.follow_events(stage.ann, after=0)
    assert [event["object"] for event in await anext(everything)] == [f"job/{old}"]
    waiting = asyncio.ensure_future(anext(new_only))
    await asyncio.sleep(0)
    assert not waiting.done()
    new = await stage.launch()
    assert [event["object"] for event in await waiting] == [f"job/{new}"]
    assert [event["object"] for event in await anext(everything)] == [f"job/{new}"]
    for stream in (new_only, everything):
        await stream.aclose()


async def test_a_follower_that_was_away_misses_nothing(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads on from its last number, however long ago that was: memory first, the store for the rest."""
    await stage.open()
    for _ in range(5):
        await stage.launch()
    await stage.reopen()
    await stage.launch()
    seen: list[int] = []
    stream = stage.plane.follow_events(stage.ann, after=2)
    while len(seen) < 4:
        seen += [event["id"] for event in await anext(stream)]
    assert seen == [3, 4, 5, 6]
    await stream.aclose()


async def test_followers_see_their_workspace_alone(stage: Any) -> None:
    await stage.open()
    stream = stage.plane.follow_events(stage.eve, after=0)
    waiting = asyncio.ensure_future(anext(stream))
    await stage.launch()
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


class FullDisk:
    """Makes the lowest layer of the store fail, as a full disk does."""

    def __init__(self, stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        writer = stage.plane._rooms.store.writer
        commit = writer._commit

        def maybe(operations: Any) -> None:
            if self.full:
                raise StoreError("the disk of the store is full", hint="free space")
            commit(operations)

        monkeypatch.setattr(writer, "_commit", maybe)


async def test_a_full_disk_refuses_new_jobs_and_leaves_no_trace(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    await stage.settled()
    disk = FullDisk(stage, monkeypatch)
    disk.full = True
    for key in (None, "k"):
        with pytest.raises(StoreError, match="full"):
            await stage.launch(cluster="dev", resources={"cpus": 4}, idempotency_key=key)
    assert link.agent.starts.total() == 0
    assert (await stage.plane.jobs(stage.ann)).items == []
    assert (await stage.plane.clusters(stage.ann)).items == []
    assert (await stage.plane.node(stage.ann, "n-a"))["free"]["cpus"] == 4
    disk.full = False
    job_id = await stage.launch(idempotency_key="k")
    await stage.until_state(job_id, "running")


async def test_what_nodes_tell_while_the_disk_is_full_is_kept_and_not_acknowledged(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job ends while the disk is full: the node keeps its word until ours is on disk."""
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch()
    await stage.until_state(job_id, "running")
    await stage.settled()
    disk = FullDisk(stage, monkeypatch)
    disk.full = True
    link.tell(link.agent.finish(job_id))
    await stage.until(lambda: stage.plane._rooms.commits.behind)
    assert link.agent.acked == set()
    assert (await stage.plane.wait_job(stage.ann, job_id, 0.05))["state"] == "succeeded"
    assert stage.plane.statistics()["store_rows_behind"] > 0
    with pytest.raises(StoreError, match="full"):
        await stage.launch()
    disk.full = False
    await stage.plane._rooms.commits.retry()
    await stage.until(lambda: link.agent.acked == {(job_id, 0, 1)})
    await stage.reopen()
    assert await stage.state(job_id) == "succeeded"


async def test_work_can_be_cancelled_with_a_full_disk(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job that fills the disk must be stoppable."""
    monkeypatch.setattr("kernpool_coordinator.jobs.service.CANCEL_WAIT_S", 0.05)
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    job_id = await stage.launch("dd if=/dev/zero of=big")
    await stage.until_state(job_id, "running")
    await stage.settled()
    disk = FullDisk(stage, monkeypatch)
    disk.full = True
    assert (await stage.plane.cancel_job(stage.ann, job_id))["state"] == "cancelling"
    disk.full = False
    await stage.plane._rooms.commits.retry()
    assert (await stage.plane.wait_job(stage.ann, job_id, 10))["state"] == "cancelled"
    assert link.agent.live(job_id) is None


async def test_an_old_row_never_overwrites_a_newer_one(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three changes of one job wait for the disk: what is written in the end is its last state."""
    await stage.open()
    link = await stage.join(SimAgent("n-a", runs_at_once=False))
    job_id = await stage.launch()
    await stage.until(lambda: link.agent.live(job_id))
    await stage.settled()
    disk = FullDisk(stage, monkeypatch)
    disk.full = True
    link.tell(link.agent.begin(job_id))
    await stage.until(lambda: stage.plane._rooms.commits.behind)
    link.tell(link.agent.finish(job_id, exit_code=4))
    disk.full = False
    await stage.plane._rooms.commits.retry()
    await stage.reopen()
    body = await stage.job(job_id)
    assert (body["state"], body["exit_code"]) == ("failed", 4)


async def test_tidying_keeps_the_newest(stage: Any) -> None:
    await stage.open(jobs_kept=2, events_kept=3)
    link = await stage.join(SimAgent("n-a"))
    ids = [await stage.launch() for _ in range(5)]
    for job_id in ids[:4]:
        await stage.until_state(job_id, "running")
        link.tell(link.agent.finish(job_id))
        await stage.plane.wait_job(stage.ann, job_id, 10)
    await stage.until(lambda: len(link.agent.acked) == 4)
    await stage.plane._ticker.tidy()
    assert [one["id"] for one in (await stage.plane.jobs(stage.ann)).items] == [ids[4], ids[3], ids[2]]
    assert len((await stage.plane.events(stage.ann)).items) == 3
    await stage.until(lambda: {key[0] for key in link.agent.attempts} == set(ids[2:]))
    assert (await stage.plane.status(stage.ann))["jobs"]["succeeded"] == 2
