"""Validation errors name the field, what was expected, and a near match."""

import pytest
from multidict import MultiDict
from pydantic import BaseModel

from kernpool.bodies import CreateSandboxesBody, PoolsBody, SubmitJob
from kernpool_coordinator.errors import InvalidError
from kernpool_coordinator.http.checks import parse_body, parse_query
from kernpool_coordinator.http.handlers.jobs import JobsQuery
from kernpool_coordinator.http.handlers.sandboxes import SandboxesQuery


def _refused(model: type[BaseModel], text: str) -> InvalidError:
    with pytest.raises(InvalidError) as caught:
        parse_body(model, text.encode())
    return caught.value


def test_a_wrong_type_deep_inside_is_named_by_its_path() -> None:
    """Someone writes a number as an argument of a command."""
    error = _refused(CreateSandboxesBody, '{"command": {"argv": ["echo", 1]}}')
    assert error.details == [
        {"line": 0, "column": 0, "key": "command.argv[1]", "message": "input should be a valid string"}
    ]
    assert error.message.startswith("`command.argv[1]` in the body: ")


@pytest.mark.parametrize(
    ("model", "text", "key", "near"),
    [
        (CreateSandboxesBody, '{"tll_s": 3}', "tll_s", "ttl_s"),
        (CreateSandboxesBody, '{"template": {"limits": {"cpu": 3}}}', "template.limits.cpu", "cpus"),
        (CreateSandboxesBody, '{"command": {"argv": ["x"], "workdir_": 1, "cwdd": ""}}', "command.cwdd", "cwd"),
        (PoolsBody, '{"pools": [{"parked": 1, "template": {"imag": "x"}}]}', "pools[0].template.imag", "image"),
    ],
)
def test_an_unknown_key_gets_a_near_match_at_its_own_level(
    model: type[BaseModel], text: str, key: str, near: str
) -> None:
    """A typo is refused, never ignored, and the fix stands in the answer."""
    details = {detail["key"]: detail["message"] for detail in _refused(model, text).details}
    assert details[key] == f"unknown key; did you mean `{near}`?"


def test_text_that_is_no_json_has_line_and_column() -> None:
    """A comma too many."""
    error = _refused(SubmitJob, '{\n  "task": {},,\n}')
    assert (error.details[0]["line"], error.details[0]["column"]) == (2, 14)
    assert "line" not in error.details[0]["message"]


def test_an_empty_body_says_what_was_expected() -> None:
    """curl without -d."""
    assert "empty" in _refused(SubmitJob, "  ").message


def test_bytes_that_are_no_utf8_are_refused() -> None:
    """A body in another encoding."""
    with pytest.raises(InvalidError):
        parse_body(SubmitJob, b'{"task": {"name": "\xff"}}')


def test_the_details_are_bounded() -> None:
    """A body made of a thousand mistakes does not come back as a thousand sentences."""
    text = "{" + ",".join(f'"k{number}": 1' for number in range(1000)) + "}"
    error = _refused(CreateSandboxesBody, text)
    assert len(error.details) == 50
    assert "(999 more in `details`)" in error.message


def test_a_query_parameter_is_checked_like_a_body() -> None:
    """limit=0, a typo, and one given twice."""
    for query, words in (
        ("limit=0", "`limit` in the query"),
        ("limti=5", "did you mean `limit`?"),
        ("limit=5&limit=6", "given 2 times"),
        ("state=odd", "`state[0]` in the query"),
    ):
        pairs = MultiDict([(key, value) for part in query.split("&") for key, _, value in [part.partition("=")]])
        with pytest.raises(InvalidError) as caught:
            parse_query(JobsQuery, pairs)
        assert words in caught.value.message


def test_a_list_parameter_may_come_often() -> None:
    """?label=a=1&label=b=2."""
    query = parse_query(SandboxesQuery, MultiDict([("label", "a=1"), ("label", "b=2"), ("limit", "7")]))
    assert (query.label, query.limit) == (("a=1", "b=2"), 7)
