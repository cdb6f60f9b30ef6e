"""Values that were published for real tokenizers hold on the library with the zoo's files.

They guard the zoo itself: a wrong file or conversion would make every other comparison worthless.
"""

import pytest
from tokenizers import Tokenizer

from tests.zoo import catalogue as zoo
from tests.zoo.texts import texts

PUBLISHED_IDS = [
    ("o200k", "How many r's are in strawberry?", [5299, 1991, 428, 885, 553, 306, 101830, 30]),
    ("gpt2", "The cat sat on the mat.", [464, 3797, 3332, 319, 262, 2603, 13]),
    ("gpt2", "zxqvbk", [42592, 44179, 65, 74]),
    ("gpt2", "naïve café", [2616, 38776, 40304]),
    ("gpt2", "日本", [33768, 98, 17312, 105]),
    ("gpt2", "🙂", [8582, 25081]),
    ("gpt2", "Hello<|endoftext|>World", [15496, 50256, 10603]),
]

CODE = "def foo(x):\n    return x + 1\n\ndef bar(y):\n        return y * 2"


def load(name: str) -> Tokenizer:
    return Tokenizer.from_file(str(zoo.require(name)))


@pytest.mark.parametrize(("name", "text", "ids"), PUBLISHED_IDS)
def test_published_ids(name, text, ids):
    assert load(name).encode(text, add_special_tokens=False).ids == ids


def test_gpt2_takes_the_marker_as_text_when_special_tokens_are_text():
    tokenizer = load("gpt2")
    tokenizer.encode_special_tokens = True
    marker = [27, 91, 437, 1659, 5239, 91, 29]
    assert tokenizer.encode("Hello<|endoftext|>World").ids == [15496, *marker, 10603]


def test_gpt2_cuts_numbers_where_its_merges_say():
    assert [t.replace("Ġ", " ") for t in load("gpt2").encode(" 1234567").tokens] == [" 123", "45", "67"]


@pytest.mark.parametrize(("name", "count"), [("gpt2", 32), ("cl100k", 21)])
def test_published_token_counts_of_code(name, count):
    assert len(load(name).encode(CODE, add_special_tokens=False).ids) == count


VOCABULARIES = {
    "gpt2": ("BPE", 50257),
    "cl100k": ("BPE", 100261),
    "o200k": ("BPE", 200000),
    "gpt-oss": ("BPE", 200019),
    "llama3": ("BPE", 128256),
    "llama3.1": ("BPE", 128256),
    "deepseek-v3": ("BPE", 128815),
    "qwen3": ("BPE", 151669),
    "gemma3": ("BPE", 262145),
    "claude": ("BPE", 65000),
    "mistral-v1": ("BPE", 32000),
    "moonshine": ("BPE", 32768),
    "deepseek-v4": ("BPE", 129280),
    "bert-uncased": ("WordPiece", 30522),
    "mon": ("Unigram", 64256),
    "use-multilingual": ("Unigram", 128000),
}


@pytest.mark.parametrize("name", zoo.names())
def test_each_file_is_the_model_that_the_list_says(name):
    tokenizer = load(name)
    assert (type(tokenizer.model).__name__, tokenizer.get_vocab_size(with_added_tokens=True)) == VOCABULARIES[
        name
    ]


@pytest.mark.parametrize(("name", "adds_bos"), [("llama3", False), ("llama3.1", True)])
def test_of_the_two_llama_3_files_only_the_second_adds_a_bos(name, adds_bos):
    tokenizer = load(name)
    assert (tokenizer.encode("hi").ids[0] == tokenizer.token_to_id("<|begin_of_text|>")) is adds_bos


def test_the_texts_are_in_many_languages_and_scripts():
    found = texts()
    assert {"en", "ru", "zh", "ja", "ko", "ar", "he", "hi", "th", "el", "code", "emoji"} <= set(found)
    assert all(len(text.encode()) >= 40_000 for text in found.values())
