"""Jobs through the synchronous SDK, against a server that really runs them."""

from typing import Any

import pytest
from contract_server import ContractServer

from kernpool import CutError, InvalidError, NotFoundError, Task
from kernpool.sdk import Client


def test_a_job_runs_and_tells_its_log_and_exit_code(client: Client) -> None:
    """The first thing anybody does."""
    job = client.launch({"run": "echo out; echo err >&2; exit 3", "name": "first"})
    assert b"".join(job.logs()).splitlines() == [b"out", b"err"]
    end = job.wait(timeout_s=10)
    assert (end.state, end.reason, end.exit_code, end.name) == ("failed", "exited", 3, "first")


def test_a_task_object_and_a_file_are_taken_too(client: Client, tmp_path: Any) -> None:
    file = tmp_path / "task.yaml"
    file.write_text("name: from-file\nrun: echo $WHO\nenvs:\n  WHO: file\n")
    assert b"".join(client.launch(str(file)).logs()) == b"file\n"
    assert b"".join(client.launch(Task(run="echo task")).logs()) == b"task\n"


def test_what_the_server_refuses_is_an_error_with_its_details(client: Client) -> None:
    with pytest.raises(InvalidError) as caught:
        client.launch({"runn": "echo"})
    assert caught.value.details == [{"line": 0, "column": 0, "key": "runn", "message": "unknown key"}]


def test_a_wait_that_is_too_long_raises_and_the_job_goes_on(client: Client) -> None:
    job = client.launch({"run": "sleep 60"})
    with pytest.raises(TimeoutError, match="j-1 is"):
        job.wait(timeout_s=0.05)
    assert job.cancel().state == "cancelled"
    assert job.wait(timeout_s=5).reason == "cancelled"


def test_a_cut_log_goes_on_where_it_was(client: Client, server: ContractServer) -> None:
    """A proxy between the person and the coordinator restarts while a log is followed."""
    server.state.cuts["/api/v1/jobs/j-1/logs"] = 3
    job = client.launch({"run": "for i in $(seq 2000); do echo line $i; done"})
    job.wait(timeout_s=10)
    expected = b"".join(b"line %d\n" % number for number in range(1, 2001))
    assert b"".join(job.logs()) == expected
    assert server.state.cuts["/api/v1/jobs/j-1/logs"] == 0


def test_a_log_that_only_ever_breaks_is_given_up(client: Client, server: ContractServer, monkeypatch: Any) -> None:
    monkeypatch.setattr("kernpool.protocol.logs.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("kernpool.protocol.logs.PAUSE_S_MAX", 0.001)
    job = client.launch({"run": "printf x"})
    job.wait(timeout_s=10)
    server.state.cuts["/api/v1/jobs/j-1/logs"] = 100
    with pytest.raises(CutError, match="again and again"):
        list(job.logs())


def test_bytes_rotated_away_are_counted(client: Client, server: ContractServer) -> None:
    """The reader was slower than the log's bound."""
    job = client.launch({"run": "for i in $(seq 1000); do echo 123456789; done"})
    job.wait(timeout_s=10)
    server.state.cuts["/api/v1/jobs/j-1/logs"] = 1
    lost: list[int] = []
    pieces = job.logs(on_lost=lost.append)
    first = next(pieces)
    server.state.jobs["j-1"].log_start = 8000
    rest = b"".join(pieces)
    assert (len(first), len(rest), lost) == (5000, 2000, [3000])


def test_the_last_lines_alone_can_be_had(client: Client) -> None:
    job = client.launch({"run": "seq 100"})
    job.wait(timeout_s=10)
    assert b"".join(job.logs(tail=2)) == b"99\n100\n"


def test_a_submit_whose_answer_was_lost_makes_one_job(client: Client, server: ContractServer) -> None:
    """The coordinator's host loses power between commit and answer; the client asks again with the same key."""
    server.state.cuts["/api/v1/jobs"] = 1
    job = client.launch({"run": "true"})
    assert job.id == "j-1"
    assert list(server.state.jobs) == ["j-1"]
    assert server.state.cuts["/api/v1/jobs"] == 0


def test_a_listing_of_many_pages_is_whole(client: Client) -> None:
    for _ in range(120):
        client.launch({"run": "true"})
    assert [job.id for job in client.jobs()] == [f"j-{number}" for number in range(120, 0, -1)]


def test_exec_wants_a_cluster_that_is_there(client: Client) -> None:
    with pytest.raises(NotFoundError, match="There is no cluster dev"):
        client.exec({"run": "true"}, "dev")
    client.launch({"run": "true"}, cluster="dev")
    assert client.exec({"run": "true"}, "dev").info.cluster == "dev"
    client.down("dev")
    assert list(client.clusters()) == []


def test_events_are_given_past_and_to_come(client: Client) -> None:
    for _ in range(5):
        client.launch({"run": "true"})
    assert [event.id for event in client.events()] == [1, 2, 3, 4, 5]
    follower = client.events(after=4, follow=True)
    assert next(follower).id == 5
    client.launch({"run": "true"})
    assert next(follower).object == "job/j-6"
