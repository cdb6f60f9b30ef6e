"""Frozen instances of the reference, one for each special-token policy, on shared models.

No setter is called on an instance once it is built, so that no request can change another one. A second instance
on the same model costs a few milliseconds and well below 1 MB.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from threading import Lock
from types import MappingProxyType

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import Model

from tokend_server.engine.artifact import REFERENCE_VERSION, Artifact, unknown_token_of
from tokend_server.engine.masking import masked_model, reachable_strings
from tokend_server.engine.special_tokens import ControlTokens, TextFilter
from tokend_server.errors import TokenizerFileError

__all__ = ["Instance", "InstanceSet", "TextInstance"]

_MOST_ALLOWED_SETS = 8
"""How many sets of allowed special tokens keep an instance of their own."""

_CONTEXTS = ("{}", "a{}a", " {} ", "\n{}\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """The reference under one policy, with and without the file's post-processor."""

    full: Tokenizer
    raw: Tokenizer
    """Without post-processor: what truncation cuts, and where offsets are those of the tokens themselves."""
    renumbered: Mapping[int, int]
    """Ids that this instance gives, by the file's id that they stand for; empty for all but masked instances."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextInstance:
    """The reference keeping control tokens as text, all but the allowed ones."""

    kept: Mapping[str, int]
    """The ids of the control tokens that stay text, by content."""
    filter: TextFilter = field(repr=False)
    plain: Instance
    watched: frozenset[int]
    """Ids of kept tokens that the model itself may make; where one comes out of a text, `masked` is asked instead."""
    n_added: Mapping[bool, int]
    """How many watched ids the post-processor adds, for a single text (False) and a pair (True)."""


class InstanceSet:
    """Builds and keeps the instances of one file; safe to use from several threads."""

    def __init__(self, artifact: Artifact, control_tokens: ControlTokens) -> None:
        """Builds the instances for PARSE and TEXT.

        Args:
            artifact: The file, with its `spec`; the spec is not kept.
            control_tokens: What TEXT keeps as text.

        Raises:
            TokenizerFileError: The library gives an added token another id in a second instance, or panics on the
                post-processor.
        """
        self._artifact = artifact.without_spec()
        self._control = control_tokens.ids
        self._normalizer = artifact.spec.get("normalizer")
        self._unk = unknown_token_of(artifact.spec["model"])
        self._reachable = reachable_strings(artifact.spec["model"], self._control.keys() - {self._unk})
        self._lock = Lock()
        self._masked_model: Model | None = None
        self._masked: OrderedDict[frozenset[str], Instance] = OrderedDict()
        self._allowing: OrderedDict[frozenset[str], TextInstance] = OrderedDict()
        self.known = frozenset(token.content for token in artifact.added_tokens) | self._control.keys()
        """Every string that `allowed_special_tokens` may name."""
        self.unk_id = None if self._unk is None else artifact.tokenizer.token_to_id(self._unk)
        self.parse = self._build(frozenset(), full=artifact.tokenizer)
        self._post_processed = {pair: self._post_processor_ids(pair=pair) for pair in (False, True)}
        self._text = self._build_text(frozenset())
        if self._model_reaches_kept():
            self.masked(frozenset())

    def text(self, allowed: Collection[str]) -> TextInstance:
        """Returns the instance that keeps control tokens as text.

        Args:
            allowed: Strings out of `known` that are parsed all the same.
        """
        if not allowed:
            return self._text
        key = frozenset(content for content in allowed if content in self._control)
        if not key:
            return self._text
        with self._lock:
            found = self._allowing.get(key)
            if found is None:
                found = self._allowing[key] = self._build_text(key)
            self._allowing.move_to_end(key)
            if len(self._allowing) > _MOST_ALLOWED_SETS:
                self._allowing.popitem(last=False)
            return found

    def masked(self, allowed: Collection[str]) -> Instance:
        """Returns the instance on whose model no control token can be reached; the first one loads the model again.

        Args:
            allowed: As for `text`. They are parsed where they stand in the text as they are written.
        """
        key = frozenset(content for content in allowed if content in self._control)
        with self._lock:
            if self._masked_model is None:
                self._masked_model = masked_model(self._artifact.data, sorted(self._reachable))
            found = self._masked.get(key)
            if found is None:
                found = self._masked[key] = self._build(self._control.keys() - key, model=self._masked_model)
            self._masked.move_to_end(key)
            if len(self._masked) > _MOST_ALLOWED_SETS:
                self._masked.popitem(last=False)
            return found

    def _build_text(self, allowed: frozenset[str]) -> TextInstance:
        kept = {content: token_id for content, token_id in self._control.items() if content not in allowed}
        watched = frozenset(self._control[content] for content in self._reachable - allowed)
        return TextInstance(
            kept=MappingProxyType(kept),
            filter=TextFilter(kept, added_tokens=self._artifact.added_tokens, normalizer=self._normalizer),
            plain=self._build(kept.keys()),
            watched=watched,
            n_added={
                pair: sum(n for token_id, n in added.items() if token_id in watched)
                for pair, added in self._post_processed.items()
            },
        )

    def _build(
        self, skipped: Collection[str], *, full: Tokenizer | None = None, model: Model | None = None
    ) -> Instance:
        """Builds one pair of tokenizers on a shared model; `skipped` added tokens stay text."""
        parts = [self._derive(skipped, model=model, post_processor=False)]
        parts.append(full if full is not None else self._derive(skipped, model=model, post_processor=True))
        renumbered: dict[int, int] = {}
        for token in self._artifact.added_tokens:
            ids = {part.token_to_id(token.content) for part in parts}
            if ids != {token.id}:
                got = ids.pop()
                # A masked string is new to the model and gets a new id. That is no harm, as long as it is one
                # that nothing else in the file has.
                if (
                    ids
                    or got is None
                    or model is None
                    or self._artifact.tokenizer.id_to_token(got) is not None
                ):
                    raise TokenizerFileError(
                        f"{self._artifact.path}: the added token {token.content!r} changes its id in a second "
                        f"instance (tokenizers {REFERENCE_VERSION})"
                    )
                renumbered[got] = token.id
        return Instance(full=parts[1], raw=parts[0], renumbered=MappingProxyType(renumbered))

    def _derive(self, skipped: Collection[str], *, model: Model | None, post_processor: bool) -> Tokenizer:
        base = self._artifact.tokenizer
        derived = Tokenizer(base.model if model is None else model)
        if base.normalizer is not None:
            derived.normalizer = base.normalizer
        if base.pre_tokenizer is not None:
            derived.pre_tokenizer = base.pre_tokenizer
        if post_processor and base.post_processor is not None:
            derived.post_processor = base.post_processor
        tokens = [
            AddedToken(
                token.content,
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
                # The switch below skips what is special, and nothing else reads the flag when encoding.
                special=token.content in skipped if skipped else token.special,
            )
            for token in self._artifact.added_tokens
        ]
        if model is not None:
            # What the masked model no longer knows gets new ids: after all others, so that theirs stay.
            tokens.sort(key=lambda token: token.content in self._reachable)
        derived.add_tokens(tokens)
        # Set before the instance is used, and never again.
        derived.encode_special_tokens = bool(skipped)
        return derived

    def _post_processor_ids(self, *, pair: bool) -> Counter[int]:
        # `encode` and not `encode_batch`: a parallel call before a fork would leave the workers without a pool.
        try:
            ids = [
                Counter(tokenizer.encode("", "" if pair else None).ids)
                for tokenizer in (self.parse.full, self.parse.raw)
            ]
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as panic:
            raise TokenizerFileError(
                f"{self._artifact.path}: the library panics on its post-processor (tokenizers {REFERENCE_VERSION})"
            ) from panic
        return ids[0] - ids[1]

    def _model_reaches_kept(self) -> bool:
        """Whether plain texts show that the model makes kept tokens, so that the masked model is worth its memory now.

        Where none does, it is built when the first text needs it.
        """
        tokenizer = self._text.plain.raw
        try:
            return any(
                self._control[content] in tokenizer.encode(context.format(content)).ids
                for content in self._reachable
                for context in _CONTEXTS
            )
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException:  # noqa: BLE001 (no unk token, or a panic on this text: then nothing is known)
            return False
