"""Build the decoder that serves a tokenizer file: plan, tables, proof."""

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import Tokenizer

from tokend_server.engine.byte_alphabet import byte_level_bytes, fallback_byte
from tokend_server.engine.decoders import DecoderKind, DecoderPlan, plan_decoder
from tokend_server.engine.decoding.byte_runs import ByteRunDecoder
from tokend_server.engine.decoding.byte_tokens import ByteDecoder
from tokend_server.engine.decoding.held import HeldDecoder
from tokend_server.engine.decoding.interface import TextDecoder
from tokend_server.engine.decoding.neighbour_tokens import CtcDecoder, SuffixDecoder
from tokend_server.engine.decoding.self_check import find_difference
from tokend_server.engine.decoding.tables import TokenForms, dropped_ids, skip_tables
from tokend_server.engine.decoding.text_tokens import TextTokenDecoder
from tokend_server.engine.vocabulary import Vocabulary
from tokend_server.errors import InternalFault, TokenizerFileError

__all__ = ["Check", "build_decoder"]

Check = Callable[[TextDecoder, Tokenizer, Vocabulary], str]
"""Compares a decoder with the library; "" where nothing differs, see `find_difference`."""


def build_decoder(
    tokenizer: Tokenizer, spec: Mapping[str, Any], vocabulary: Vocabulary, *, check: Check = find_difference
) -> TextDecoder:
    """Build the decoder for a file, and prove it against the library on every id and on mixed sequences.

    A decoder that fails the proof is not served: the file is served in the mode `held`, and `reason` tells why.
    The library is only called serially, so no thread of it is left for a fork to trip over.

    Args:
        tokenizer: The library's tokenizer, loaded from the file.
        spec: The same file as parsed JSON.
        vocabulary: The vocabulary of that tokenizer.
        check: Proves it; it may know the result from an earlier start.

    Raises:
        TokenizerFileError: The library panics on this file's decoder.
    """
    plan = plan_decoder(spec.get("decoder"))
    try:
        decoder = _machine(plan, tokenizer, vocabulary)
        difference = check(decoder, tokenizer, vocabulary)
        if not difference:
            return decoder
        plan = DecoderPlan(
            kind=DecoderKind.HELD,
            reason=f"the self-check failed ({difference}): ids are held and decoded at the end of the stream",
        )
        return HeldDecoder(plan, tokenizer=tokenizer, vocabulary=vocabulary)
    except InternalFault as panic:  # the held decoder's word for it
        raise TokenizerFileError("the library panics on its decoder") from panic
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as panic:  # a panic of the library is no Exception
        raise TokenizerFileError("the library panics on its decoder") from panic


def _machine(plan: DecoderPlan, tokenizer: Tokenizer, vocabulary: Vocabulary) -> TextDecoder:
    """The tables for a plan."""
    if plan.kind is DecoderKind.HELD:
        return HeldDecoder(plan, tokenizer=tokenizer, vocabulary=vocabulary)
    forms = TokenForms(vocabulary, plan.token_stages)
    if plan.kind in {DecoderKind.BYTES, DecoderKind.BYTE_RUNS}:
        return _byte_machine(plan, forms, vocabulary)
    return _text_machine(plan, forms, vocabulary)


def _byte_machine(plan: DecoderPlan, forms: TokenForms, vocabulary: Vocabulary) -> TextDecoder:
    """The tables for tokens that are bytes, all of them or some."""
    dropped = dropped_ids(vocabulary)
    alone = forms.alone()
    if plan.kind is DecoderKind.BYTE_RUNS:
        byte_values = {
            token_id: byte for token_id, text in enumerate(alone) if (byte := fallback_byte(text)) is not None
        }
        return ByteRunDecoder(plan, texts=alone, byte_values=byte_values, dropped=dropped)
    first = [byte_level_bytes(text) for text in alone]
    raw = [byte_level_bytes(text) for text in forms.later()] if plan.first_token else first
    return ByteDecoder(
        plan, raw=skip_tables(raw, dropped, b""), first=first if plan.first_token else None, dropped=dropped
    )


def _text_machine(plan: DecoderPlan, forms: TokenForms, vocabulary: Vocabulary) -> TextDecoder:
    """The tables for tokens that are text."""
    dropped = dropped_ids(vocabulary)
    alone = forms.alone()
    if plan.kind is DecoderKind.SUFFIX:
        return SuffixDecoder(plan, followed=forms.followed(), last=alone, dropped=dropped)
    if plan.kind is DecoderKind.CTC:
        compared = TokenForms(vocabulary, plan.stages_before_ctc).alone()
        return CtcDecoder(plan, strings=compared, texts=alone, dropped=dropped)
    if plan.spaced:
        return TextTokenDecoder(plan, texts=[f" {text}" for text in alone], first=alone, dropped=dropped)
    if plan.first_token:
        return TextTokenDecoder(plan, texts=forms.later(), first=alone, dropped=dropped)
    return TextTokenDecoder(plan, texts=alone, first=None, dropped=dropped)
