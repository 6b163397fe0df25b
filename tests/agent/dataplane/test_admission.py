"""How many requests run at once."""

import contextlib

import pytest

from kernpool_agent.dataplane.admission import Admission, AdmissionLimits
from kernpool_agent.dataplane.problems import ProblemError


def test_one_busy_object_leaves_room_for_the_others() -> None:
    """A client that opens requests without end is refused on its sandbox, and another sandbox still answers."""
    admission = Admission(AdmissionLimits(requests_max=3, per_object_max=2))
    with contextlib.ExitStack() as held:
        held.enter_context(admission.admitted("sandbox/a"))
        held.enter_context(admission.admitted("sandbox/a"))
        with pytest.raises(ProblemError) as caught, admission.admitted("sandbox/a"):
            pass
        assert (caught.value.status, caught.value.code) == (503, "busy")
        held.enter_context(admission.admitted("sandbox/b"))
        with pytest.raises(ProblemError, match="3 requests"), admission.admitted("sandbox/c"):
            pass
    assert admission.in_flight == 0


def test_a_place_is_given_back_when_the_request_fails() -> None:
    """An error must not eat a place for ever."""
    admission = Admission(AdmissionLimits(requests_max=1, per_object_max=1))
    for _ in range(3):
        with pytest.raises(RuntimeError), admission.admitted("job/j-1"):
            raise RuntimeError
    assert admission.in_flight == 0
