"""Command bodies as strangers send them."""

import base64
import json

import pytest

from kernpool_agent.dataplane.bodies import command_from_json, result_to_json
from kernpool_agent.dataplane.problems import ProblemError
from kernpool_mesh.messages import Command, CommandResult
from kernpool_mesh.reasons import EndReason

# "\udcff" is how Python and JSON carry the raw byte 0xff in a name.
RAW = "caf\udcff"


def test_a_whole_body_becomes_a_command() -> None:
    """Every field that a client can send arrives."""
    body = {
        "argv": ["printf", "%s", "ä", RAW],
        "env": {"A": "1", "LEER": ""},
        "cwd": "/tmp",
        "user": "nobody",
        "timeout_s": 1.5,
        "stdin_b64": base64.b64encode(b"\0\xff").decode(),
        "output_bytes_max": 7,
    }
    assert command_from_json(json.dumps(body)) == Command(
        ["printf", "%s", "ä", RAW], {"A": "1", "LEER": ""}, "/tmp", "nobody", 1.5, b"\0\xff", 7
    )


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "JSON object"),
        (b"{}", "'argv' is missing"),
        (b'{"argv": []}', "argv: expected a list of 1 to 4096 strings"),
        (b'{"argv": "true"}', "argv: expected a list"),
        (b'{"argv": ["true", 1]}', "argv[1]: expected a string, not int"),
        (b'{"argv": ["a\\u0000b"]}', "argv[0]: a NUL byte"),
        (b'{"argv": ["a\\ud800b"]}', "argv[0]: a lone surrogate"),
        (b'{"argv": ["true"], "environment": {}}', "unknown key 'environment'"),
        (b'{"argv": ["true"], "env": {"A=B": "1"}}', "'A=B' is not a name"),
        (b'{"argv": ["true"], "env": {"A": 1}}', "env.A: expected a string"),
        (b'{"argv": ["true"], "timeout_s": -1}', "timeout_s: expected seconds"),
        (b'{"argv": ["true"], "timeout_s": NaN}', "timeout_s: expected seconds"),
        (b'{"argv": ["true"], "timeout_s": true}', "timeout_s: expected seconds"),
        (b'{"argv": ["true"], "stdin_b64": "?"}', "stdin_b64: not base64"),
        (b'{"argv": ["true"], "output_bytes_max": 1e9}', "output_bytes_max: expected an integer"),
    ],
)
def test_a_bad_body_is_refused_by_the_name_of_its_key(body: bytes, told: str) -> None:
    """A person reads which key is wrong and what was expected."""
    with pytest.raises(ProblemError) as caught:
        command_from_json(body)
    assert caught.value.status == 400
    assert told in caught.value.message


def test_a_result_tells_the_end_without_the_output() -> None:
    """The last line of a streamed exec."""
    assert result_to_json(
        CommandResult(EndReason.TIMEOUT, 137, b"out", b"err", detail="slow", first_output_ms=1.25)
    ) == {
        "reason": "timeout",
        "exit_code": 137,
        "detail": "slow",
        "first_output_ms": 1.25,
    }
    assert result_to_json(CommandResult(EndReason.EXITED, 0))["first_output_ms"] is None
