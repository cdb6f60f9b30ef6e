"""`tokend info` and `tokend lookup`: what the server serves, and what single tokens are."""

from collections.abc import Iterator
from dataclasses import asdict

from tokend import Client, TokenInfo, TokenizerInfo, TokenizerMismatchError
from tokend._cli.arguments import Arguments
from tokend._cli.decode import ids_from
from tokend._cli.inputs import STANDARD_INPUT, argument_text
from tokend._cli.output import Output
from tokend._cli.pieces import quoted

__all__ = ["run_info", "run_lookup"]

_SHOWN_TOKENS = 10


def run_info(arguments: Arguments, client: Client, output: Output) -> None:
    """Prints what the server serves."""
    info = client.tokenizer_info()
    wanted = arguments.expected_fingerprint
    if wanted is not None and wanted != info.fingerprint:
        # The call itself has no pin, since it is how one learns the fingerprint.
        facts = {"expected": wanted, "served": info.fingerprint}
        raise TokenizerMismatchError("another tokenizer is served", metadata=facts)
    if arguments.json:
        output.write_json(asdict(info))
        return
    for label, value in _rows(info):
        output.write(f"{label:<16}{value}".rstrip() + "\n")


def run_lookup(arguments: Arguments, client: Client, output: Output) -> None:
    """Prints what tokens are, in the order in which they were asked for."""
    asked = [
        int(word) if word.isascii() and word.isdigit() else argument_text(word, "TOKEN")
        for word in arguments.ids_or_tokens
    ]
    asked += [argument_text(token, "--token") for token in arguments.token]
    if not asked:
        asked = list(ids_from(STANDARD_INPUT))
    ids = [each for each in asked if isinstance(each, int)]
    strings = [each for each in asked if isinstance(each, str)]
    found = client.lookup(ids, strings)
    by_id, by_string = iter(found[: len(ids)]), iter(found[len(ids) :])
    tokens = [next(by_id if isinstance(each, int) else by_string) for each in asked]
    if arguments.json:
        output.write_json([asdict(token) for token in tokens])
        return
    for each, token in zip(asked, tokens, strict=True):
        output.write(_token_line(token, has_id=token.known or isinstance(each, int)) + "\n")


def _token_line(token: TokenInfo, *, has_id: bool) -> str:
    number = str(token.id) if has_id else "-"
    if not token.known:
        string = f"  {quoted(token.token)}" if token.token else ""
        return f"{number:>8}{string}  not in the vocabulary"
    kinds = [name for name in ("special", "added", "control") if getattr(token, name)]
    facts = [quoted(token.token), token.token_bytes.hex(" "), ", ".join(kinds)]
    return f"{number:>8}  {'  '.join(fact for fact in facts if fact)}"


def _rows(info: TokenizerInfo) -> Iterator[tuple[str, str]]:
    yield "name", info.name
    yield "fingerprint", info.fingerprint
    yield "file", f"{info.file_bytes:,} bytes"
    yield (
        "vocabulary",
        f"{info.vocab_size:,} tokens, {info.added_token_count:,} of them added; greatest id {info.max_id:,}",
    )
    yield "model", info.model_type
    yield "normalizer", info.normalizer or "none"
    yield "pre-tokenizer", info.pre_tokenizer or "none"
    yield "post-processor", info.post_processor or "none"
    yield "decoder", info.decoder or "none"
    yield from _token_rows("special tokens", info.special_tokens)
    others = [token for token in info.control_tokens if not token.special]
    if others:
        yield from _token_rows("more control", others)
    yield (
        "round trip",
        "exact" if info.round_trip.exact else _with_reason("not exact", info.round_trip.reason),
    )
    yield "streaming", _with_reason(info.streaming.mode, info.streaming.reason)
    yield "reference", f"tokenizers {info.engine.reference_version}"
    yield "engine", f"{info.engine.name} {info.engine.version}"
    yield "fast engine", _with_reason(info.engine.state.lower(), info.engine.reason)
    limits = info.limits
    yield "limits", f"text {limits.max_text_bytes:,} bytes"
    yield "", f"batch {limits.max_batch_texts:,} texts, {limits.max_batch_bytes:,} bytes"
    yield "", f"call {limits.max_ids:,} ids, message {limits.max_message_bytes:,} bytes"
    yield "", f"stream {limits.max_sequences_per_stream:,} sequences; {limits.max_streams:,} streams"
    yield "", f"stop {limits.max_stop_strings:,} strings of {limits.max_stop_bytes:,} bytes"
    yield "server", f"tokend {info.server_version}"
    for what, value in (("truncation", info.ignored_truncation), ("padding", info.ignored_padding)):
        if value:
            yield "ignored", f"{what} in the file: {value}"
    for warning in info.warnings:
        yield "warning", warning


def _token_rows(label: str, tokens: list[TokenInfo]) -> Iterator[tuple[str, str]]:
    if not tokens:
        yield label, "none"
    for index, token in enumerate(tokens[:_SHOWN_TOKENS]):
        yield "" if index else label, f"{token.id} {token.token}"
    if len(tokens) > _SHOWN_TOKENS:
        yield "", f"and {len(tokens) - _SHOWN_TOKENS:,} more: --json has them all"


def _with_reason(value: str, reason: str) -> str:
    return f"{value} ({reason})" if reason else value
