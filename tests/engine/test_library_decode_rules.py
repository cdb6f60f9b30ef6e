"""Rules of the library's Decode that the tables stand on, tried on the installed library itself.

None of these runs code of tokend. If one fails after the pin of `tokenizers` moved, the library has changed, and
what is built on the rule has to be looked at again (the self-check at load would serve such a file held).
"""

from codecs import utf_8_decode
from random import Random

import pytest

from tests.tokenizers_for_tests import (
    BF,
    BL,
    BLO,
    WP,
    added_token,
    bpe_model,
    byte_letters,
    ctc,
    load,
    metaspace,
    metaspace_words,
    suffix_bpe,
    tokenizer_json,
    word_level,
)

FFFD = "\ufffd"


def byte_ids(data):
    return [3 + byte for byte in data]


def decoded(decoder, *strings):
    """What a decoder makes of token strings."""
    return load(word_level(decoder=decoder)).decoder.decode(list(strings))


class TestDropping:
    """Rule 1: ids become strings, some are dropped, and only then the decoder sees the rest."""

    def test_a_skipped_special_token_does_not_end_a_byte_run(self):
        ids = [*byte_ids(b"\xe4"), 2, *byte_ids(b"\xbd\xa0")]
        assert load(BF()).decode(ids, skip_special_tokens=True) == "你"

    def test_nor_does_an_unknown_id_or_a_hole(self):
        ids = [*byte_ids(b"\xe4"), 9_999, *byte_ids(b"\xbd\xa0")]
        assert load(BF()).decode(ids) == "你"
        holed = tokenizer_json({"type": "WordLevel", "vocab": {"a": 0, "b": 2}, "unk_token": "a"})
        assert load(holed).decode([1, 0, 1, 2]) == "a b"

    def test_a_shown_one_does_and_cuts_characters(self):
        ids = [*byte_ids(b"\xe4"), 2, *byte_ids(b"\xbd\xa0")]
        assert load(BF()).decode(ids, skip_special_tokens=False) == f"{FFFD}</s>{FFFD}{FFFD}"
        assert load(BL()).decode([195, 263, 169], skip_special_tokens=False) == f"{FFFD}<|end|>{FFFD}"


class TestStrings:
    """Rules 2 and 3: an id's string, and that skipping looks at the string."""

    @staticmethod
    def lower_case(**vocab):
        added = [added_token(10, "SPQ", normalized=True), added_token(11, "XYZ", special=False)]
        model = {"type": "WordLevel", "vocab": {"a": 0, **vocab}, "unk_token": "a"}
        return load(tokenizer_json(model, normalizer={"type": "Lowercase"}, added=added))

    @pytest.fixture
    def tokenizer(self):
        return self.lower_case(**{f"w{n}": n for n in range(1, 10)})

    def test_a_normalized_added_token_decodes_as_its_normalized_content(self, tokenizer):
        assert tokenizer.id_to_token(11) == "xyz"
        assert tokenizer.decode([11]) == "xyz"

    def test_a_special_token_whose_string_was_normalized_is_not_skipped(self, tokenizer):
        assert tokenizer.decode([10, 0], skip_special_tokens=True) == "spq a"

    def test_any_token_whose_string_is_a_special_content_is_skipped(self):
        # "x" is special, and the lower-cased content of "X" is the same string at another id.
        added = [added_token(0, "x"), added_token(2, "X", special=False)]
        model = {"type": "WordLevel", "vocab": {"x": 0, "a": 1}, "unk_token": "a"}
        tokenizer = load(tokenizer_json(model, normalizer={"type": "Lowercase"}, added=added))
        assert tokenizer.id_to_token(2) == "x"
        assert tokenizer.decode([1, 2, 0], skip_special_tokens=True) == "a"
        assert tokenizer.decode([1, 2, 0], skip_special_tokens=False) == "a x x"

    def test_a_byte_level_normalizer_makes_added_letters_decode_right(self):
        added = [added_token(262, "<|bos|>"), added_token(263, "Bác", special=False)]
        assert load(BL(added=added, normalizer={"type": "ByteLevel"})).decode([263]) == "Bác"
        assert load(BL(added=added)).decode([263]) == f"B{FFFD}c"


class TestFirstToken:
    """Rules 4, 5 and 7: what is different in the first token, and which token is first."""

    def test_the_first_token_is_the_first_that_was_not_dropped(self):
        tokenizer = load(metaspace_words())
        assert tokenizer.decode([1, 2], skip_special_tokens=True) == "a"
        assert tokenizer.decode([1, 2], skip_special_tokens=False) == "<s> a"

    def test_an_empty_string_counts_as_the_first(self):
        assert decoded(metaspace(), "", "▁a") == " a"

    @pytest.mark.parametrize("scheme", ["always", "first"])
    def test_metaspace_takes_every_mark_out_of_the_first_token(self, scheme):
        assert decoded(metaspace(scheme), "▁▁▁") == ""
        assert decoded(metaspace(scheme), "a▁b", "a▁b") == "aba b"

    def test_metaspace_never_makes_no_exception(self):
        assert decoded(metaspace("never"), "▁a", "▁b") == " a b"

    def test_word_piece_keeps_the_prefix_of_the_first_token(self):
        tokenizer = load(WP())
        assert tokenizer.decode([11, 5]) == "##e hello"
        assert tokenizer.decode([2, 11, 5], skip_special_tokens=True) == "##e hello"

    def test_word_piece_cleans_up_within_a_token_with_its_space_and_never_across(self):
        decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
        assert decoded(decoder, "a", "'", "a") == "a ' a"
        assert decoded(decoder, "I", "do not") == "I don't"
        assert decoded(decoder, "hello", ",") == "hello,"


class TestStrip:
    """Rule 6: Strip looks at each token; behind Fuse that is the whole text."""

    STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}  # noqa: RUF012 (never changed)

    def test_behind_fuse(self):
        stages = {"type": "Sequence", "decoders": [{"type": "Fuse"}, self.STRIP]}
        assert decoded(stages, "", " a", " b") == "a b"
        assert load(BF()).decode([3 + 0x20, 287]) == " hi"

    def test_alone(self):
        assert decoded(self.STRIP, " a", "  b") == "a b"


def test_without_a_decoder_tokens_are_joined_with_a_space_empty_ones_too():
    """Rule 8."""
    tokenizer = load(word_level(("[UNK]", "a", "")))
    assert tokenizer.decode([1, 2, 1]) == "a  a"
    assert tokenizer.decode([2, 1]) == " a"


def test_a_suffix_is_a_space_but_nothing_in_the_last_token_that_counts():
    """Rule 9."""
    decoder = {"type": "BPEDecoder", "suffix": "</w>"}
    assert decoded(decoder, "a</w>b", "c</w>") == "a bc"
    assert decoded(decoder) == ""
    tokenizer = load(suffix_bpe())
    low = tokenizer.token_to_id("low</w>")
    assert tokenizer.decode([low, low, 0], skip_special_tokens=True) == "low low"
    assert tokenizer.decode([]) == ""


class TestCtc:
    """Rule 10: equal neighbours merge before the pad goes, but after skipped tokens went."""

    def test_merging(self):
        tokenizer = load(ctc())
        h, letter_l, pad = (tokenizer.token_to_id(string) for string in ("h", "l", "<pad>"))
        ids = [h, letter_l, letter_l, pad, letter_l]
        assert tokenizer.decode(ids, skip_special_tokens=False) == "hll"
        assert tokenizer.decode(ids, skip_special_tokens=True) == "hl"

    def test_the_word_delimiter_is_a_space_only_with_cleanup(self):
        assert load(ctc()).decode([3, 2, 3]) == "h h"
        assert load(ctc(cleanup=False)).decode([3, 2, 3]) == "h|h"


class TestByteLevel:
    """Rule 11: token by token, all characters through the map or none; added tokens are no exception."""

    def test_all_or_nothing(self):
        decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        assert decoded(decoder, "Ġa", byte_letters("é".encode())) == " aé"
        assert decoded(decoder, "Ġa b", "Ġ") == "Ġa b "

    def test_bytes_join_across_tokens(self):
        assert load(BL()).decode([240, 159, 153, 130]) == "🙂"

    def test_added_tokens(self):
        assert load(BLO()).decode([263]) == f"il{FFFD}veyou"


class TestByteFallback:
    """Rules 12 and 13: what a byte token is, what a run becomes, and that the order of stages shows."""

    def test_forms_of_byte_tokens(self):
        decoder = {"type": "ByteFallback"}
        assert decoded(decoder, "<0x41>", "<0x6a>", "<0x+A>") == "Aj\n"
        assert decoded(decoder, "<0x4>", "<0xGG>") == "<0x4><0xGG>"

    def test_an_added_token_of_that_form_is_a_byte_too(self):
        tokenizer = load(
            word_level(decoder={"type": "ByteFallback"}, added=[added_token(4, "<0x41>", special=False)])
        )
        assert tokenizer.decode([4]) == "A"

    def test_an_invalid_run_is_one_u_fffd_a_byte_good_characters_included(self):
        assert load(BF()).decode(byte_ids(b"\xe4\xbd\xa0\xe5")) == FFFD * 4
        assert load(BF()).decode([*byte_ids(b"\xe4\xbd\xa0\xe5"), 287]) == FFFD * 4 + " hi"

    def test_an_empty_token_ends_a_run(self):
        assert decoded({"type": "ByteFallback"}, "<0xC3>", "", "<0xA9>") == FFFD * 2

    def test_a_word_mark_made_of_bytes_is_replaced_only_behind_them(self):
        replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
        fallback, fuse = {"type": "ByteFallback"}, {"type": "Fuse"}
        strings = ["a", "<0xE2>", "<0x96>", "<0x81>"]
        assert decoded({"type": "Sequence", "decoders": [replace, fallback, fuse]}, *strings) == "a▁"
        assert decoded({"type": "Sequence", "decoders": [fallback, fuse, replace]}, *strings) == "a "


def test_holes_below_the_greatest_id_have_no_string():
    """Rule 14."""
    tokenizer = load(tokenizer_json(bpe_model({"a": 0, "b": 3}, [])))
    assert [tokenizer.id_to_token(n) for n in range(5)] == ["a", None, None, "b", None]
    assert tokenizer.get_vocab_size() == 2


def test_a_strip_at_the_end_makes_the_library_panic():
    strip = {"type": "Strip", "content": " ", "start": 0, "stop": 1}
    with pytest.raises(BaseException) as caught:  # noqa: PT011 (a panic has no class of its own to import)
        decoded(strip, "")
    assert type(caught.value).__name__ == "PanicException"


class TestLossyReading:
    """The library reads bytes with Rust's `from_utf8_lossy`; Python's "replace" is the same but for one trap."""

    def test_all_pairs_and_many_longer_sequences(self):
        tokenizer = load(BL(added=[], post=False))
        random = Random(0)
        edges = [
            0x7F,
            0x80,
            0x8F,
            0x90,
            0x9F,
            0xA0,
            0xBF,
            0xC2,
            0xDF,
            0xE0,
            0xE1,
            0xED,
            0xEF,
            0xF0,
            0xF3,
            0xF4,
            0xF5,
        ]
        sequences = [[one, two] for one in range(256) for two in range(256)]
        sequences += [random.choices(edges, k=random.randint(3, 8)) for _ in range(20_000)]
        for ids in sequences:
            assert tokenizer.decode(ids) == bytes(ids).decode("utf-8", "replace")

    def test_python_waits_for_the_rest_of_half_a_surrogate(self):
        waiting = [
            pair
            for pair in (bytes((one, two)) for one in range(0xC0, 0x100) for two in range(0x80, 0xC0))
            if utf_8_decode(pair, "replace", False)[1] == 0
            and len((pair + b"!").decode("utf-8", "replace")) == 3
        ]
        assert waiting == [bytes((0xED, second)) for second in range(0xA0, 0xC0)]
