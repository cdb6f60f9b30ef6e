"""`tokend stream-decode`: ids on standard input to text, as they come."""

import os
from collections.abc import Iterator

from tokend import Client, Decoder, TokendError
from tokend._cli.arguments import Arguments, decode_options
from tokend._cli.inputs import STANDARD_INPUT, IdReader, argument_text, open_input, parse_ids, unreadable
from tokend._cli.output import Output, note

__all__ = ["run"]

_READ_BYTES = 8192


def run(arguments: Arguments, client: Client, output: Output) -> None:
    """Decodes until the ids end or a stop string is found."""
    options = decode_options(arguments)
    if arguments.byte_runs is not None:
        options["byte_runs"] = arguments.byte_runs
    decoder = client.decoder(
        prompt_ids=parse_ids(arguments.prompt_ids, "--prompt-ids"),
        stop=[argument_text(stop, "--stop") for stop in arguments.stop],
        **options,
    )
    session = _Session(decoder, output, as_json=arguments.json)
    with decoder:
        for ids in _arriving_ids():
            session.push(ids)
            if decoder.ended:
                break
        session.finish()
    if decoder.unknown_id_count and not arguments.json:
        note(f"unknown ids left out or replaced: {decoder.unknown_id_count}")


class _Session:
    """Writes what a decoder gives, each piece at once."""

    def __init__(self, decoder: Decoder, output: Output, *, as_json: bool) -> None:
        self._decoder = decoder
        self._output = output
        self._as_json = as_json
        self._last = ""

    def push(self, ids: list[int]) -> None:
        """Sends ids and writes the text that they complete."""
        try:
            text = self._decoder.push(ids)
        except TokendError as error:
            # What came before the bad id is text all the same.
            self._write(error.text_before_error)
            if not self._as_json:
                self._output.end_line(self._last)
            raise
        self._write(text)

    def finish(self) -> None:
        """Writes what was held back, and how the sequence ended."""
        decoder = self._decoder
        if not (decoder.ended or decoder.total_tokens):
            # No id came: an empty message lets the server check the options and the prompt all the same.
            self.push([])
        self._write(decoder.finish())
        if self._as_json:
            self._output.write_json(
                {
                    "end_reason": decoder.end_reason,
                    "stop": decoder.stop,
                    "total_tokens": decoder.total_tokens,
                    "unknown_id_count": decoder.unknown_id_count,
                    "fingerprint": decoder.fingerprint,
                }
            )
        else:
            self._output.end_line(self._last)
        self._output.flush()

    def _write(self, text: str) -> None:
        if not text:
            return
        self._last = text
        if self._as_json:
            decoder = self._decoder
            counts = {"total_tokens": decoder.total_tokens, "pending_bytes": decoder.pending_bytes}
            self._output.write_json({"text": text, **counts})
        else:
            self._output.write(text)
        self._output.flush()


def _arriving_ids() -> Iterator[list[int]]:
    """The ids on standard input, in the portions in which they arrive; none of them is empty."""
    reader = IdReader(STANDARD_INPUT)
    with open_input(STANDARD_INPUT) as file:
        while True:
            try:
                data = os.read(file.fileno(), _READ_BYTES)
            except OSError as error:
                raise unreadable(STANDARD_INPUT, error) from error
            ids = reader.feed(data) if data else reader.finish()
            if ids:
                yield ids
            if not data:
                return
