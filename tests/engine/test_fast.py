"""The fast engine behind its interface: the file as it sees it, and the reference's ids."""

import json
import subprocess
import sys
import threading
from array import array
from itertools import pairwise

import pytest
from fastokens import Tokenizer
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.fast_for_tests import Subject
from tests.tokenizers_for_tests import (
    BF,
    BL,
    BLO,
    WP,
    added_token,
    bpe_model,
    byte_level_bpe,
    tokenizer_json,
    write,
)
from tests.zoo.catalogue import ENTRIES, require
from tokend_server.data import default_tokenizer_path
from tokend_server.engine.encode_options import EncodeOptions
from tokend_server.engine.fast import FastEngineRefusal, engine_file, load_fastokens, loader_named
from tokend_server.engine.feature_gate import unsupported_feature
from tokend_server.engine.special_tokens import SpecialTokenPolicy
from tokend_server.engine.verification.code_points import rich_probe

PARSE, TEXT = SpecialTokenPolicy.PARSE, SpecialTokenPolicy.TEXT

FRAGMENTS = [
    *(
        "<|bos|>",
        "<|end|>",
        "<tool>",
        "<|e",
        "nd|>",
        "the",
        " the",
        "aaaa",
        "aa",
        "'s",
        "'S",
        "'\u017f",
        "hi",
        "İ",
    ),
    *(
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\u00a0",
        "1",
        "123",
        "é",
        "e\u0301",
        "日本",
        "🙂",
        "👨\u200d👩",
        "\x00",
        "\ufffd",
    ),
]


def ids_of(engine, texts, *, add=False, keep=True):
    packed, bounds = engine.encode_flat(list(texts), add_special_tokens=add, keep_control=keep)
    ids = array("I", packed)
    return [ids[start:end].tolist() for start, end in pairwise(bounds)]


def holed() -> str:
    """BL without the ids 256 and 258: the merges that make them are gone."""
    spec = json.loads(BL())
    spec["model"]["merges"] = [
        merge for merge in spec["model"]["merges"] if merge in (["a", "a"], ["aa", "aa"])
    ]
    spec["model"]["vocab"] = {
        string: token_id
        for string, token_id in spec["model"]["vocab"].items()
        if token_id not in (256, 257, 258)
    }
    # With holes the library keeps the ids of added tokens only where the model's own vocabulary has them.
    spec["model"]["vocab"] |= {token["content"]: token["id"] for token in spec["added_tokens"]}
    return json.dumps(spec)


SPECIAL = [added_token(262, "<|bos|>"), added_token(263, "<|end|>")]
SMALL = {
    "byte level": BL(),
    "added letters": BLO(),
    "prefix space": byte_level_bpe(add_prefix_space=True),
    "no regex": byte_level_bpe(use_regex=False),
    "whole words": byte_level_bpe(ignore_merges=True, extra_vocab=["hi"]),
    "composed": byte_level_bpe(normalizer={"type": "NFC"}, added=SPECIAL),
    "lower case": byte_level_bpe(normalizer={"type": "Lowercase"}, added=SPECIAL),
    "holes": holed(),
}


@pytest.fixture(scope="module", params=SMALL)
def both(request, tokenizer_file):
    """A small file's reference and fast engine."""
    subject = Subject.of(tokenizer_file(SMALL[request.param]))
    assert unsupported_feature(subject.artifact.spec, subject.reference) is None
    return subject.reference, subject.engine()


class TestSmallFiles:
    @given(
        texts=st.lists(
            st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=12).map("".join), max_size=8
        )
    )
    def test_the_fast_engine_gives_what_the_reference_gives(self, both, texts):
        reference, engine = both
        free = [text for text in texts if not reference.may_hold_control_token(text)]
        for add in (False, True):
            for policy, some in ((PARSE, texts), (TEXT, free)):
                expected = reference.encode(some, None, EncodeOptions(policy=policy, add_special_tokens=add))
                assert ids_of(engine, some, add=add, keep=policy is TEXT) == [each.ids for each in expected]

    def test_no_texts_give_no_ids_and_one_bound(self, both):
        assert both[1].encode_flat([], add_special_tokens=True, keep_control=True) == (b"", [0])


def test_real_files_give_what_the_reference_gives_on_a_page_of_text():
    text = "The naïve café — 日本語 🙂 don't\n\n  1234567 Привет, мир! def f(x):\n\treturn x\n"
    fast = [name for name in ENTRIES if ENTRIES[name].is_tokenizer and ENTRIES[name].set == "core"]
    compared = 0
    for path in [default_tokenizer_path(), *map(require, fast)]:
        subject = Subject.of(path)
        if unsupported_feature(subject.artifact.spec, subject.reference) is None:
            expected = subject.reference.encode([text], None, EncodeOptions())[0].ids
            assert ids_of(subject.engine(), [text], add=True) == [expected], path
            compared += 1
    assert compared >= 4


def test_holes_are_filled_with_what_no_text_reaches(tokenizer_file):
    subject = Subject.of(tokenizer_file(holed()))
    assert ids_of(subject.engine(), ["the aaaa th"]) == [[*b"the ", 261, *b" th"]]
    with pytest.raises(ValueError, match="unsupported model"):
        Tokenizer.from_json_str(holed())


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path):
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
    }
    path = write(tmp_path, BL(truncation=truncation, padding={**padding, "pad_token": "\x00"}))
    assert ids_of(Subject.of(path).engine(), ["hello"]) == [[*b"hello"]]


def test_control_tokens_stay_text_whether_the_file_calls_them_special_or_not(tmp_path):
    path = write(
        tmp_path, BL(added=[added_token(262, "<|a|>", special=False), added_token(263, "<b>", special=False)])
    )
    subject = Subject.of(path)
    assert list(subject.control.ids) == ["<|a|>"]
    assert ids_of(subject.engine(), ["<|a|><b>"]) == [[*b"<|a|>", 263]]
    assert ids_of(subject.engine(), ["<|a|><b>"], keep=False) == [[262, 263]]


def test_a_file_that_the_engine_does_not_take_is_refused_with_its_reason():
    with pytest.raises(FastEngineRefusal, match=r"fastokens refuses the file: .*BertNormalizer"):
        load_fastokens(WP())


def test_a_vocabulary_with_a_million_holes_is_refused():
    file = tokenizer_json(bpe_model({"a": 0, "b": 5_000_000}, []))
    with pytest.raises(FastEngineRefusal, match="4999999 holes"):
        engine_file(json.loads(file), ())


def test_an_environment_that_makes_the_engine_keep_texts_is_refused(monkeypatch):
    monkeypatch.setenv("FASTOKENS_INPUT_CACHE", "8")
    with pytest.raises(FastEngineRefusal, match="FASTOKENS_INPUT_CACHE"):
        load_fastokens(BL())


def test_a_loader_is_found_by_its_name():
    assert loader_named("tokend_server.engine.fast:load_fastokens") is load_fastokens


def test_threads_do_not_disturb_each_other(tokenizer_file):
    engine = Subject.of(tokenizer_file(BL())).engine()
    wrong = []

    def work(n: int) -> None:
        for _ in range(200):
            text = f"{n} the aaaa " * (1 + n % 5)
            if ids_of(engine, [text, "x"]) != [alone[n], [120]]:
                wrong.append(n)

    alone = {n: ids_of(engine, [f"{n} the aaaa " * (1 + n % 5)])[0] for n in range(8)}
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_loading_starts_no_thread_so_that_workers_may_be_forked_after_it(tokenizer_file):
    program = (
        "import os, sys; from tokend_server.engine.fast import load_fastokens\n"
        "engine = load_fastokens(open(sys.argv[1]).read())\n"
        "assert len(os.listdir('/proc/self/task')) == 1\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    packed, bounds = engine.encode_flat(['abc the'] * 500, add_special_tokens=False, keep_control=True)\n"
        "    os._exit(0 if bounds[-1] == 2000 else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tokenizer_file(BL()))], timeout=60, check=False)
    assert done.returncode == 0


def test_a_byte_token_written_out_in_a_text_shows_why_verification_is_needed(tokenizer_file):
    # The engine takes the string of a vocabulary entry whose letters the vocabulary lacks; the reference never does.
    subject = Subject.of(tokenizer_file(BF()))
    text = "<0x41>"
    assert ids_of(subject.engine(), [text]) != [
        subject.reference.encode([text], None, EncodeOptions(add_special_tokens=False))[0].ids
    ]


def probes(path, *code_points):
    """Whether the engines agree on all contexts of some code points."""
    subject = Subject.of(path)
    texts = [rich_probe(code_point) for code_point in code_points]
    options = EncodeOptions(add_special_tokens=False)
    expected = [each.ids for each in subject.reference.encode(texts, None, options)]
    return [ids == other for ids, other in zip(ids_of(subject.engine(), texts), expected, strict=True)]


def test_the_vowel_separator_is_cut_differently_in_the_embedded_tokenizer():
    # U+180E was white space before Unicode 6.3; the engines' regular expressions do not agree on it.
    assert probes(default_tokenizer_path(), 0x180E, 0x17F) == [False, True]


def test_an_apostrophe_before_the_long_s_is_cut_alike_in_o200k():
    # Earlier versions differed here: U+017F is an s without regard to case, as in the contraction 's.
    assert probes(require("o200k"), 0x17F, 0x180E) == [True, True]
