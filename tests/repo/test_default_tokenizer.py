"""The embedded default tokenizer is what docs/default-tokenizer.md promises."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.tokenizers_for_tests import BYTE_TO_LETTER
from tokend_server.data import default_tokenizer_path
from tokend_server.data.default_corpus import SOURCES
from tokend_server.data.train_default import PATTERN, SPECIAL_TOKENS, VOCABULARY_SIZE

TOKENIZER = Tokenizer.from_file(str(default_tokenizer_path()))
SPEC = json.loads(default_tokenizer_path().read_text(encoding="utf-8"))
RECORD = default_tokenizer_path().with_name("SOURCES.md").read_text(encoding="utf-8")

SENTENCES = {
    "English": "All human beings are born free and equal in dignity and rights.",
    "Russian": "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "Arabic": "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق.",
    "Hebrew": "כל בני אדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "Hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "Chinese": "人人生而自由，在尊严和权利上一律平等。",
    "Japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "Korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "Thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
}


def test_it_is_small_and_has_the_promised_ids():
    assert default_tokenizer_path().stat().st_size <= 2_000_000
    assert TOKENIZER.get_vocab_size() == VOCABULARY_SIZE
    vocab = SPEC["model"]["vocab"]
    assert all(vocab[letter] == byte for byte, letter in BYTE_TO_LETTER.items())
    first = VOCABULARY_SIZE - len(SPECIAL_TOKENS)
    assert [TOKENIZER.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(first, VOCABULARY_SIZE))
    assert all(entry["special"] for entry in SPEC["added_tokens"])


def test_it_is_the_file_on_record():
    assert hashlib.sha256(default_tokenizer_path().read_bytes()).hexdigest() in RECORD
    assert SPEC["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] == PATTERN


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.package.name)
def test_each_source_is_pinned_openly_licensed_and_on_record(source):
    package = source.package
    assert re.fullmatch("[0-9a-f]{64}", package.sha256)
    assert package.licence
    assert "GPL" not in package.licence
    row = next(line for line in RECORD.splitlines() if f" {package.name} | {package.version} |" in line)
    assert package.licence in row
    assert package.sha256 in row


@pytest.mark.parametrize("language", SENTENCES)
def test_each_script_costs_less_than_a_token_for_two_and_a_half_bytes(language):
    text = SENTENCES[language]
    assert len(text.encode()) / len(TOKENIZER.encode(text).ids) > 2.5


@given(st.text())
def test_any_text_comes_back_exactly(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def test_words_keep_their_contractions_and_numbers_go_by_three():
    pieces = TOKENIZER.pre_tokenizer.pre_tokenize_str
    cut = [piece.replace("Ġ", " ") for piece, _ in pieces("don't, HTTPServer's 1234567 l'été")]
    assert cut == ["don't", ",", " HTTPServer's", " ", "123", "456", "7", " l", "'Ã©tÃ©"]


def test_nothing_is_added_around_a_text():
    assert SPEC["post_processor"] is None
    assert TOKENIZER.encode("").ids == []


def test_no_word_of_the_record_is_a_download_address():
    for page in Path(default_tokenizer_path()).parent.glob("*.md"):
        assert "://" not in page.read_text(encoding="utf-8")
