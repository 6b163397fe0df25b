"""Bodies of the node listener; agents build them by hand (they import no pydantic)."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Pem = Annotated[str, Field(min_length=1, max_length=16 * 1024)]


class NodeBody(BaseModel):
    """Base: a newer agent may send more than we know."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)


class EnrolRequest(NodeBody):
    """POST /node/v1/enrol."""

    token: Annotated[str, Field(max_length=256, repr=False)]
    csr_pem: Pem
    hostname: Annotated[str, Field(max_length=253)]
    agent_version: Annotated[str, Field(max_length=64)] = ""
    unix_s: Annotated[float, Field(allow_inf_nan=False)]


class RenewRequest(NodeBody):
    """POST /node/v1/renew."""

    certificate_pem: Pem
    csr_pem: Pem
    nonce: Annotated[str, Field(max_length=256)]
    signature: Annotated[str, Field(max_length=1024)]
