"""The same calls by Client and AsyncClient, on real files of each kind, give what the library gives."""

import hashlib
import random

import pytest

import tokend
from tests.equivalence.comparison import named_tokens
from tests.equivalence.inputs import chunks, excerpts, fuzz_texts
from tests.equivalence.subjects import TRAINED, by_the_fast_engine, from_zoo

N_TEXTS = 40
# Of every kind: byte-level, with holes in the ids, many added tokens, byte fallback, WordPiece, Unigram.
NAMES = ("gpt2", "o200k", "llama3", "deepseek-v3", "moonshine", "bert-uncased", "mon")
FAST = ("gpt2", "o200k", "llama3", "deepseek-v3")
SUBJECTS = (*map(from_zoo, NAMES), *TRAINED, *map(by_the_fast_engine, map(from_zoo, FAST)))


@pytest.fixture(params=SUBJECTS, ids=lambda subject: subject.name)
def subject(request):
    return request.param


@pytest.fixture
def served(subject, served_of):
    return served_of(subject)


@pytest.fixture
def client(subject, connect, server_of):
    return connect(server_of(subject).grpc)


@pytest.fixture
def texts(served):
    named = named_tokens(served.reference)
    return ["", *fuzz_texts(7, N_TEXTS, named), *random.Random(7).sample(excerpts(7, 1, 200), 20)]


def test_encode_and_encode_batch(client, served, texts):
    library = served.reference.tokenizer
    batch = client.encode_batch(texts, special_tokens="parse", offsets="code_points", include_tokens=True)
    packed = client.encode_batch(texts, special_tokens=tokend.SpecialTokens.PARSE)
    for text, listed, plain in zip(texts, batch, packed, strict=True):
        expected = library.encode(text)
        assert plain.ids == expected.ids == plain.numpy().tolist()
        assert (listed.ids, listed.offsets, listed.tokens) == (
            expected.ids,
            expected.offsets,
            expected.tokens,
        )
    for text in texts[:12]:
        expected = library.encode(text)
        one = client.encode(text, special_tokens="PARSE")
        assert (one.ids, one.token_count) == (expected.ids, len(expected.ids))
        bare = client.encode(text, special_tokens="PARSE", add_special_tokens=False)
        assert bare.ids == library.encode(text, add_special_tokens=False).ids


def test_control_tokens_stay_text_unless_asked(client, served, texts):
    text_reference = served.reference.text_reference()
    answers = client.encode_batch(texts)
    for text, got in zip(texts, answers, strict=True):
        assert got.ids == text_reference.ids(text_reference.tokenizer.encode(text))


def test_pairs(client, served, texts):
    library = served.reference.tokenizer
    seconds = texts[::-1]
    pairs = client.encode_batch(texts, seconds, special_tokens="PARSE")
    for text, second, got in zip(texts, seconds, pairs, strict=True):
        expected = library.encode(text, second)
        assert (got.ids, got.type_ids) == (expected.ids, expected.type_ids)
    first = client.encode(texts[1], seconds[1], special_tokens="PARSE")
    assert first.ids == library.encode(texts[1], seconds[1]).ids


def test_encode_stream(client, served, texts):
    library = served.reference.tokenizer
    answers = client.encode_stream(iter(texts), batch_texts=7, special_tokens="PARSE")
    assert [got.ids for got in answers] == [library.encode(text).ids for text in texts]


def test_count(client, served, texts):
    library = served.reference.tokenizer
    expected = [len(library.encode(text).ids) for text in texts]
    counted = client.count(texts, special_tokens="PARSE")
    assert (counted.counts, counted.total, counted.stopped) == (expected, sum(expected), False)
    half = client.count(texts, special_tokens="PARSE", stop_after=sum(expected) // 2)
    assert half.stopped
    assert half.counts == expected[: len(half.counts)]
    assert half.total == sum(half.counts) > sum(expected) // 2 >= half.total - half.counts[-1]


def test_decode_and_decode_batch(client, served, texts):
    library = served.reference.tokenizer
    lists = [library.encode(text).ids for text in texts]
    for skip in (True, False):
        expected = [library.decode(ids, skip_special_tokens=skip) for ids in lists]
        assert [got.text for got in client.decode_batch(lists, skip_special_tokens=skip)] == expected
        assert [client.decode(ids, skip_special_tokens=skip).text for ids in lists[:8]] == expected[:8]


def test_decode_stream(client, served, texts):
    library = served.reference.tokenizer
    rng = random.Random(11)
    for text in texts[::4]:
        ids = library.encode(text).ids
        pieces = client.decode_stream([*chunks(rng, ids)], byte_runs="HOLD", skip_special_tokens=False)
        assert "".join(pieces) == library.decode(ids, skip_special_tokens=False)
    ids = library.encode(texts[-1]).ids
    decoder = client.decoder(byte_runs="HOLD")
    parts = [decoder.push(token_id) for token_id in ids]
    assert "".join([*parts, decoder.finish()]) == library.decode(ids)


def test_lookup(client, served):
    reference = served.reference
    ids = random.Random(13).sample(reference.known_ids, 50)
    beyond = reference.known_ids[-1] + 1
    found = client.lookup([*ids, beyond], [*reference.control][:5])
    assert [(each.id, each.known) for each in found[:51]] == [
        *((each, True) for each in ids),
        (beyond, False),
    ]
    assert [each.token_bytes for each in found[:50]] == [reference.bytes_of(each) for each in ids]
    assert {each.token: each.id for each in found[51:]} == dict([*reference.control.items()][:5])
    assert all(each.control for each in found[51:])


def test_tokenizer_info_and_download(client, served):
    reference = served.reference
    info, file = client.tokenizer_info(), client.download()
    assert file.data == reference.data
    assert info.fingerprint == file.fingerprint == hashlib.sha256(reference.data).hexdigest()
    assert info.model_type == reference.spec["model"]["type"]
    assert (info.vocab_size, info.max_id) == (len(reference.known_ids), reference.known_ids[-1])
    assert {each.token: each.id for each in info.control_tokens} == reference.control


CODE = "def foo(x):\n    return x + 1\n\ndef bar(y):\n        return y * 2"
MARKER = [27, 91, 437, 1659, 5239, 91, 29]
PUBLISHED = [
    ("o200k", "How many r's are in strawberry?", {}, [5299, 1991, 428, 885, 553, 306, 101830, 30]),
    ("gpt2", "The cat sat on the mat.", {}, [464, 3797, 3332, 319, 262, 2603, 13]),
    ("gpt2", "zxqvbk", {}, [42592, 44179, 65, 74]),
    ("gpt2", "naïve café", {}, [2616, 38776, 40304]),
    ("gpt2", "日本", {}, [33768, 98, 17312, 105]),
    ("gpt2", "🙂", {}, [8582, 25081]),
    ("gpt2", "Hello<|endoftext|>World", {"special_tokens": "PARSE"}, [15496, 50256, 10603]),
    ("gpt2", "Hello<|endoftext|>World", {}, [15496, *MARKER, 10603]),
    ("gpt2", "<|endoftext|>", {}, MARKER),
]


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda published: f"{published[0]}, {published[1]}")
def test_published_ids(connect, server_of, published):
    name, text, options, ids = published
    client = connect(server_of(from_zoo(name)).grpc)
    assert client.encode(text, **options).ids == ids
    assert client.decode(ids, skip_special_tokens=False).text == text


@pytest.mark.parametrize(("name", "count"), [("gpt2", 32), ("cl100k", 21)])
def test_published_counts_of_code(connect, server_of, name, count):
    client = connect(server_of(from_zoo(name)).grpc)
    assert client.count(CODE).counts == [count]


def test_gpt2_cuts_numbers_as_published(connect, server_of):
    client = connect(server_of(from_zoo("gpt2")).grpc)
    assert client.encode(" 1234567", include_tokens=True).tokens == ["Ġ123", "45", "67"]


def test_english_russian_normalizes_as_its_mission_says(connect, server_of):
    client = connect(server_of(TRAINED[0]).grpc)
    ids = client.encode("  Он сказал:   «Я не  знаю» - и ушёл…").ids
    assert client.decode(ids).text == 'Он сказал: "Я не знаю" — и ушёл...'
    assert [each.id for each in client.lookup((), ["<pad>", "<unk>", "<bos>", "<eos>"])] == [0, 1, 2, 3]
    assert 1 in client.encode("漢").ids


def test_sprout_is_bytes_first_and_special_tokens_last(connect, server_of):
    client = connect(server_of(TRAINED[1]).grpc)
    assert [each.token_bytes for each in client.lookup(range(256))] == [bytes([n]) for n in range(256)]
    specials = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"]
    assert client.encode("".join(specials), special_tokens="PARSE").ids == [8188, 8189, 8190, 8191]
    # The blank before a digit goes with it, in one token or two; no token holds two digits.
    pieces = client.lookup(client.encode("2026, 11 x99").ids)
    assert max(sum(byte in b"0123456789" for byte in each.token_bytes) for each in pieces) == 1
