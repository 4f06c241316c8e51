"""GrpcServer: the service on a port of its own, beside the HTTP server and in the same event loop.

The API keys are the HTTP server's, in the call's metadata (authorization: Bearer KEY, or x-api-key: KEY); so is the
largest body. A caller that leaves, or whose deadline is over, cancels its call, and that what the call waits for.
"""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from headway.errors import HeadwayError, InvalidConfig, ShuttingDown
from headway.observe.logs import get_logger
from headway.server.keys import ApiKeys
from headway.server.oip.rpc.messages import SERVICE, method_messages
from headway.server.oip.rpc.methods import ADMIN_METHODS, METHODS, OPEN_METHODS, Method
from headway.server.oip.rpc.status import status_of
from headway.server.oip.rpc.stream import InferStream
from headway.server.state import ServerState

log = get_logger("headway.server")

STREAM = "ModelStreamInfer"


class GrpcServer:
    """Make it on the running loop, start() it, stop() it on the same one."""

    def __init__(self, state: ServerState, host: str, port: int) -> None:
        """Binds; port 0 takes a free one. Raises InvalidConfig when the address can not be listened on."""
        self._state = state
        self._keys = ApiKeys(state.config.api_keys, state.config.admin_api_keys)
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", state.config.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                # Else two servers could listen on one port, and share its callers.
                ("grpc.so_reuseport", 0),
            )
        )
        self._server.add_generic_rpc_handlers((self._handlers(),))
        try:
            self.port: int = self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError:
            raise InvalidConfig(
                f"can not listen for gRPC on {host} port {port}: choose another --grpc-port, or 0 for any that is free",
                param="grpc_port",
            ) from None

    async def start(self) -> None:
        """Takes calls from now on."""
        await self._server.start()
        log.info("gRPC listens", port=self.port)

    async def stop(self, grace_s: float) -> None:
        """Takes nothing new; waits for what runs, at most so long, then cancels it."""
        await self._server.stop(grace_s)

    def _handlers(self) -> Any:
        handlers = {name: self._unary(name, method) for name, method in METHODS.items()}
        request, response = method_messages(STREAM)
        handlers[STREAM] = grpc.stream_stream_rpc_method_handler(
            self._stream, request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _unary(self, name: str, method: Method) -> Any:
        async def answer(message: Any, context: Any) -> Any:
            try:
                self._check(name, context)
                response = await method(self._state, message)
            except Exception as error:  # the server must outlive any single call
                await self._refuse(name, error, context)
            else:
                self._count(name, grpc.StatusCode.OK)
                return response

        request, response = method_messages(name)
        return grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )

    async def _stream(self, messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        try:
            self._check(STREAM, context)
        except HeadwayError as error:
            await self._refuse(STREAM, error, context)
        async for answer in InferStream(self._state, messages):
            yield answer
        self._count(STREAM, grpc.StatusCode.OK)

    def _check(self, name: str, context: Any) -> None:
        """Raises Unauthorized, PermissionDenied, ShuttingDown."""
        if name in OPEN_METHODS:
            return
        headers = [(key.encode(), value.encode()) for key, value in _texts(context.invocation_metadata())]
        wrong_key = self._keys.refusal(headers, for_admin=name in ADMIN_METHODS)
        if wrong_key is not None:
            raise wrong_key
        if self._state.is_draining:
            raise ShuttingDown("the server is shutting down and takes nothing new", retry_after_s=5.0)

    async def _refuse(self, name: str, error: Exception, context: Any) -> None:
        """Ends the call; raises what ends it."""
        if not isinstance(error, HeadwayError):
            log.exception("a call failed", method=name)
        code, details, trailing = status_of(error)
        self._count(name, code)
        await context.abort(code, details, trailing)

    def _count(self, name: str, code: grpc.StatusCode) -> None:
        self._state.metrics.grpc_requests.labels(name, code.name).inc()


def _texts(metadata: Any) -> list[tuple[str, str]]:
    """Keys whose values are text: others end in -bin."""
    return [(key, value) for key, value in metadata or () if isinstance(value, str)]
