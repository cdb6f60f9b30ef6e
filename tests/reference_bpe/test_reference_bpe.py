"""The second opinion: what a reader of the algorithm would compute is what the service answers, on every BPE file."""

import doctest
import json
import random
import unicodedata
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokend
from tests.reference_bpe import byte_letters, decoding, merges, pieces, tokenizer
from tests.reference_bpe.tokenizer import ReadableTokenizer
from tests.servers import RunningServer
from tests.tokenizers_for_tests import BF, BL, byte_level_bpe
from tests.trained_tokenizers import corpus, english_russian, sprout
from tests.zoo import catalogue as zoo
from tests.zoo import texts as zoo_texts
from tokend_server.data import default_tokenizer_path

ZOO = ("gpt2", "o200k", "llama3", "deepseek-v3", "qwen3", "gemma3", "moonshine")
MORE_OF_THE_ZOO = ("cl100k", "gpt-oss", "llama3.1", "claude", "mistral-v1", "deepseek-v4")
"""Fetched by `make zoo-full` alone, so CI skips these."""

FILES = {
    "english-russian": english_russian,
    "sprout": sprout,
    "default": default_tokenizer_path,
    "BL": BL,
    "BL, whole words first": lambda: byte_level_bpe(ignore_merges=True, extra_vocab=["xyz", "Ġab"]),
    "BL, composed": lambda: byte_level_bpe(normalizer={"type": "NFKC"}),
    "BL, space in front": lambda: byte_level_bpe(add_prefix_space=True),
    "BF": BF,
    **{name: partial(zoo.require, name) for name in (*ZOO, *MORE_OF_THE_ZOO)},
}

PARTS = st.text(max_size=8) | st.sampled_from(
    (
        *(
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "\u00a0",
            "\u3000",
            "\u200b",
            "\u200d",
            "▁",
            "Ġ",
            "<0x41>",
            "\ufffd",
            "\0",
        ),
        *(
            "Hello",
            " world",
            "don't",
            "I'LL",
            "'S",
            "'\u017f",
            "1234567",
            " 12",
            "3.14",
            "x=y;",
            "((",
            "__init__",
        ),
        *(
            "Été",
            "e\u0301",
            "ﬁ",
            "½",
            "Привет",
            "北京",
            "日本語",
            "한국어",
            "ไทย",
            "नमस्ते",
            "مرحبا",
            "🙂",
            "👩\u200d💻",
        ),
        *(
            "<|endoftext|>",
            "<|im_start|>",
            "<｜User｜>",
            "<bos>",
            "<think>",
            "<table>",
            "<s>",
            "<unk>",
            "<|end|>",
        ),
    )
)
TEXTS = st.lists(PARTS, max_size=8).map("".join)


def known_to_both(text: str) -> str:
    """The text without what another version of Unicode reads otherwise: young characters, and one that moved."""
    return "".join(c for c in text if unicodedata.category(c) != "Cn" and c != "\u0295")


def parsed(file: Path | str) -> dict:
    return json.loads(file if isinstance(file, str) else file.read_text(encoding="utf-8"))


@pytest.fixture
def opinions(request, client_of):
    """The client of a server on the file, and the readable tokenizers of the same file under PARSE and TEXT."""
    file = FILES[request.param]()
    with ExitStack() as stack:
        if request.param in MORE_OF_THE_ZOO:
            # Large, and asked for nowhere else: a server for this test alone.
            server = RunningServer(tokenizer=file)
            stack.callback(server.stop)
            client = stack.enter_context(tokend.Client(server.grpc))
        else:
            client = client_of(file)
        control = [token.token for token in client.tokenizer_info().control_tokens]
        readable = ReadableTokenizer(parsed(file))
        yield client, {"parse": readable, "text": readable.keeping_as_text(control)}


def check(opinions, texts: list[str]) -> None:
    """The same ids, whether special tokens are looked for or not, and the same text back."""
    client, readable = opinions
    texts = [known_to_both(text) for text in texts]
    for policy, reader in readable.items():
        encoded = client.encode_batch(texts, special_tokens=policy, add_special_tokens=False)
        assert [each.ids for each in encoded] == [reader.encode(text) for text in texts]
        decoded = client.decode_batch([each.ids for each in encoded], skip_special_tokens=False)
        assert [each.text for each in decoded] == [reader.decode(each.ids) for each in encoded]


def written(chance: random.Random) -> list[str]:
    """Lines of English and Russian, and pieces of every language of the zoo's texts where they were fetched."""
    lines = chance.sample(corpus(), 20)
    found = zoo_texts.texts() if zoo_texts.place().exists() else {}
    for text in found.values():
        starts = [chance.randrange(max(1, len(text) - 200)) for _ in range(2)]
        lines += [text[start : start + 200] for start in starts]
    return lines


@pytest.mark.parametrize(
    "module", [tokenizer, pieces, byte_letters, merges, decoding], ids=lambda m: m.__name__
)
def test_the_examples_in_the_pages_are_true(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


@pytest.mark.parametrize("opinions", FILES, indirect=True)
def test_the_service_gives_the_ids_that_the_algorithm_gives(opinions):
    check(opinions, written(random.Random(1201)))

    @settings(max_examples=25)
    @given(texts=st.lists(TEXTS, max_size=4))
    def law(texts):
        check(opinions, texts)

    law()


@settings(max_examples=60)
@given(ids=st.lists(st.integers(0, 255), max_size=30))
@pytest.mark.parametrize("name", ["sprout", "BL", "BF"])
def test_any_bytes_get_the_text_that_the_algorithm_gives(client_of, name, ids):
    file = FILES[name]()
    # In BF the byte b is the token 3 + b.
    chosen = [3 + byte for byte in ids] if name == "BF" else ids
    text = client_of(file).decode(chosen, skip_special_tokens=False).text
    assert text == ReadableTokenizer(parsed(file)).decode(chosen)
