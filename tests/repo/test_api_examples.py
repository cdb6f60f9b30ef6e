"""The examples of docs/api.md are what a server on the default tokenizer answers.

python -m tests.repo.test_api_examples     write the answers anew, after the default tokenizer has changed
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from tests.servers import RunningServer
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import tokenizer_service_pb2_grpc as pb_grpc

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
METHODS = pb.DESCRIPTOR.services_by_name["TokenizerService"].methods_by_name
EXAMPLE = re.compile(r"```json\n(.*?)```\n\n```json\n(.*?)```\n", flags=re.DOTALL)
LEFT_OUT = {"fingerprint", "special_tokens", "control_tokens", "limits"}


def examples(page: str) -> Iterator[tuple[str, Sequence[str], str]]:
    """Method, request lines and answers of each example, in order."""
    parts = re.split(r"^## `(\w+)`$", page, flags=re.MULTILINE)
    for method, section in zip(parts[1::2], parts[2::2], strict=True):
        for requests, answers in EXAMPLE.findall(section):
            yield method, requests.splitlines(), answers


def ask(channel: grpc.Channel, method: str, lines: Sequence[str]) -> str:
    """What the server answers, a line of JSON a message."""
    described = METHODS[method]
    request_type = GetMessageClass(described.input_type)
    requests = [json_format.Parse(line, request_type()) for line in lines]
    shape = f"{'stream' if described.client_streaming else 'unary'}_{'stream' if described.server_streaming else 'unary'}"
    call = getattr(channel, shape)(
        f"/{described.containing_service.full_name}/{method}",
        request_serializer=request_type.SerializeToString,
        response_deserializer=GetMessageClass(described.output_type).FromString,
    )
    answer = call(iter(requests) if described.client_streaming else requests[0])
    answers = answer if described.server_streaming else [answer]
    return "".join(json.dumps(shown(method, each), ensure_ascii=False) + "\n" for each in answers)


def shown(method: str, message: object) -> object:
    """A message as the page shows it."""
    if method == "DownloadTokenizer":
        fields = json_format.MessageToDict(message, preserving_proto_field_name=True)
        return {**fields, "chunk": f"{len(message.chunk)} bytes"}
    return without(json_format.MessageToDict(message, preserving_proto_field_name=True))


def without(value: object) -> object:
    """A value without the fields that the page leaves out, at any depth."""
    if isinstance(value, dict):
        return {name: without(each) for name, each in value.items() if name not in LEFT_OUT}
    return [without(each) for each in value] if isinstance(value, list) else value


def parsed(answers: str) -> list[object]:
    """Answers, in which the order of names has no meaning."""
    return [json.loads(line) for line in answers.splitlines()]


def rewritten(page: str, channel: grpc.Channel) -> str:
    """The page with the answers of this server."""
    for method, requests, answers in examples(page):
        block = "```json\n" + "\n".join(requests) + "\n```\n\n```json\n"
        page = page.replace(block + answers, block + ask(channel, method, requests), 1)
    fingerprint = pb_grpc.TokenizerServiceStub(channel).GetTokenizer(pb.GetTokenizerRequest()).fingerprint
    return re.sub(r'"fingerprint": "\w+"\n}', f'"fingerprint": "{fingerprint}"\n}}', page)


def test_every_call_has_an_example():
    assert {method for method, _, _ in examples(PAGE.read_text(encoding="utf-8"))} == set(METHODS)


@pytest.mark.parametrize(("method", "requests", "answers"), list(examples(PAGE.read_text(encoding="utf-8"))))
def test_an_example_is_what_the_server_answers(server, method, requests, answers):
    with grpc.insecure_channel(server.grpc) as channel:
        assert parsed(ask(channel, method, requests)) == parsed(answers)


def test_the_command_shows_the_served_fingerprint(server):
    assert f'"fingerprint": "{server.facts["tokenizer"]}' in PAGE.read_text(encoding="utf-8")


if __name__ == "__main__":
    running = RunningServer()
    try:
        with grpc.insecure_channel(running.grpc) as to_server:
            PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), to_server), encoding="utf-8")
    finally:
        running.stop()
