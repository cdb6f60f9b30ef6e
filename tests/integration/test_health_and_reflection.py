"""`grpc.health.v1` and reflection, beside the service and while it is busy."""

import time

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.integration.wire import WITHIN_S, Stream, Wire, in_background, in_flight, until
from tests.tokenizers_for_tests import byte_level_bpe
from tokend.v1 import tokenizer_service_pb2 as pb

SERVICE = "tokend.v1.TokenizerService"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


@pytest.fixture
def health(wire: Wire):
    return health_pb2_grpc.HealthStub(wire.channel)


@pytest.mark.parametrize("name", ["", SERVICE])
def test_the_server_and_its_service_are_serving(health, name):
    assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == SERVING


def test_another_service_is_not_found(health):
    with pytest.raises(grpc.RpcError) as raised:
        health.Check(health_pb2.HealthCheckRequest(service="no.such.Service"))
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_watch_tells_the_state_at_once(health):
    watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=WITHIN_S)
    assert next(watch).status == SERVING
    watch.cancel()


def test_health_is_answered_while_every_thread_is_busy(wire_to, server_for):
    server = server_for(byte_level_bpe(), "--unary-threads", "1")
    wire = wire_to(server)
    health = health_pb2_grpc.HealthStub(wire.channel)
    long = pb.EncodeRequest(text="hello the world " * 100_000)
    with in_background(lambda: [wire.stub.Encode(long) for _ in range(2)]):
        until(lambda: in_flight(server) != {})
        started_s = time.monotonic()
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=WITHIN_S).status == SERVING
        assert time.monotonic() - started_s < 0.5
        assert in_flight(server) != {}


def test_idle_reflection_streams_starve_nobody(wire_to, server_for):
    wire = wire_to(server_for(byte_level_bpe(), "--unary-threads", "1"))
    reflection = reflection_pb2_grpc.ServerReflectionStub(wire.channel)
    streams = [Stream(reflection.ServerReflectionInfo) for _ in range(3)]
    for stream in streams:
        assert stream.ask(reflection_pb2.ServerReflectionRequest(list_services="")).HasField(
            "list_services_response"
        )
    assert wire.stub.Encode(pb.EncodeRequest(text="a"), timeout=WITHIN_S).encoding.token_count == 2
    for stream in streams:
        stream.cancel()


@pytest.fixture
def reflection(wire: Wire):
    stream = Stream(reflection_pb2_grpc.ServerReflectionStub(wire.channel).ServerReflectionInfo)
    yield stream
    stream.rest()


def test_reflection_lists_the_services(reflection):
    answer = reflection.ask(reflection_pb2.ServerReflectionRequest(list_services=""))
    assert {service.name for service in answer.list_services_response.service} == {
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


@pytest.fixture
def described(reflection):
    """The service's descriptors as a client without stubs fetches them: into a pool of their own."""
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}

    def fetch(request: reflection_pb2.ServerReflectionRequest) -> None:
        answer = reflection.ask(request)
        assert answer.HasField("file_descriptor_response"), answer
        for data in answer.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            files[file.name] = file
        for name in {name for file in files.values() for name in file.dependency} - files.keys():
            fetch(reflection_pb2.ServerReflectionRequest(file_by_filename=name))

    fetch(reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE))
    pool = descriptor_pool.DescriptorPool()

    def add(name: str) -> None:
        if name in files:
            file = files.pop(name)
            for dependency in file.dependency:
                add(dependency)
            pool.Add(file)

    for name in list(files):
        add(name)
    return pool.FindServiceByName(SERVICE)


def test_a_client_without_stubs_can_encode(wire: Wire, described):
    method = described.methods_by_name["Encode"]
    request_class = message_factory.GetMessageClass(method.input_type)
    answer_class = message_factory.GetMessageClass(method.output_type)
    call = wire.channel.unary_unary(
        f"/{SERVICE}/Encode", request_class.SerializeToString, answer_class.FromString
    )
    request = request_class(text="a<|end|>", options={"special_tokens": "SPECIAL_TOKENS_PARSE"})
    assert list(call(request).encoding.ids) == [262, 97, 263]


def test_a_client_without_stubs_can_decode_a_stream(wire: Wire, described):
    method = described.methods_by_name["StreamDecode"]
    assert (method.client_streaming, method.server_streaming) == (True, True)
    request_class = message_factory.GetMessageClass(method.input_type)
    answer_class = message_factory.GetMessageClass(method.output_type)
    call = wire.channel.stream_stream(
        f"/{SERVICE}/StreamDecode", request_class.SerializeToString, answer_class.FromString
    )
    stream = Stream(call)
    answers = [stream.ask(request_class(sequences=[{"ids": [byte]}])) for byte in "hé".encode()[:2]]
    answers += stream.rest()
    assert "".join(output.text for answer in answers for output in answer.sequences) == "h\ufffd"
