"""Health and reflection: gRPC's own servicers, beside the service and out of its way."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc
from grpc_reflection.v1alpha.reflection import SERVICE_NAME as REFLECTION_NAME
from grpc_reflection.v1alpha.reflection import ReflectionServicer

from tokend_server import logs
from tokend_server.errors import RequestError
from tokend_server.transport.calls import CallScope
from tokend_server.transport.permissions import PERMISSIONS, REFLECTION, authorization_in
from tokend_server.transport.status import CODES, error_trailer
from tokend_server.transport.streaming import StreamThreads
from tokend_server.transport.threads import UnaryThreads

__all__ = ["Companions"]

_log = logs.get("transport")

# A check costs microseconds; it must only never wait behind calls that tokenize.
_HEALTH_THREADS = 2


class Companions:
    """`grpc.health.v1` and reflection on one server, each on threads of its own."""

    def __init__(self, server: grpc.Server, service_name: str, scope: CallScope, *, reflection: bool) -> None:
        """Add them to a server; health says NOT_SERVING.

        Args:
            server: The server, not started yet.
            service_name: The service that is checked by name and described.
            scope: Knows who may use reflection; health is for everybody.
            reflection: Whether there is any.
        """
        self._health = health.HealthServicer()
        self._health_names = ("", service_name)
        self.set_serving(serving=False)
        threads = UnaryThreads(_HEALTH_THREADS, name="tokend-health")
        threads.start()
        self._watch = _Behavior(self._health.Watch, threads, non_blocking=True)
        # The generated code reads the methods off the servicer, so each is replaced on this one.
        vars(self._health).update(Check=_Behavior(self._health.Check, threads), Watch=self._watch)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        self._inquiry = _add_reflection(server, service_name, scope) if reflection else None

    def set_serving(self, *, serving: bool) -> None:
        """Tell `grpc.health.v1`, for the whole server and for the service by name."""
        status = (
            health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in self._health_names:
            self._health.set(name, status)

    def end_streams(self) -> None:
        """End every Watch and every inquiry: their clients never do, and a stop would wait for them."""
        self._watch.end_all()
        if self._inquiry is not None:
            self._inquiry.end_all()


def _add_reflection(server: grpc.Server, service_name: str, scope: CallScope) -> "_Behavior":
    inquirer = ReflectionServicer(
        (service_name, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, REFLECTION_NAME)
    )
    threads = StreamThreads()
    inquiry = _Behavior(_Guarded(inquirer.ServerReflectionInfo, scope, threads), threads)
    vars(inquirer).update(ServerReflectionInfo=inquiry)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(inquirer, server)  # type: ignore[no-untyped-call]  # its stubs leave it out
    return inquiry


class _Guarded:
    """Reflection's method, behind the permission and the thread that it takes."""

    def __init__(self, answer: Callable[..., Any], scope: CallScope, threads: StreamThreads) -> None:
        self._answer, self._scope, self._threads = answer, scope, threads

    def __call__(self, requests: object, context: grpc.ServicerContext) -> Any:  # noqa: ANN401 (whatever the servicer gives)
        access, name = self._scope.access, REFLECTION.name
        try:
            if access is not None:
                authorization = authorization_in(context.invocation_metadata())
                access.entry(authorization, name, PERMISSIONS[name]).check()
            self._threads.check()
        except RequestError as refused:
            _log.info("refused", method=name, reason=refused.reason)
            context.set_trailing_metadata(error_trailer(refused))
            context.abort(CODES[refused.reason], refused.message)
        return self._answer(requests, context)


class _Behavior:
    """A method of a stock servicer on a pool of its own, whose calls can be ended from outside."""

    def __init__(
        self, answer: Callable[..., Any], pool: ThreadPoolExecutor, *, non_blocking: bool = False
    ) -> None:
        self._answer = answer
        self._enders: dict[grpc.ServicerContext, Callable[[], object]] = {}
        self._lock = threading.Lock()
        # gRPC looks these attributes up.
        self.experimental_thread_pool = pool
        self.experimental_non_blocking = non_blocking

    def __call__(
        self, request: object, context: grpc.ServicerContext, send: Callable[[Any], None] | None = None
    ) -> Any:  # noqa: ANN401 (whatever the servicer gives)
        with self._lock:
            self._enders[context] = context.cancel if send is None else partial(send, None)
        if not context.add_callback(lambda: self._forget(context)):
            self._forget(context)
        return self._answer(request, context) if send is None else self._answer(request, context, send)

    def _forget(self, context: grpc.ServicerContext) -> None:
        with self._lock:
            self._enders.pop(context, None)

    def end_all(self) -> None:
        """End what is open: with OK where the servicer sends by itself, else as cancelled."""
        with self._lock:
            enders = list(self._enders.values())
        for end in enders:
            end()
