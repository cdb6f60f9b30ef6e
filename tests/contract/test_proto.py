"""The protos hold what the project promises of them, and the generated code fits pyproject.toml."""

import json
import re
import runpy
import tomllib
from pathlib import Path

import pytest
from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    FileDescriptor,
    MethodDescriptor,
)
from google.protobuf.descriptor_pb2 import MethodOptions

from tokend.v1 import error_reason_pb2, tokenizer_service_pb2, tokenizer_service_pb2_grpc, types_pb2
from tokend_server.errors import (
    InvalidOption,
    LimitExceeded,
    MalformedMessage,
    Reason,
    RequestError,
    ServerOverloaded,
    ShuttingDown,
    SpecialTokenRejected,
    TokenizerMismatch,
    UnknownTokenId,
)

ROOT = Path(__file__).parents[2]
FILES = (error_reason_pb2.DESCRIPTOR, types_pb2.DESCRIPTOR, tokenizer_service_pb2.DESCRIPTOR)
REASON_PREFIX = "ERROR_REASON_"

_SCOPE = re.compile(r"(?:message|enum|service|oneof) (?P<name>\w+) \{(?P<closed>\})?")
_ELEMENT = re.compile(
    r"(?:rpc (?P<rpc>\w+)\(.*(?P<open>\{)$|rpc (?P<plain_rpc>\w+)\(|.*?(?P<field>\w+) = \d+;)"
)


def comments_in(file: FileDescriptor) -> dict[str, str]:
    """Reads a formatted proto; returns the comment straight above each element, by the element's full name."""
    comments: dict[str, str] = {}
    scopes = [file.package]
    above: list[str] = []
    for line in (ROOT / "proto" / file.name).read_text(encoding="utf-8").splitlines():
        code = line.strip()
        if code.startswith("//"):
            above.append(code.removeprefix("//").removeprefix(" "))
            continue
        if scope := _SCOPE.fullmatch(code):
            scopes.append(scope["name"])
            comments[".".join(scopes)] = "\n".join(above)
            if scope["closed"]:
                scopes.pop()
        elif element := _ELEMENT.match(code):
            name = element["rpc"] or element["plain_rpc"] or element["field"]
            comments[".".join((*scopes, name))] = "\n".join(above)
            if element["open"]:
                scopes.append(name)
        elif code == "}":
            scopes.pop()
        above = []
    return comments


def names_in_enum(enum: EnumDescriptor) -> list[str]:
    return [enum.full_name, *(f"{enum.full_name}.{value.name}" for value in enum.values)]


def names_in_message(message: Descriptor) -> list[str]:
    names = [message.full_name]
    for field in message.fields:
        # `optional` makes a oneof of its own that no one wrote.
        oneof = field.containing_oneof
        written = oneof is not None and not oneof.name.startswith("_")
        names.append(f"{oneof.full_name}.{field.name}" if written else field.full_name)
    names += [oneof.full_name for oneof in message.oneofs if not oneof.name.startswith("_")]
    for enum in message.enum_types:
        names += names_in_enum(enum)
    for nested in message.nested_types:
        if not nested.GetOptions().map_entry:
            names += names_in_message(nested)
    return names


def names_in(file: FileDescriptor) -> list[str]:
    """Returns the full names of all elements that someone wrote in the file, from its descriptor."""
    names: list[str] = []
    for enum in file.enum_types_by_name.values():
        names += names_in_enum(enum)
    for message in file.message_types_by_name.values():
        names += names_in_message(message)
    for service in file.services_by_name.values():
        names += [service.full_name, *(method.full_name for method in service.methods)]
    return names


COMMENTS = {name: comment for file in FILES for name, comment in comments_in(file).items()}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_element_has_a_comment_that_starts_with_its_name(file):
    comments = comments_in(file)
    assert sorted(comments) == sorted(names_in(file))
    strays = {name: text for name, text in comments.items() if text.split(" ")[0] != name.rsplit(".", 1)[1]}
    assert strays == {}


def test_a_boolean_is_optional_exactly_where_its_comment_says_that_unset_means_true():
    def booleans(message: Descriptor) -> list[FieldDescriptor]:
        return [field for field in message.fields if field.type == FieldDescriptor.TYPE_BOOL]

    fields = [field for file in FILES for m in file.message_types_by_name.values() for field in booleans(m)]
    optional = {field.full_name for field in fields if field.has_presence}
    assert optional == {field.full_name for field in fields if "Unset: true" in COMMENTS[field.full_name]}
    assert {
        "tokend.v1.EncodeOptions.add_special_tokens",
        "tokend.v1.DecodeOptions.skip_special_tokens",
    } == optional


def test_the_service_has_its_ten_calls_in_their_shapes():
    def shape(method: MethodDescriptor) -> tuple[bool, bool]:
        return method.client_streaming, method.server_streaming

    methods = tokenizer_service_pb2.DESCRIPTOR.services_by_name["TokenizerService"].methods
    unary, download, bidi = (False, False), (False, True), (True, True)
    assert {method.name: shape(method) for method in methods} == {
        "Encode": unary,
        "BatchEncode": unary,
        "StreamEncode": bidi,
        "CountTokens": unary,
        "Decode": unary,
        "BatchDecode": unary,
        "StreamDecode": bidi,
        "GetTokenizer": unary,
        "LookupTokens": unary,
        "DownloadTokenizer": download,
    }


def test_unary_calls_declare_that_they_have_no_side_effects():
    methods = tokenizer_service_pb2.DESCRIPTOR.services_by_name["TokenizerService"].methods
    pure = {m.name for m in methods if m.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS}
    assert pure == {m.name for m in methods if not (m.client_streaming or m.server_streaming)}


def test_error_reasons_are_those_of_the_domain():
    names = set(error_reason_pb2.ErrorReason.keys()) - {f"{REASON_PREFIX}UNSPECIFIED"}
    assert names == {REASON_PREFIX + reason.value for reason in Reason}


def example_of(reason: Reason) -> dict[str, object]:
    """Returns the ErrorInfo that the comment of an error reason shows."""
    comment = COMMENTS[f"tokend.v1.ErrorReason.{REASON_PREFIX}{reason.value}"]
    example: dict[str, object] = json.loads(comment.partition("Example of an ErrorInfo:")[2])
    return example


@pytest.mark.parametrize("reason", Reason)
def test_each_error_reason_shows_an_error_info_of_its_own(reason):
    example = example_of(reason)
    assert set(example) == {"reason", "domain", "metadata"}
    assert (example["reason"], example["domain"]) == (reason.value, "tokend")
    assert all(isinstance(value, str) for value in example["metadata"].values())


def limit_exceeded(reason: Reason) -> LimitExceeded:
    return LimitExceeded(reason, "too large", size=2, limit=1)


@pytest.mark.parametrize(
    "error",
    [
        limit_exceeded(Reason.TEXT_TOO_LARGE),
        limit_exceeded(Reason.BATCH_TOO_LARGE),
        limit_exceeded(Reason.TOO_MANY_IDS),
        limit_exceeded(Reason.TOO_MANY_SEQUENCES),
        limit_exceeded(Reason.REPLY_TOO_LARGE),
        MalformedMessage("not the declared message"),
        SpecialTokenRejected(token="<|end|>", position=0),
        UnknownTokenId(7, index=0, max_id=6),
        InvalidOption("max_tokens", 0, "must be at least 1"),
        TokenizerMismatch(expected="a" * 64, served="b" * 64),
        ServerOverloaded("too many calls", retry_after_ms=100),
        ShuttingDown(),
    ],
    ids=lambda error: error.reason.value,
)
def test_the_example_of_an_error_reason_has_the_keys_that_the_server_sends(error: RequestError):
    # `index` stands only where the call has several items.
    assert set(example_of(error.reason)["metadata"]) - {"index"} == set(error.metadata) - {"index"}


def floor_and_ceiling(requirement: str) -> tuple[str, str | None]:
    """Splits `name>=1.2,<3` into its two versions."""
    match = re.fullmatch(r"[\w-]+>=([\d.]+)(?:,<([\d.]+))?", requirement)
    assert match is not None, requirement
    return match[1], match[2]


def test_the_generated_code_runs_on_the_oldest_versions_that_pyproject_allows():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base = {re.split(r"[^\w-]", line)[0]: floor_and_ceiling(line) for line in project["dependencies"]}
    pins = dict(pin.split("==") for pin in runpy.run_path(str(ROOT / "proto" / "generate.py"))["PINS"])

    assert pins["grpcio-tools"] == tokenizer_service_pb2_grpc.GRPC_GENERATED_VERSION
    assert base["grpcio"] == base["grpcio-status"] == (pins["grpcio-tools"], None)
    server = {re.split(r"[^\w-]", line)[0]: line for line in project["optional-dependencies"]["server"]}
    for name in ("grpcio-health-checking", "grpcio-reflection"):
        assert floor_and_ceiling(server[name])[0] == pins["grpcio-tools"]

    # Generated code of protobuf's major version N is promised to run on N and N + 1.
    source = Path(types_pb2.__file__).read_text(encoding="utf-8")
    generated = re.search(r"^# Protobuf Python Version: (\d+)\.(\d+)\.(\d+)$", source, re.MULTILINE)
    assert generated is not None
    assert base["protobuf"] == (".".join(generated.groups()), str(int(generated[1]) + 2))
