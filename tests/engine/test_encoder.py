"""The encoder: whichever engine has a text, the answer is the reference's; and a fault ends the fast engine."""

from array import array
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine import planted_engines
from tests.engine.fast_for_tests import Subject
from tests.engine.planted_engines import RARE, SNOWMAN
from tests.tokenizers_for_tests import BL
from tokend_server.engine.encode_options import EncodeOptions
from tokend_server.engine.encoder import Encoder
from tokend_server.engine.engine_status import EngineEvents, EngineState
from tokend_server.engine.offsets import OffsetUnit
from tokend_server.engine.shadow import ShadowResult
from tokend_server.engine.special_tokens import SpecialTokenPolicy
from tokend_server.engine.truncation import Truncation, TruncationSide
from tokend_server.errors import InternalFault, InvalidOption, SpecialTokenRejected

PARSE, TEXT, REJECT = SpecialTokenPolicy.PARSE, SpecialTokenPolicy.TEXT, SpecialTokenPolicy.REJECT
FAST = "fastokens"


class Watched(EngineEvents):
    """Keeps what it is told."""

    def __init__(self):
        self.texts, self.results, self.states, self.failures = [], [], [], 0

    def encoded(self, engine, n_texts):
        self.texts.append((engine, n_texts))

    def shadow_checked(self, result):
        self.results.append(result)

    def engine_failed(self):
        self.failures += 1

    def changed(self, status):
        self.states.append(status.state)


@pytest.fixture(scope="module")
def subject(tokenizer_file):
    return Subject.of(tokenizer_file(BL()))


@pytest.fixture(scope="module")
def encoder(subject):
    """On the real engine, which does not have the snowman."""
    return subject.encoder(excluded={ord(SNOWMAN)})


@pytest.fixture
def watched(subject):
    """An encoder on the real engine that does not have the snowman, and what it tells."""
    encoder, events = subject.encoder(excluded={ord(SNOWMAN)}), Watched()
    encoder.observe(events)
    yield encoder, events
    encoder.close()


def ids_of(batch):
    ids = array("I", batch.packed_ids)
    bounds = [*accumulate(batch.token_counts, initial=0)]
    return [ids[start:end].tolist() for start, end in pairwise(bounds)]


TEXTS = st.lists(
    st.lists(
        st.sampled_from(
            ["<|end|>", "<|bos|>", "<tool>", SNOWMAN, " the", "aaaa", "é", "🙂", " ", "\n", "<|e", "x"]
        ),
        max_size=8,
    ).map("".join),
    max_size=6,
)
TRUNCATIONS = st.builds(Truncation, max_tokens=st.integers(1, 12), side=st.sampled_from(TruncationSide))


class TestEqualToTheReference:
    @given(
        texts=TEXTS,
        policy=st.sampled_from([PARSE, TEXT]),
        add=st.booleans(),
        allowed=st.sets(st.sampled_from(["<|end|>", "<|bos|>", "<tool>"])),
        truncation=st.none() | TRUNCATIONS,
        with_pairs=st.booleans(),
        offsets=st.sampled_from(OffsetUnit),
        include_tokens=st.booleans(),
    )
    def test_for_all_options(  # noqa: PLR0917 (hypothesis gives them by name)
        self, subject, encoder, texts, policy, add, allowed, truncation, with_pairs, offsets, include_tokens
    ):
        options = EncodeOptions(
            policy=policy,
            add_special_tokens=add,
            allowed_special_tokens=frozenset(allowed),
            truncation=truncation,
            offsets=offsets,
            include_tokens=include_tokens,
        )
        pairs = texts[::-1] if with_pairs else None
        expected = subject.reference.encode(texts, pairs, options)
        assert encoder.encode(texts, pairs, options) == expected
        assert encoder.count(texts, pairs, options) == [len(each.ids) for each in expected]
        packed = encoder.encode_packed(texts, pairs, options)
        assert ids_of(packed) == [each.ids for each in expected]
        assert packed.total_token_counts == [each.total_token_count for each in expected]
        assert packed.special_text_counts == [each.special_text_count for each in expected]

    @given(texts=TEXTS)
    def test_for_refusals(self, subject, encoder, texts):
        def outcome(encode):
            try:
                return [each.ids for each in encode(texts, None, EncodeOptions(policy=REJECT))]
            except SpecialTokenRejected as refusal:
                return refusal.message, refusal.metadata

        assert outcome(encoder.encode) == outcome(subject.reference.encode)

    def test_options_that_cannot_be_served_are_refused_alike(self, encoder):
        for options in (
            EncodeOptions(truncation=Truncation(max_tokens=0)),
            EncodeOptions(allowed_special_tokens=("<no token>",)),
        ):
            with pytest.raises(InvalidOption):
                encoder.encode(["x"], None, options)

    def test_texts_may_come_as_any_sequence(self, encoder):
        assert encoder.encode_packed(("the", "x")).token_counts == [2, 2]


class TestRequestGate:
    def test_only_the_odd_texts_of_a_batch_go_to_the_reference(self, watched):
        encoder, events = watched
        encoder.encode_packed(["a", f"b{SNOWMAN}", "c", "<|end|>", "d"])
        assert events.texts == [(FAST, 3), ("reference", 2)]

    def test_parsed_control_tokens_are_the_fast_engines_too(self, watched):
        encoder, events = watched
        assert encoder.encode(["a<|end|>"], None, EncodeOptions(policy=PARSE))[0].ids == [262, 97, 263]
        assert events.texts == [(FAST, 1)]

    def test_a_text_that_need_not_be_cut_stays_with_the_fast_engine(self, watched):
        encoder, events = watched
        cut = encoder.encode(["ab", "abcdef"], None, EncodeOptions(truncation=Truncation(max_tokens=3)))
        assert [(each.ids, each.total_token_count) for each in cut] == [
            ([262, 97, 98], 3),
            ([262, 97, 98], 7),
        ]
        assert events.texts == [(FAST, 1), ("reference", 1)]

    @pytest.mark.parametrize(
        ("pairs", "options"),
        [
            (["y"], EncodeOptions()),
            (None, EncodeOptions(offsets=OffsetUnit.CODE_POINTS)),
            (None, EncodeOptions(include_tokens=True)),
        ],
    )
    def test_what_asks_for_more_than_ids_goes_to_the_reference(self, watched, pairs, options):
        encoder, events = watched
        encoder.encode(["x"], pairs, options)
        assert events.texts == [("reference", 1)]

    def test_many_excluded_code_points_are_looked_for_at_once(self, subject):
        encoder, events = subject.encoder(excluded=range(0x2600, 0x2700)), Watched()
        encoder.observe(events)
        encoder.encode(["plain", "\u2600", "\u26ff", "\u2700", "é"])
        assert events.texts == [(FAST, 3), ("reference", 2)]

    def test_two_excluded_code_points_are_looked_for_one_by_one(self, subject):
        encoder, events = subject.encoder(excluded={0x180E, 0x17F}), Watched()
        encoder.observe(events)
        encoder.encode(["plain", "a\u017f", "\u180e", "é"])
        assert events.texts == [(FAST, 2), ("reference", 2)]


class TestStates:
    def test_it_begins_on_the_reference(self, subject):
        encoder = Encoder(subject.reference)
        assert (encoder.status.name, encoder.status.state) == ("reference", EngineState.DISABLED)
        assert encoder.encode(["x"])[0].ids == [262, 120]

    def test_it_switches_when_an_engine_is_there(self, subject):
        encoder, events = Encoder(subject.reference), Watched()
        encoder.observe(events)
        encoder.serve_reference(EngineState.PENDING, "verification is running")
        encoder.encode(["x"])
        encoder.serve_fast(subject.engine(), frozenset({1, 2}), shadow_every=0)
        encoder.encode(["x"])
        assert events.states == [EngineState.DISABLED, EngineState.PENDING, EngineState.VERIFIED]
        assert events.texts == [("reference", 1), (FAST, 1)]
        assert (encoder.status.name, encoder.status.reason, encoder.status.excluded_code_points) == (
            FAST,
            "",
            2,
        )

    def test_a_quarantine_is_for_good_and_told_once(self, subject):
        encoder, reasons = subject.encoder(), []
        encoder.on_quarantine(reasons.append)
        encoder.quarantine("first")
        encoder.quarantine("second")
        encoder.serve_fast(subject.engine(), frozenset(), shadow_every=0)
        encoder.serve_reference(EngineState.UNSUPPORTED, "third")
        assert (encoder.status.state, encoder.status.reason, reasons) == (
            EngineState.QUARANTINED,
            "first",
            ["first"],
        )
        assert encoder.status.name == "reference"


class TestFaults:
    def test_a_wrong_answer_on_a_rare_string_is_found_behind_the_reply(self, subject):
        encoder, events = subject.encoder(planted_engines.wrong_on_a_rare_string, shadow_every=1), Watched()
        encoder.observe(events)
        encoder.encode_packed(["hello", "world"])
        assert encoder.settle(10)
        assert events.results == [ShadowResult.SAME] * 2
        wrong = encoder.encode([RARE])
        assert encoder.settle(10)
        assert encoder.status.state is EngineState.QUARANTINED
        assert RARE not in encoder.status.reason
        right = encoder.encode([RARE])
        assert wrong != right == subject.reference.encode([RARE])
        assert events.results[-1] is ShadowResult.DIFFERENT

    def test_lost_ids_are_found_too(self, subject):
        encoder = subject.encoder(planted_engines.losing_ids_of_a_rare_string, shadow_every=1)
        encoder.encode_packed(["a", RARE, "b"])
        lane_settled = encoder.settle(10)
        assert lane_settled
        assert encoder.status.state is EngineState.QUARANTINED

    def test_a_panic_is_answered_by_the_reference_and_ends_the_engine(self, subject):
        encoder, events = subject.encoder(planted_engines.panicking_on_a_rare_string), Watched()
        encoder.observe(events)
        expected = subject.reference.encode(["a", RARE])
        assert encoder.encode(["a", RARE]) == expected
        assert (encoder.status.state, events.failures) == (EngineState.QUARANTINED, 1)
        assert encoder.encode(["a"]) == expected[:1]
        assert events.texts == [("reference", 2), ("reference", 1)]

    def test_an_error_is_answered_by_the_reference_and_counted(self, subject):
        encoder, events = subject.encoder(planted_engines.failing_on_a_rare_string), Watched()
        encoder.observe(events)
        assert encoder.encode([RARE]) == subject.reference.encode([RARE])
        assert (encoder.status.state, events.failures) == (EngineState.VERIFIED, 1)

    def test_an_answer_that_does_not_fit_the_texts_is_not_sent(self, subject):
        class Short:
            name, version = "short", "0"

            def encode_flat(self, texts, **_options):
                return subject.engine().encode_flat(texts[1:], add_special_tokens=True, keep_control=True)

        encoder = subject.encoder(lambda _file: Short())
        assert encoder.encode(["a", "b"]) == subject.reference.encode(["a", "b"])
        assert encoder.status.state is EngineState.QUARANTINED

    def test_the_end_of_the_process_is_not_taken_for_a_panic(self, subject):
        class Interrupted:
            name, version = "interrupted", "0"

            def encode_flat(self, _texts, **_options):
                raise KeyboardInterrupt

        encoder = subject.encoder(lambda _file: Interrupted())
        with pytest.raises(KeyboardInterrupt):
            encoder.encode(["a"])
        assert encoder.status.state is EngineState.VERIFIED

    def test_a_fault_of_the_reference_on_its_share_is_told_as_the_references(self, subject, monkeypatch):
        encoder = subject.encoder(excluded={ord(SNOWMAN)})

        def fail(_texts, _pairs, _options):
            raise InternalFault(index=0)

        monkeypatch.setattr(subject.reference, "encode", fail)
        with pytest.raises(InternalFault):
            encoder.encode(["a", SNOWMAN], None, EncodeOptions())
