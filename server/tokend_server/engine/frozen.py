"""One frozen tokenizer, loaded, checked and ready: what every request works on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokend_server.engine.artifact import REFERENCE_VERSION, load_artifact
from tokend_server.engine.decoding import TextDecoder, build_decoder, find_difference
from tokend_server.engine.encoder import Encoder
from tokend_server.engine.engine_choice import EngineChoice
from tokend_server.engine.kept_checks import KeptChecks
from tokend_server.engine.reference import ReferenceEncoder
from tokend_server.engine.round_trip import RoundTrip, judge_round_trip
from tokend_server.engine.special_tokens import select_control_tokens
from tokend_server.engine.tokenizer_file import read_file
from tokend_server.engine.vocabulary import Vocabulary
from tokend_server.errors import TokenizerFileError, TokenizerMismatch

__all__ = ["FrozenTokenizer", "Pipeline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The kinds of the file's parts, as `Sequence[Replace, ByteFallback, Fuse]`; "none" for a part that is absent."""

    model_type: str
    normalizer: str
    pre_tokenizer: str
    post_processor: str
    decoder: str

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Pipeline":
        """Read the kinds from a parsed tokenizer.json."""
        return cls(
            model_type=_kind(spec["model"]),
            normalizer=_kind(spec.get("normalizer")),
            pre_tokenizer=_kind(spec.get("pre_tokenizer")),
            post_processor=_kind(spec.get("post_processor")),
            decoder=_kind(spec.get("decoder")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenTokenizer:
    """Everything that is known about the served file. Shared by all threads; nothing of it ever changes."""

    path: Path
    name: str
    fingerprint: str
    """sha256 of the file, in lower-case hexadecimal."""
    file_data: bytes
    """The file itself, as it was read."""
    pipeline: Pipeline
    vocabulary: Vocabulary
    encoder: Encoder
    decoder: TextDecoder
    special_token_ids: frozenset[int]
    """Ids of the added tokens that the file marks as special."""
    control_token_ids: frozenset[int]
    """Ids of the tokens that TEXT keeps as text and REJECT refuses."""
    uncontrolled_tokens: Sequence[str]
    """Added tokens in brackets that are no control tokens; the start-up line names them."""
    round_trip: RoundTrip
    ignored_truncation: str
    ignored_padding: str
    warnings: Sequence[str]
    reference_version: str = REFERENCE_VERSION

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        control_tokens: Sequence[str] = (),
        choice: EngineChoice | None = None,
        state_folder: Path | None = None,
    ) -> "FrozenTokenizer":
        """Read, check and prepare a tokenizer.json.

        Args:
            path: The file.
            control_tokens: More control tokens: contents of added tokens, or `/pattern/`.
            choice: Chooses the engine; it is prepared here, and started by whoever made it. None: the reference.
            state_folder: Where results of the checks are kept; None: nowhere.

        Returns:
            The tokenizer, its way of decoding proved against the library.

        Raises:
            TokenizerFileError: The file cannot be served; one line says why.
        """
        file = read_file(path)
        control = select_control_tokens(file, control_tokens)
        if choice is not None:
            # First of all: the engine takes as long as all the rest, and is loaded beside it.
            choice.prepare(file, control, tuple(control_tokens))
        artifact = load_artifact(file)
        checks = KeptChecks(state_folder, file, control)
        spec = artifact.spec
        try:
            vocabulary = Vocabulary(artifact.tokenizer, spec)
            decoder = build_decoder(
                artifact.tokenizer,
                spec,
                vocabulary,
                check=lambda *of: checks.result("decoder", lambda: find_difference(*of)),
            )
        except TokenizerFileError as error:
            raise TokenizerFileError(f"{path}: {error} (tokenizers {REFERENCE_VERSION})") from error
        reference = ReferenceEncoder(artifact, control)
        if choice is not None:
            choice.judge(artifact, reference)
        round_trip = checks.result(
            "round trip", lambda: asdict(judge_round_trip(spec, reference, decoder, control.ids.keys()))
        )
        checks.keep()
        return cls(
            path=artifact.path,
            name=artifact.name,
            fingerprint=artifact.fingerprint,
            file_data=artifact.data,
            pipeline=Pipeline.of(spec),
            vocabulary=vocabulary,
            encoder=Encoder(reference),
            decoder=decoder,
            special_token_ids=frozenset(
                token_id for token_id, token in vocabulary.added.items() if token.special
            ),
            control_token_ids=frozenset(control.ids.values()),
            uncontrolled_tokens=control.left_out,
            round_trip=RoundTrip(**round_trip),
            ignored_truncation=artifact.ignored_truncation,
            ignored_padding=artifact.ignored_padding,
            warnings=artifact.warnings,
        )

    def check_fingerprint(self, expected: str) -> None:
        """Refuse a caller who pinned another file; "" pins none.

        Raises:
            TokenizerMismatch: `expected` is not the served fingerprint.
        """
        if expected and expected != self.fingerprint:
            raise TokenizerMismatch(expected=expected, served=self.fingerprint)


def _kind(part: Mapping[str, Any] | None) -> str:
    """Describe a part by its type, a Sequence by the types in it."""
    if part is None:
        return "none"
    kind = str(part.get("type", "unknown"))
    for members in ("normalizers", "pretokenizers", "processors", "decoders"):
        if isinstance(part.get(members), list):
            return f"{kind}[{', '.join(_kind(member) for member in part[members])}]"
    return kind
