"""The reference encoder: equal to the library, policy by policy, and never disturbed by another request."""

import json
import random
import threading
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.tokenizers_for_tests import (
    added_token,
    bpe_without_unk,
    byte_fallback_bpe,
    byte_level_bpe,
    metaspace_words,
    suffix_bpe,
    template,
    unigram,
    word_level,
    word_piece,
    write,
)
from tokend_server.engine.artifact import read_artifact
from tokend_server.engine.offsets import OffsetUnit
from tokend_server.engine.reference import EncodeOptions, ReferenceEncoder
from tokend_server.engine.special_tokens import SpecialTokenPolicy, select_control_tokens
from tokend_server.engine.truncation import Truncation, TruncationSide
from tokend_server.errors import InternalFault, InvalidOption, Reason, SpecialTokenRejected

PARSE, TEXT, REJECT = SpecialTokenPolicy.PARSE, SpecialTokenPolicy.TEXT, SpecialTokenPolicy.REJECT


def with_parts(text, **parts):
    return json.dumps({**json.loads(text), **parts})


def roberta():
    """Byte-level with a post-processor that trims offsets and treats the first token in its own way."""
    processing = {
        "type": "RobertaProcessing",
        "sep": ["<|end|>", 263],
        "cls": ["<|bos|>", 262],
        "trim_offsets": True,
        "add_prefix_space": True,
    }
    return with_parts(byte_level_bpe(add_prefix_space=True), post_processor=processing)


def ignoring_merges():
    """`<|end|>` is a word of the vocabulary, and words need no merges and are split at spaces alone."""
    text = byte_level_bpe(
        extra_vocab=["<|end|>"], ignore_merges=True, use_regex=False, added=None, post=False
    )
    spec = json.loads(text)
    spec["added_tokens"] = [added_token(262, "<|end|>"), added_token(263, "<|bos|>")]
    return json.dumps(spec)


def with_bos(text):
    return with_parts(text, post_processor=template("<s> A", "<s> A </s> B", {"<s>": 1, "</s>": 2}))


FILES = {
    "byte level": byte_level_bpe(),
    "byte level, trimmed offsets": byte_level_bpe(add_prefix_space=True, trim_offsets=True),
    "byte level without post-processor": byte_level_bpe(post=False),
    "byte-level post-processor": with_parts(
        byte_level_bpe(add_prefix_space=True),
        post_processor={
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
    ),
    "roberta": roberta(),
    "lower case": byte_level_bpe(normalizer={"type": "Lowercase"}),
    "compatibility forms": byte_level_bpe(normalizer={"type": "NFKC"}),
    "byte fallback": byte_fallback_bpe(),
    "byte fallback, modern": byte_fallback_bpe(modern=True),
    "word pieces": word_piece(),
    "words": metaspace_words(),
    "suffixes": suffix_bpe(),
    "unigram": unigram(),
    "unigram with bos": with_bos(unigram(byte_fallback=True)),
    "unigram, compatibility forms": with_parts(with_bos(unigram()), normalizer={"type": "NFKC"}),
    "no unk": bpe_without_unk(),
    "ignore_merges": ignoring_merges(),
}

FRAGMENTS = [
    *(
        "<|bos|>",
        "<|end|>",
        "<tool>",
        "<s>",
        "</s>",
        "<unk>",
        "<pad>",
        "[CLS]",
        "[UNK]",
        "<|END|>",
        "＜s＞",
        "＜|end|＞",
    ),
    *("<|e", "nd|>", "[", "]", "<", ">", "a", "hello", "world", " the", "hi", "low", "newer", "Café"),
    *(
        " ",
        "  ",
        "\n",
        "\u0000",
        "é",
        "e\u0301",
        "北京",
        "🙂",
        "👩‍👩‍👧",
        "ж",
        "\u202e",
        "▁",
        ",",
        "!",
        "xyz",
        "don't",
    ),
]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)


def reference(text):
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def build(text, folder, more=()):
    artifact = read_artifact(write(folder, text))
    return ReferenceEncoder(artifact, select_control_tokens(artifact, more))


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    return {name: build(text, tmp_path_factory.mktemp("file")) for name, text in FILES.items()}


LIBRARY = {name: reference(text) for name, text in FILES.items()}
each_file = pytest.mark.parametrize("name", FILES)


def controls(name):
    """The control tokens as the design defines them, written once more."""
    added = json.loads(FILES[name])["added_tokens"]
    return {
        token["content"]: token["id"] for token in added if token["special"] or token["content"][:2] == "<|"
    }


def unk_of(name):
    model = json.loads(FILES[name])["model"]
    return model["vocab"][model["unk_id"]][0] if model["type"] == "Unigram" else model.get("unk_token")


def check_against_library(encoder, item, options, expected):
    text, pair = item
    got = encoder.encode([text], None if pair is None else [pair], options)[0]
    assert got.ids == expected.ids
    assert list(zip(got.starts, got.ends, strict=True)) == expected.offsets
    assert got.tokens == expected.tokens
    types = expected.type_ids
    assert got.type_ids == types if pair is not None else got.type_ids is None and not any(types)
    return got


@each_file
@settings(max_examples=60)
@given(text=texts, pair=st.none() | texts, add=st.booleans())
def test_parse_is_the_library(encoders, name, text, pair, add):
    options = EncodeOptions(
        policy=PARSE, add_special_tokens=add, offsets=OffsetUnit.CODE_POINTS, include_tokens=True
    )
    expected = LIBRARY[name].encode(text, pair, add_special_tokens=add)
    got = check_against_library(encoders[name], (text, pair), options, expected)
    assert got.total_token_count == len(expected)
    assert got.special_text_count == 0
    ids_only = encoders[name].encode(
        [text], None if pair is None else [pair], EncodeOptions(policy=PARSE, add_special_tokens=add)
    )[0]
    assert (ids_only.ids, ids_only.type_ids) == (got.ids, got.type_ids)
    assert (ids_only.starts, ids_only.ends, ids_only.tokens) == (None, None, None)


@each_file
@settings(max_examples=80)
@given(
    text=texts,
    pair=st.none() | texts,
    add=st.booleans(),
    side=st.sampled_from(TruncationSide),
    max_tokens=st.integers(1, 20),
)
def test_truncation_is_that_of_the_library(encoders, *, name, text, pair, add, side, max_tokens):
    encoder = encoders[name]
    n_added = encoder.tokens_added(pair=pair is not None) if add else 0
    options = EncodeOptions(
        policy=PARSE,
        add_special_tokens=add,
        truncation=Truncation(max_tokens=max_tokens, side=side),
        offsets=OffsetUnit.CODE_POINTS,
        include_tokens=True,
    )
    pairs = None if pair is None else [pair]
    if max_tokens < n_added:
        with pytest.raises(InvalidOption):
            encoder.encode([text], pairs, options)
        return
    tokenizer = reference(FILES[name])
    tokenizer.enable_truncation(max_tokens, direction=side.value)
    expected = tokenizer.encode(text, pair, add_special_tokens=add)
    got = check_against_library(encoder, (text, pair), options, expected)
    assert got.total_token_count == len(LIBRARY[name].encode(text, pair, add_special_tokens=add))
    ids_only = EncodeOptions(policy=PARSE, add_special_tokens=add, truncation=options.truncation)
    plain = encoder.encode([text], pairs, ids_only)[0]
    assert (plain.ids, plain.type_ids, plain.total_token_count) == (
        got.ids,
        got.type_ids,
        got.total_token_count,
    )
    assert encoder.count([text], pairs, ids_only) == [len(got.ids)]


@each_file
@settings(max_examples=120)
@given(text=texts, pair=st.none() | texts, add=st.booleans())
def test_text_lets_no_control_token_out_of_the_text_and_counts_what_it_kept(encoders, name, text, pair, add):
    encoder, library, control, unk = encoders[name], LIBRARY[name], controls(name), unk_of(name)
    pairs = None if pair is None else [pair]
    got = encoder.encode([text], pairs, EncodeOptions(add_special_tokens=add))[0]
    without = encoder.encode([text], pairs, EncodeOptions(add_special_tokens=False))[0]
    ids_of_control = set(control.values()) - {library.token_to_id(unk) if unk else None}
    assert ids_of_control.isdisjoint(without.ids)
    # The post-processor adds the same as ever.
    assert len(got.ids) - len(without.ids) == (encoder.tokens_added(pair=pair is not None) if add else 0)
    made = 0
    for part in (text, pair or ""):
        encoding = library.encode(part, add_special_tokens=False)
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            spelled = unicodedata.normalize("NFKC", part[start:end])
            made += token_id in ids_of_control or (token_id in control.values() and unk in spelled)
    assert got.special_text_count == without.special_text_count == made
    if made == 0:
        parsed = encoder.encode([text], pairs, EncodeOptions(policy=PARSE, add_special_tokens=add))[0]
        assert got == parsed
        assert encoder.encode([text], pairs, EncodeOptions(policy=REJECT, add_special_tokens=add))[0] == got
    else:
        with pytest.raises(SpecialTokenRejected):
            encoder.encode([text], pairs, EncodeOptions(policy=REJECT, add_special_tokens=add))


@each_file
@settings(max_examples=40)
@given(text=texts, pair=st.none() | texts)
def test_allowing_every_control_token_is_parse(encoders, name, text, pair):
    encoder = encoders[name]
    everything = frozenset(controls(name))
    pairs = None if pair is None else [pair]
    parsed = encoder.encode([text], pairs, EncodeOptions(policy=PARSE))
    for policy in (TEXT, REJECT, PARSE):
        options = EncodeOptions(policy=policy, allowed_special_tokens=everything)
        assert encoder.encode([text], pairs, options) == parsed


@each_file
@settings(max_examples=30)
@given(batch=st.lists(texts, max_size=6))
def test_a_batch_is_its_texts_one_by_one(encoders, name, batch):
    encoder = encoders[name]
    assert encoder.encode(batch) == [encoder.encode([text])[0] for text in batch]
    assert encoder.count(batch) == [len(encoded.ids) for encoded in encoder.encode(batch)]
    doubled = encoder.encode(batch, batch[::-1])
    assert doubled == [encoder.encode([a], [b])[0] for a, b in zip(batch, batch[::-1], strict=True)]


@each_file
@settings(max_examples=40)
@given(text=texts, pair=texts)
def test_offsets_cut_the_same_pieces_in_every_unit(encoders, name, text, pair):
    points, utf8, utf16 = (
        encoders[name].encode([text], [pair], EncodeOptions(policy=PARSE, offsets=unit))[0]
        for unit in (OffsetUnit.CODE_POINTS, OffsetUnit.UTF8_BYTES, OffsetUnit.UTF16_UNITS)
    )
    owners = LIBRARY[name].encode(text, pair).sequence_ids
    assert len(owners) == len(points.ids)
    for n, owner in enumerate(owners):
        whole = "" if owner is None else (text, pair)[owner]
        piece = whole[points.starts[n] : points.ends[n]]
        assert whole.encode()[utf8.starts[n] : utf8.ends[n]] == piece.encode()
        units = whole.encode("utf-16-le")
        assert units[2 * utf16.starts[n] : 2 * utf16.ends[n]] == piece.encode("utf-16-le")


def one(encoder, text, **options):
    return encoder.encode([text], None, EncodeOptions(**options))[0]


def test_a_marker_typed_by_a_user_stays_text_by_default(encoders):
    encoder = encoders["byte level"]
    text = "a<|end|>b"
    kept = one(encoder, text, add_special_tokens=False)
    assert kept.ids == [97, 60, 124, 101, 110, 100, 124, 62, 98]
    assert kept.special_text_count == 1
    assert one(encoder, text, add_special_tokens=False, policy=PARSE).ids == [97, 263, 98]
    assert one(encoder, "<|bos|>hi", policy=PARSE).ids == [262, 262, 104, 105]
    assert one(encoder, "docs about <|end|> and <|bos|>").special_text_count == 2


def test_reject_names_the_token_its_place_and_the_item(encoders):
    encoder = encoders["byte level"]
    with pytest.raises(SpecialTokenRejected) as refused:
        encoder.encode(["fine", "é🙂 <|end|><|bos|>"], None, EncodeOptions(policy=REJECT))
    assert refused.value.metadata == {"token": "<|end|>", "position": "3", "index": "1"}
    with pytest.raises(SpecialTokenRejected) as refused:
        encoder.encode(["fine"], ["ok <|bos|>"], EncodeOptions(policy=REJECT))
    assert refused.value.metadata == {"token": "<|bos|>", "position": "3", "index": "0"}


def test_the_place_of_a_token_that_takes_spaces_is_that_of_its_content(tmp_path):
    added = [added_token(262, "<|m|>", lstrip=True, rstrip=True), added_token(263, "<Stop>", normalized=True)]
    encoder = build(byte_level_bpe(added=added, post=False, normalizer={"type": "Lowercase"}), tmp_path)
    for text, token, position in (("a \t <|m|>  b", "<|m|>", "4"), ("ab<STOP>", "<Stop>", "2")):
        assert one(encoder, text).special_text_count == 1
        with pytest.raises(SpecialTokenRejected) as refused:
            one(encoder, text, policy=REJECT)
        assert refused.value.metadata == {"token": token, "position": position, "index": "0"}


def test_a_single_word_token_inside_a_word_is_not_counted(tmp_path):
    encoder = build(byte_level_bpe(added=[added_token(262, "end", single_word=True)], post=False), tmp_path)
    assert one(encoder, "endless bend").special_text_count == 0
    assert one(encoder, "endless bend", policy=REJECT).ids == one(encoder, "endless bend", policy=PARSE).ids
    assert one(encoder, "the end").special_text_count == 1
    assert 262 not in one(encoder, "the end").ids


def test_a_marker_that_the_file_does_not_call_special_stays_text(tmp_path):
    added = [added_token(262, "<｜User｜>", special=False), added_token(263, "<think>", special=False)]
    text = byte_level_bpe(added=added, post=False)
    encoder = build(text, tmp_path)
    assert 262 not in one(encoder, "<｜User｜>").ids
    assert one(encoder, "<think>").ids == [263]
    strict = build(text, tmp_path, ["/<.*>/"])
    assert one(strict, "<think>").ids == [60, 256, *b"ink>"]


def test_allowed_tokens_are_parsed_and_others_are_not(encoders):
    encoder = encoders["byte level"]
    options = {"add_special_tokens": False, "allowed_special_tokens": ("<|end|>",)}
    kept = one(encoder, "<|bos|><|end|>", **options)
    assert kept.ids == [*b"<|bos|>", 263]
    assert kept.special_text_count == 1
    assert one(encoder, "a<|end|>", policy=REJECT, **options).ids == [97, 263]
    with pytest.raises(SpecialTokenRejected, match="bos"):
        one(encoder, "<|end|><|bos|>", policy=REJECT, **options)
    # An ordinary added token may be named; it is parsed anyway.
    assert one(encoder, "<tool>", add_special_tokens=False, allowed_special_tokens=("<tool>",)).ids == [264]


@pytest.mark.parametrize("policy", SpecialTokenPolicy)
def test_an_allowed_token_that_the_file_does_not_have_is_refused_without_its_text(encoders, policy):
    with pytest.raises(InvalidOption) as refused:
        one(encoders["byte level"], "a", policy=policy, allowed_special_tokens=("<|end|>", "secret"))
    assert refused.value.metadata == {"field": "allowed_special_tokens", "value": "1"}
    assert "secret" not in str(refused.value)


def test_more_allowed_sets_than_are_kept_still_answer_rightly(encoders):
    encoder = encoders["word pieces"]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for mask in [*range(32), *range(32)]:
        allowed = frozenset(name for n, name in enumerate(names) if mask >> n & 1)
        for token_id, name in enumerate(names):
            if name == "[UNK]":
                continue
            ids = one(encoder, name, add_special_tokens=False, allowed_special_tokens=allowed).ids
            assert (ids == [token_id]) == (name in allowed)


def test_a_model_that_holds_the_string_does_not_give_it_away(encoders):
    encoder = encoders["unigram with bos"]
    kept = one(encoder, "hello<s>")
    assert kept.ids[0] == 1
    assert kept.ids.count(1) == 1
    assert kept.special_text_count == 1
    assert one(encoder, "hello<s>", policy=PARSE).ids.count(1) == 2
    allowed = one(encoder, "hello<s></s>", allowed_special_tokens=("<s>",))
    assert (allowed.ids.count(1), allowed.ids.count(2), allowed.special_text_count) == (2, 0, 1)
    assert (
        one(encoder, "hello<s></s>", allowed_special_tokens=("<s>",), include_tokens=True).tokens.count("<s>")
        == 2
    )


def test_a_string_that_only_the_normalizer_makes_is_kept_too(encoders):
    encoder = encoders["unigram, compatibility forms"]
    parsed = one(encoder, "＜s＞", policy=PARSE, add_special_tokens=False)
    assert 1 in parsed.ids
    kept = one(encoder, "＜s＞", add_special_tokens=False)
    assert 1 not in kept.ids
    assert kept.special_text_count == 1
    with pytest.raises(SpecialTokenRejected) as refused:
        one(encoder, "ab ＜s＞", policy=REJECT)
    assert refused.value.metadata["token"] == "<s>"
    assert refused.value.metadata["position"] == "3"


def test_a_token_of_the_model_alone_can_be_kept_as_text(tmp_path):
    encoder = build(unigram(), tmp_path, ["<pad>"])
    assert 7 in one(encoder, "a<pad>", policy=PARSE).ids
    kept = one(encoder, "a<pad>")
    assert 7 not in kept.ids
    assert kept.special_text_count == 1


def test_what_is_cut_off_has_no_say_in_what_stays_text(encoders):
    whole = one(encoders["unigram with bos"], "hello<s>", add_special_tokens=False)
    for n in range(1, len(whole.ids) + 1):
        cut = one(
            encoders["unigram with bos"],
            "hello<s>",
            add_special_tokens=False,
            truncation=Truncation(max_tokens=n),
        )
        assert cut.ids == whole.ids[:n]
        assert cut.special_text_count == 1


@pytest.mark.parametrize(
    ("max_tokens", "pair", "refused"),
    [(0, None, True), (1, None, True), (2, None, False), (2, "a", True), (3, "a", False)],
)
def test_max_tokens_below_what_is_added_is_refused(encoders, max_tokens, pair, refused):
    encoder = encoders["word pieces"]
    options = EncodeOptions(truncation=Truncation(max_tokens=max_tokens))
    pairs = None if pair is None else [pair]
    if not refused:
        assert encoder.encode(["hello world"], pairs, options)[0].ids == [2, 3, 3][:max_tokens]
        return
    with pytest.raises(InvalidOption) as refusal:
        encoder.encode(["hello world"], pairs, options)
    assert refusal.value.metadata == {"field": "truncation.max_tokens", "value": str(max_tokens)}


def test_a_template_that_repeats_the_text_cannot_be_cut(tmp_path):
    text = with_parts(byte_level_bpe(), post_processor=template("A A", "A B", {}))
    encoder = build(text, tmp_path)
    assert one(encoder, "hi").ids == [*b"hihi"]
    with pytest.raises(InvalidOption):
        one(encoder, "hi", truncation=Truncation(max_tokens=3))


def test_a_long_text_is_cut_to_a_few_ids_in_bounded_memory(encoders):
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for side, ids in ((TruncationSide.RIGHT, [262, 97]), (TruncationSide.LEFT, [262, 98])):
        got = one(
            encoders["byte level"], "a" + "x" * 200_000 + "b", truncation=Truncation(max_tokens=2, side=side)
        )
        assert got.ids == ids
        assert got.total_token_count == 200_003
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # One Encoding for each id that is cut off would take more than 100 MB.
    assert grown_kb < 100_000


def test_type_ids_are_given_where_a_single_text_has_other_types_than_0(tmp_path):
    text = with_parts(byte_level_bpe(), post_processor=template("<|bos|> B", "<|bos|> A B", {"<|bos|>": 262}))
    spec = json.loads(text)
    spec["post_processor"]["single"] = [{"Sequence": {"id": "A", "type_id": 2}}]
    assert one(build(json.dumps(spec), tmp_path), "hi").type_ids == [2, 2]


def test_no_texts_and_empty_texts(encoders):
    for name, encoder in encoders.items():
        assert encoder.encode([]) == []
        assert encoder.encode([], []) == []
        assert encoder.count([]) == []
        assert one(encoder, "").ids == LIBRARY[name].encode("").ids
        assert encoder.encode([""], [""])[0].ids == LIBRARY[name].encode("", "").ids


PANICKING = byte_level_bpe(
    normalizer={"type": "Replace", "pattern": {"Regex": r"^(?=\p{L})"}, "content": " "}
)


@pytest.mark.parametrize(
    "options",
    [
        EncodeOptions(),
        EncodeOptions(policy=PARSE),
        EncodeOptions(offsets=OffsetUnit.UTF8_BYTES),
        EncodeOptions(truncation=Truncation(max_tokens=3)),
    ],
)
def test_a_panic_of_the_library_is_an_internal_fault_of_its_item(tmp_path, options):
    encoder = build(PANICKING, tmp_path)
    with pytest.raises(InternalFault) as fault:
        encoder.encode(["1a", "1b", "hello", "world"], None, options)
    assert fault.value.metadata == {"index": "2"}
    assert encoder.encode(["1"], None, options)[0].ids[-1] == 49
    with pytest.raises(InternalFault) as fault:
        encoder.encode(["1", "1"], ["1", "hello"], options)
    assert fault.value.metadata == {"index": "1"}


def test_text_that_the_vocabulary_cannot_express_is_refused_without_it(tmp_path):
    encoder = build(word_level(unk_token=None), tmp_path)
    assert one(encoder, "a b").ids == [1, 2]
    with pytest.raises(InvalidOption) as refused:
        encoder.encode(["a", "secret"])
    assert refused.value.reason is Reason.INVALID_OPTION
    assert refused.value.metadata == {"field": "text", "value": "1"}
    assert "secret" not in str(refused.value)


def test_requests_at_the_same_time_do_not_change_each_other(encoders):
    encoder = encoders["unigram with bos"]
    text = "hello<s>world</s>"
    choices = [
        EncodeOptions(policy=PARSE),
        EncodeOptions(),
        EncodeOptions(allowed_special_tokens=("<s>",)),
        EncodeOptions(allowed_special_tokens=("</s>",)),
        EncodeOptions(truncation=Truncation(max_tokens=3)),
        EncodeOptions(
            truncation=Truncation(max_tokens=4, side=TruncationSide.LEFT), offsets=OffsetUnit.UTF8_BYTES
        ),
        EncodeOptions(add_special_tokens=False, include_tokens=True),
    ]
    expected = [encoder.encode([text], None, options) for options in choices]
    assert len({repr(answer) for answer in expected}) == len(choices)
    wrong = []

    def work(seed):
        chance = random.Random(seed)
        for _ in range(150):
            n = chance.randrange(len(choices))
            if encoder.encode([text], None, choices[n]) != expected[n]:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_encoding_leaves_the_reference_as_it_was_loaded(tmp_path):
    artifact = read_artifact(write(tmp_path, byte_level_bpe()))
    before = artifact.tokenizer.to_str()
    encoder = ReferenceEncoder(artifact, select_control_tokens(artifact))
    one(encoder, "<|end|>")
    one(encoder, "<|end|>", truncation=Truncation(max_tokens=2), allowed_special_tokens=("<|end|>",))
    assert artifact.tokenizer.to_str() == before
    assert artifact.tokenizer.encode_special_tokens is False
    assert artifact.tokenizer.truncation is None
