"""Reading what servers say: lines, fields, bulk answers, and every wrong type named."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernpool import results
from kernpool.errors import ApiError, NoCapacityError, NotFoundError, ProtocolError
from kernpool.protocol import calls
from kernpool.protocol.bulk import BulkReader
from kernpool.protocol.lines import LineReader
from kernpool.results import JobInfo, NodeInfo, SandboxInfo, Status

JOB = {"id": "j-1", "state": "running", "name": "n", "attempts": [{"index": 0, "node": "n-1"}], "new_field": [1]}


def test_lines_are_whole_whatever_the_packets() -> None:
    data = b'{"a": 1}\n\n{"b": "\\n"}\n{"c"'
    for step in (1, 3, 100):
        reader = LineReader()
        got = [line for start in range(0, len(data), step) for line in reader.feed(data[start : start + step])]
        assert got == [{"a": 1}, {"b": "\n"}]
        assert reader.pending


@pytest.mark.parametrize("line", [b"[1]\n", b"nonsense\n", b'"text"\n', b"\xff\xfe\n", b"[" * 100_000 + b"\n"])
def test_a_line_that_is_no_object_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        LineReader().feed(line)


def test_a_line_without_an_end_is_given_up() -> None:
    """A hostile server must not fill our memory."""
    reader = LineReader(line_bytes_max=1000)
    for _ in range(10):
        reader.feed(b"x" * 100)
    with pytest.raises(ProtocolError, match="more than 1000 bytes"):
        reader.feed(b"x")


def test_fields_of_a_newer_server_are_kept_and_missing_ones_have_defaults() -> None:
    job = JobInfo.read(JOB)
    assert (job.id, job.cluster, job.num_nodes, job.ended, job.node_of(0), job.node_of(1)) == (
        "j-1", None, 1, False, "n-1", "",
    )  # fmt: skip
    assert job.raw["new_field"] == [1]


@pytest.mark.parametrize(
    ("reader", "data", "key"),
    [
        (JobInfo.read, {**JOB, "state": 3}, "state"),
        (JobInfo.read, {**JOB, "id": ""}, "id"),
        (JobInfo.read, {**JOB, "exit_code": "0"}, "exit_code"),
        (JobInfo.read, {**JOB, "exit_code": True}, "exit_code"),
        (JobInfo.read, {**JOB, "attempts": [1]}, "attempts"),
        (JobInfo.read, {**JOB, "attempts": {"a": 1}}, "attempts"),
        (NodeInfo.read, {"id": "n-1", "total": []}, "total"),
        (NodeInfo.read, {"id": "n-1", "isolation": "namespace"}, "isolation"),
        (NodeInfo.read, {"id": "n-1", "labels": {"a": 1}}, "labels"),
        (SandboxInfo.read, {"id": "sb-1", "parked": 1}, "parked"),
        (SandboxInfo.read, {"id": "sb-1", "expires_unix_s": None}, "expires_unix_s"),
        (Status.read, {"server": {}, "jobs": {"running": "3"}}, "jobs"),
        (results.CommandResult.read, {"reason": "exited", "stdout_b64": "!!"}, "stdout_b64"),
        (results.CommandResult.read, {"reason": "exited", "stdout_b64": 5}, "stdout_b64"),
    ],
)
def test_a_wrong_type_is_named(reader: Any, data: dict[str, Any], key: str) -> None:
    with pytest.raises(ProtocolError, match=f"`{key}`"):
        reader(data)


ODD_VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1, 1.5, 1 << 80, "", "x", [], [1], [{}], [[]], {}, {"a": 1}, {"id": []}]
)
KEYS = st.sampled_from(
    ["id", "state", "attempts", "total", "sandbox", "result", "error", "jobs", "server", "limits", "env"]
)


@given(st.dictionaries(KEYS, ODD_VALUES))
def test_no_answer_makes_a_reader_fail_otherwise(data: dict[str, Any]) -> None:
    for reader in (
        JobInfo.read,
        NodeInfo.read,
        SandboxInfo.read,
        Status.read,
        results.read_problem,
        results.Access.read,
    ):
        try:
            reader(data)
        except ProtocolError:
            continue


def test_refusals_become_the_error_that_their_code_names() -> None:
    body = b'{"code": "not_found", "message": "no job j-9", "hint": "kernpool queue"}'
    error = calls.refusal(404, body, "GET /jobs/j-9")
    assert isinstance(error, NotFoundError)
    assert str(error) == "no job j-9\nkernpool queue"
    page = calls.refusal(502, b"<html>Bad gateway</html>", "GET /status")
    assert type(page) is ApiError
    assert page.message == "GET /status was answered with status 502: <html>Bad gateway</html>"
    assert calls.refusal(500, b"[]", "X").message == "X was answered with status 500: []"


def line(**fields: Any) -> bytes:
    import json

    return json.dumps(fields).encode() + b"\n"


def test_a_bulk_answer_may_tell_of_an_item_twice() -> None:
    """First that it runs, then what its command did; and after a cut, all again."""
    reader = BulkReader(expects_result=True)
    assert reader.feed(line(id="sb-1", sandbox={"id": "sb-1", "parked": True}, ready_ms=1.5)) == []
    (item,) = reader.feed(line(id="sb-1", result={"reason": "exited", "exit_code": 0}))
    assert (item.ok, item.ready_ms, item.info and item.info.parked) == (True, 1.5, True)
    reader.restart()
    assert reader.feed(line(id="sb-1", result={"reason": "exited", "exit_code": 0})) == []
    (failed,) = reader.feed(line(id="sb-2", error={"code": "no_capacity", "message": "full"}))
    assert isinstance(failed.error, NoCapacityError)
    assert not failed.ok
    assert reader.feed(line(id="sb-3", sandbox={"id": "sb-3"})) == []
    (without_result,) = reader.feed(line(done=True, created=2, failed=1))
    assert (without_result.id, without_result.result, reader.done) == ("sb-3", None, True)
    with pytest.raises(ProtocolError, match="after the last one"):
        reader.feed(line(id="sb-4"))


def test_an_error_of_the_whole_bulk_request_is_raised() -> None:
    with pytest.raises(NoCapacityError, match="all full"):
        BulkReader(expects_result=False).feed(line(error={"code": "no_capacity", "message": "all full"}))


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_cannot_climb_out_of_its_path(name: str) -> None:
    with pytest.raises(ApiError):
        calls.job(name)


def test_names_and_paths_are_quoted() -> None:
    assert calls.node("a/../b?c#d").path == "/nodes/a%2F..%2Fb%3Fc%23d"
    assert (
        calls.files_path("sb-1", "stat", path="/a b&c=\udcff") == "/sandboxes/sb-1/files/stat?path=%2Fa%20b%26c%3D%FF"
    )
