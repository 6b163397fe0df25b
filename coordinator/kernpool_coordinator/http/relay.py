"""Relays one API request to a node's data plane and its answer back: bodies streamed both ways, upgrades spliced."""

from aiohttp.web import BaseRequest, StreamResponse

from kernpool_coordinator.http import body, headers, splice
from kernpool_coordinator.http.context import ApiContext
from kernpool_coordinator.http.problems import NodeAnswerError
from kernpool_coordinator.nodeside.nodehttp import Grant, NodeAnswer, NodeHttpError, NodeRequest


class _RelayedResponse(StreamResponse):
    """Its head leaves with the first bytes of the body, in one packet."""

    _send_headers_immediately = False


class _UpgradedResponse(StreamResponse):
    """101: no length, no chunks."""

    _length_check = False


async def relay(api: ApiContext, request: BaseRequest, node_id: str, grant: Grant, target: str) -> StreamResponse:
    """Give `request` to the node as `target`; the answer is the node's own, Problems included."""
    upgrade = request.headers.get("Upgrade", "").lower() == "websocket"
    body.refuse_compressed(request)
    await body.send_continue(request)
    node_request = NodeRequest(
        request.method,
        target,
        headers.to_node(request._message.raw_headers, upgrade=upgrade),
        request.content.iter_any() if request.body_exists else None,
        request.content_length,
    )
    async with api.nodes.request(node_id, grant, node_request) as answer:
        if answer.status == 101:
            return await _upgraded(request, answer, asked=upgrade)
        return await answered(request, answer)


async def answered(request: BaseRequest, answer: NodeAnswer) -> StreamResponse:
    """Give the client a node's answer; raises ConnectionError (a cut) when the node cuts it."""
    message, content = answer.message, answer.content
    response = _RelayedResponse(status=message.code, headers=headers.to_client(message.raw_headers, upgrade=False))
    await response.prepare(request)
    if not content.is_eof() and not content.total_bytes:
        # The node sent its head alone because the body may be long in coming: so do we.
        request.writer.send_headers()
    try:
        async for chunk in answer.chunks():
            await response.write(chunk)
    except NodeHttpError as error:
        raise ConnectionResetError("the node cut its answer") from error
    return response


async def _upgraded(request: BaseRequest, answer: NodeAnswer, *, asked: bool) -> StreamResponse:
    if not asked:
        raise NodeAnswerError("The node upgraded a connection that nobody asked to upgrade.")
    response = _UpgradedResponse(status=101, headers=headers.to_client(answer.message.raw_headers, upgrade=True))
    response.force_close()
    await response.prepare(request)
    await splice.run(request, answer.connection)
    return response
