"""Text to ids by the reference library: every policy, pairs, truncation, offsets, tokens."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from tokenizers import Encoding

from tokend_server.engine.artifact import Artifact
from tokend_server.engine.encode_options import Encoded, EncodeOptions
from tokend_server.engine.encode_pass import Item, Result, encode_items
from tokend_server.engine.instances import InstanceSet, TextInstance
from tokend_server.engine.library_calls import call_library
from tokend_server.engine.offsets import OffsetUnit, convert_offsets
from tokend_server.engine.special_tokens import ControlTokens, SpecialTokenPolicy
from tokend_server.engine.template import template_pieces
from tokend_server.errors import InvalidOption, SpecialTokenRejected

__all__ = ["EncodeOptions", "Encoded", "ReferenceEncoder"]

_DEFAULTS = EncodeOptions()


class ReferenceEncoder:
    """Encodes by the reference; safe to use from several threads, and no call changes another one's answer."""

    def __init__(self, artifact: Artifact, control_tokens: ControlTokens) -> None:
        """Builds the frozen instances.

        Args:
            artifact: The file, with its `spec`; the spec is not kept.
            control_tokens: What TEXT keeps as text and REJECT refuses.

        Raises:
            TokenizerFileError: The library gives an added token another id in a second instance.
        """
        self._instances = InstanceSet(artifact, control_tokens)
        self._tokenizer = artifact.tokenizer
        single, pair = (
            template_pieces(artifact.spec.get("post_processor"), kind) for kind in ("single", "pair")
        )
        self.has_types = any(piece.type_id for piece in single)
        """Whether tokens of a single text have other types than 0."""
        self._repeats_text = {
            is_pair: any(
                n > 1 for n in Counter(piece.sequence for piece in pieces if piece.sequence).values()
            )
            for is_pair, pieces in ((False, single), (True, pair))
        }

    def tokens_added(self, *, pair: bool = False) -> int:
        """Returns how many tokens the post-processor adds to a single text, or to a pair."""
        return int(self._tokenizer.num_special_tokens_to_add(pair))

    @property
    def may_hold_control_token(self) -> Callable[[str], bool]:
        """The cheap test whether a control token may stand in a text; see `TextFilter.may_hold`."""
        return self._instances.text(()).filter.may_hold

    @property
    def reaches_control_tokens(self) -> bool:
        """Whether the model itself may make a control token of a text, so that TEXT has to look at the ids."""
        return bool(self._instances.text(()).watched)

    def encode(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, options: EncodeOptions | None = None
    ) -> list[Encoded]:
        """Encodes texts, all or nothing; no texts give an empty list, an empty text gives what is added to it.

        Args:
            texts: The texts, without lone surrogates.
            pairs: A second text for each, or None.
            options: How; None means the defaults.

        Returns:
            One answer for each text, in order.

        Raises:
            InvalidOption: `max_tokens` is 0 or below what the post-processor adds, an allowed special token is
                no token of this file, or a text cannot be expressed in a vocabulary without unk token (field
                `text`, value the item's index).
            SpecialTokenRejected: Under REJECT a text holds a control token that is not allowed. In a pair the
                position counts in the text that holds it.
            InternalFault: The library panicked; `index` names the item, and the encoder stays usable.
        """
        options = options or _DEFAULTS
        items = _items(texts, pairs)
        results, special_counts = self._run(items, options)
        return [
            self._encoded(item, result, special_count, options)
            for item, result, special_count in zip(items, results, special_counts, strict=True)
        ]

    def count(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, options: EncodeOptions | None = None
    ) -> list[int]:
        """Counts the ids that `encode` gives for each text, without making lists of them.

        Args:
            texts: As for `encode`.
            pairs: As for `encode`.
            options: As for `encode`.

        Returns:
            One count for each text, in order; after truncation, where it was asked for.

        Raises:
            RequestError: As for `encode`.
        """
        results, _ = self._run(_items(texts, pairs), options or _DEFAULTS)
        return [len(result.encoding) for result in results]

    def _run(self, items: list[Item], options: EncodeOptions) -> tuple[list[Result], list[int]]:
        """Returns what the asked policy makes of each item, and how many control tokens stayed text in it."""
        special_counts = [0] * len(items)
        if not items:
            return [], special_counts
        self.check(options, is_pair=items[0].pair is not None)
        if options.policy is SpecialTokenPolicy.PARSE:
            return encode_items(self._instances.parse, items, options), special_counts
        instance = self._instances.text(options.allowed_special_tokens)
        may_hold = instance.filter.may_hold
        suspects = [
            item for item in items if may_hold(item.text) or (item.pair is not None and may_hold(item.pair))
        ]
        self._find(instance, suspects, options, special_counts)
        results = encode_items(instance.plain, items, options, watching=instance)
        surfaced = [item for item, result in zip(items, results, strict=True) if result.surfaced]
        if surfaced:
            looked_at = {item.place for item in suspects}
            unseen = [item for item in surfaced if item.place not in looked_at]
            self._find(instance, unseen, options, special_counts)
            masked = encode_items(self._instances.masked(options.allowed_special_tokens), surfaced, options)
            for item, result in zip(surfaced, masked, strict=True):
                results[item.place] = result
        return results, special_counts

    def check(self, options: EncodeOptions, *, is_pair: bool) -> None:
        """Refuses options that cannot be served for this file, whatever the texts.

        Raises:
            InvalidOption: As `encode`, but for what a text cannot be expressed in.
        """
        for index, content in enumerate(options.allowed_special_tokens):
            if content not in self._instances.known:
                raise InvalidOption(
                    "allowed_special_tokens", index, f"item {index} is no added token of the served tokenizer"
                )
        if options.truncation is None:
            return
        max_tokens = options.truncation.max_tokens
        least = max(1, self.tokens_added(pair=is_pair) if options.add_special_tokens else 0)
        if max_tokens < least:
            raise InvalidOption(
                "truncation.max_tokens",
                max_tokens,
                f"at least {least}: 1, and what the post-processor adds to a text",
            )
        if self._repeats_text[is_pair]:
            raise InvalidOption(
                "truncation.max_tokens",
                max_tokens,
                "the served file's template repeats the text, so it is never cut",
            )

    def _find(
        self, instance: TextInstance, items: list[Item], options: EncodeOptions, special_counts: list[int]
    ) -> None:
        """Counts the control tokens that PARSE would make of these items, or refuses the first under REJECT."""
        texts = [(item, text) for item in items for text in (item.text, item.pair) if text is not None]
        if not texts:
            return
        # Without the post-processor, which adds tokens and trims offsets.
        parse = self._instances.parse.raw.encode_batch
        encodings = call_library(parse, [text for _, text in texts], [item.place for item, _ in texts])
        for (item, text), encoding in zip(texts, encodings, strict=True):
            for content, start, end in self._made_by_parse(instance, text, encoding):
                if options.policy is SpecialTokenPolicy.REJECT:
                    position = _position(content, text[start:end])
                    raise SpecialTokenRejected(token=content, position=start + position, index=item.place)
                special_counts[item.place] += 1

    def _made_by_parse(
        self, instance: TextInstance, text: str, encoding: Encoding
    ) -> Iterator[tuple[str, int, int]]:
        """Yields content, start and end of each control token, of those kept as text, that PARSE made of a text."""
        contents = {token_id: content for content, token_id in instance.kept.items()}
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            content = contents.get(token_id)
            if content is None:
                continue
            if token_id == self._instances.unk_id and not self._spells(content, text[start:end]):
                continue
            yield content, start, end

    def _spells(self, content: str, part: str) -> bool:
        """Whether this part of a text spells the unk token, and is not just text that the vocabulary lacks."""
        normalizer = self._tokenizer.normalizer
        return content in part or (normalizer is not None and content in normalizer.normalize_str(part))

    def _encoded(self, item: Item, result: Result, special_count: int, options: EncodeOptions) -> Encoded:
        encoding = result.encoding
        starts, ends = _offsets(item, encoding, options.offsets)
        return Encoded(
            ids=encoding.ids if result.ids is None else result.ids,
            total_token_count=result.total,
            starts=starts,
            ends=ends,
            tokens=encoding.tokens if options.include_tokens else None,
            type_ids=encoding.type_ids if item.pair is not None or self.has_types else None,
            special_text_count=special_count,
        )


def _items(texts: Sequence[str], pairs: Sequence[str] | None) -> list[Item]:
    seconds = [None] * len(texts) if pairs is None else pairs
    return [
        Item(place=place, text=text, pair=pair)
        for place, (text, pair) in enumerate(zip(texts, seconds, strict=True))
    ]


def _position(content: str, part: str) -> int:
    """Where a token's content starts in the part of the text that the library took for it (lstrip, normalizer)."""
    found = part.find(content)
    return found if found >= 0 else len(part) - len(part.lstrip())


def _offsets(item: Item, encoding: Encoding, unit: OffsetUnit) -> tuple[list[int] | None, list[int] | None]:
    """Returns starts and ends, each in its own text."""
    if unit is OffsetUnit.NONE:
        return None, None
    spans = encoding.offsets
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    if item.pair is None:
        return convert_offsets(item.text, starts, unit), convert_offsets(item.text, ends, unit)
    # After a request's truncation the library may have lost which tokens are the first text's: then theirs have no
    # owner. Tokens of the post-processor have none either, and they stand at 0, which is 0 in every unit.
    owners = [owner or 0 for owner in encoding.sequence_ids]
    for sequence, text in enumerate((item.text, item.pair)):
        at = [place for place, owner in enumerate(owners) if owner == sequence]
        for positions in (starts, ends):
            for place, position in zip(
                at, convert_offsets(text, [positions[n] for n in at], unit), strict=True
            ):
                positions[place] = position
    return starts, ends
