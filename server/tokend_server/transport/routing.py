"""From a method's name on the wire to the object that answers one call of it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from tokend.v1 import tokenizer_service_pb2 as pb
from tokend_server.metrics import Method, MethodMetrics, Metrics, methods_of
from tokend_server.service.usage import Usage
from tokend_server.transport.batch_stream import BatchStreamRun
from tokend_server.transport.calls import Call, CallScope
from tokend_server.transport.decode_methods import DecodeMethods
from tokend_server.transport.encode_methods import EncodeMethods
from tokend_server.transport.event_stream import EventStream
from tokend_server.transport.grpcio_calls import GrpcioCall
from tokend_server.transport.info_methods import InfoMethods
from tokend_server.transport.streaming import LiveStreams, StreamThreads
from tokend_server.transport.threads import CallThreads
from tokend_server.transport.unary import DownloadRun, UnaryMethod, loading

__all__ = ["SERVICE", "Answers", "Router", "UnknownMethods"]

SERVICE = pb.DESCRIPTOR.services_by_name["TokenizerService"]

_UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED.value[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What answers each method once a tokenizer is loaded, by the method's name."""

    unary: Mapping[str, Callable[[Any], tuple[Message, Usage]]]
    downloads: Mapping[str, Callable[[Any], Iterator[Message]]]
    streams: Mapping[str, Callable[[Call], Any]]

    @classmethod
    def of(cls, encode: EncodeMethods, decode: DecodeMethods, info: InfoMethods) -> "Answers":
        """Name the ten methods."""
        return cls(
            unary={
                "Encode": encode.encode,
                "BatchEncode": encode.batch_encode,
                "CountTokens": encode.count_tokens,
                "Decode": decode.decode,
                "BatchDecode": decode.batch_decode,
                "GetTokenizer": info.get_tokenizer,
                "LookupTokens": info.lookup_tokens,
            },
            downloads={"DownloadTokenizer": info.download_tokenizer},
            streams={"StreamEncode": encode.open_stream, "StreamDecode": decode.open_stream},
        )


class Router(grpc.GenericRpcHandler):
    """Makes the handler of each call of TokenizerService.

    gRPC asks on its serving thread, when the call arrives: so a call's clock starts before it waits for a thread.
    """

    def __init__(self, scope: CallScope, metrics: Metrics, live: LiveStreams, threads: CallThreads) -> None:
        self._scope = scope
        self.threads = threads
        """What answers all that is not small."""
        self.live = live
        """The streams that are open now."""
        self._stream_threads = StreamThreads()
        # Set once, by `serve`.
        self._answers = Answers(unary={}, downloads={}, streams={})
        self.unary: dict[str, UnaryMethod[Any]] = {}
        """The unary methods by their paths, for a front that takes their calls itself."""
        self._routes = {
            method.path: self._route(method, metrics.method(method.path)) for method in methods_of(SERVICE)
        }

    def serve(self, answers: Answers, fingerprint: str) -> None:
        """Set what answers from now on."""
        self._answers = answers
        for unary in self.unary.values():
            unary.answer = answers.unary[unary.name]
        self._scope.fingerprint = fingerprint

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Make the handler of one call; None if the method is not one of ours."""
        route = self._routes.get(handler_call_details.method)
        return None if route is None else route(handler_call_details)

    def _route(
        self, method: Method, metrics: MethodMetrics
    ) -> "Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any]]":
        scope, name = self._scope, method.name
        request_type = getattr(pb, SERVICE.methods_by_name[name].input_type.name)

        if method.type == "unary":
            served = self.unary[method.path] = UnaryMethod(scope, name, metrics, request_type)

            return lambda details: GrpcioCall(served, details)

        def arrived(details: grpc.HandlerCallDetails) -> Call:
            return Call(scope, name, metrics, details.invocation_metadata)

        if method.type == "server_stream":

            def download(details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
                run = DownloadRun(
                    arrived(details),
                    request_type,
                    self._answers.downloads.get(name, loading),
                    self._stream_threads,
                )
                return grpc.unary_stream_rpc_method_handler(run)

            return download

        if name == "StreamDecode":

            def decode_stream(details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
                open_session = self._answers.streams.get(name, loading)
                return EventStream(arrived(details), open_session, admission=scope.admission, live=self.live)

            return decode_stream

        def encode_stream(details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
            run = BatchStreamRun(
                arrived(details),
                request_type,
                self._answers.streams.get(name, loading),
                admission=scope.admission,
                live=self.live,
                pool=self._stream_threads,
                threads=self.threads,
            )
            return grpc.stream_stream_rpc_method_handler(run)

        return encode_stream


class UnknownMethods(grpc.GenericRpcHandler):
    """Counts calls of methods that nothing serves; added last, and leaves the answer to gRPC."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics.method("")

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> None:
        """Count the call; whatever it is named, it counts as `other`."""
        del handler_call_details
        self._metrics.started().handled(_UNIMPLEMENTED)
