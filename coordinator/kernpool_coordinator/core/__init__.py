"""The control plane behind the HTTP API: one object that ties the synchronous truths to store, links and clock."""

from kernpool_coordinator.core.config import CoreConfig
from kernpool_coordinator.core.control import ControlPlane
from kernpool_coordinator.core.session import ByteStream, NodeSession
from kernpool_coordinator.core.shapes import AttemptPlace, Certificate, EnrolledNode, Enrolment, Listing

__all__ = [
    "AttemptPlace",
    "ByteStream",
    "Certificate",
    "ControlPlane",
    "CoreConfig",
    "EnrolledNode",
    "Enrolment",
    "Listing",
    "NodeSession",
]
