"""What one call may weigh, and the refusals that say so."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokend_server.errors import InvalidOption, LimitExceeded, Reason

__all__ = ["Limits", "utf8_length"]

_MOST_BYTES = 4
"""No code point takes more in UTF-8."""


def utf8_length(text: str) -> int:
    """Count the bytes of a text in UTF-8; 0 for the empty text.

    Args:
        text: Any text without lone surrogates (what protobuf lets through).

    Returns:
        Its length in bytes.
    """
    return len(text) if text.isascii() else len(text.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The greatest sizes that this server takes; GetTokenizer publishes them, config.py has the defaults."""

    max_text_bytes: int
    """One text in UTF-8, in bytes; each text of a pair alone."""
    max_batch_texts: int
    """Texts, or lists of ids, in one batch; a text and its pair count as one."""
    max_batch_bytes: int
    """All texts and pairs of one batch together, UTF-8, in bytes."""
    max_ids: int
    """Ids in one decoding call or one message of a StreamDecode, prompt ids included."""
    max_sequences_per_stream: int
    """Sequences that one StreamDecode holds open at a time."""
    max_streams: int
    """StreamEncode and StreamDecode calls open at a time."""
    max_message_bytes: int
    """One gRPC message, request or reply, in bytes."""
    max_stop_strings: int
    """Stop strings of one sequence."""
    max_stop_bytes: int
    """One stop string in UTF-8, in bytes."""

    def check_batch(self, texts: Sequence[str], pairs: Sequence[str] | None, *, single: bool = False) -> None:
        """Refuse a batch that is too large.

        Args:
            texts: The texts; none is a valid, empty batch.
            pairs: As many second texts, or None.
            single: The call is about one text, so that no index is named.

        Raises:
            LimitExceeded: TEXT_TOO_LARGE for one text, BATCH_TOO_LARGE for their number or their sum.
        """
        self.check_batch_length(len(texts))
        # Measured only where it may matter: to count a text's bytes is to encode it.
        if _surely_within(texts, pairs, self.max_text_bytes):
            return
        total_bytes = self._check_texts(texts, single=single)
        if pairs is not None:
            total_bytes += self._check_texts(pairs, single=single)
        if total_bytes > self.max_batch_bytes and not single:
            raise LimitExceeded(
                Reason.BATCH_TOO_LARGE,
                f"the batch has {total_bytes} bytes of text, this server takes {self.max_batch_bytes}; "
                "send smaller batches",
                size=total_bytes,
                limit=self.max_batch_bytes,
            )

    def check_batch_length(self, n_items: int) -> None:
        """Refuse a batch of too many texts, or of too many lists of ids.

        Raises:
            LimitExceeded: BATCH_TOO_LARGE.
        """
        if n_items > self.max_batch_texts:
            raise LimitExceeded(
                Reason.BATCH_TOO_LARGE,
                f"the batch has {n_items} items, this server takes {self.max_batch_texts}; send smaller batches",
                size=n_items,
                limit=self.max_batch_texts,
            )

    def _check_texts(self, texts: Sequence[str], *, single: bool) -> int:
        total_bytes = 0
        for index, text in enumerate(texts):
            text_bytes = utf8_length(text)
            if text_bytes > self.max_text_bytes:
                raise LimitExceeded(
                    Reason.TEXT_TOO_LARGE,
                    f"the text{'' if single else f' of item {index}'} has {text_bytes} bytes in UTF-8, this server "
                    f"takes {self.max_text_bytes}; cut it into parts",
                    size=text_bytes,
                    limit=self.max_text_bytes,
                    index=None if single else index,
                )
            total_bytes += text_bytes
        return total_bytes

    def check_ids(self, n_ids: int, *, index: int | None = None) -> None:
        """Refuse a decoding call, or a message of a StreamDecode, with too many ids.

        Args:
            n_ids: The ids counted so far in this call or message.
            index: The sequence at which the sum passed the limit, if the call has several.

        Raises:
            LimitExceeded: TOO_MANY_IDS.
        """
        if n_ids > self.max_ids:
            raise LimitExceeded(
                Reason.TOO_MANY_IDS,
                f"the call has {n_ids} ids or more, this server takes {self.max_ids}; send several calls",
                size=n_ids,
                limit=self.max_ids,
                index=index,
            )

    def check_stops(self, stops: Sequence[str]) -> None:
        """Refuse stop strings that are empty, too long or too many.

        Args:
            stops: The stop strings of one sequence; none is valid.

        Raises:
            InvalidOption: Names the string by its place, never by its text.
        """
        if len(stops) > self.max_stop_strings:
            raise InvalidOption(
                "stop", len(stops), f"{len(stops)} stop strings, a sequence may have {self.max_stop_strings}"
            )
        for index, stop in enumerate(stops):
            stop_bytes = utf8_length(stop)
            if not stop_bytes:
                raise InvalidOption("stop", stop_bytes, f"stop string {index} is empty; leave it out")
            if stop_bytes > self.max_stop_bytes:
                raise InvalidOption(
                    "stop",
                    stop_bytes,
                    f"stop string {index} has {stop_bytes} bytes in UTF-8, one may have {self.max_stop_bytes}",
                )

    def check_reply(self, reply_bytes: int) -> None:
        """Refuse to send a reply that is larger than a message may be.

        Args:
            reply_bytes: The size of the serialized reply.

        Raises:
            LimitExceeded: REPLY_TOO_LARGE.
        """
        if reply_bytes > self.max_message_bytes:
            raise LimitExceeded(
                Reason.REPLY_TOO_LARGE,
                f"the reply has {reply_bytes} bytes, a message may have {self.max_message_bytes}; ask for fewer "
                "items at a time, or for packed ids",
                size=reply_bytes,
                limit=self.max_message_bytes,
            )


def _surely_within(texts: Sequence[str], pairs: Sequence[str] | None, limit: int) -> bool:
    """Whether texts stay within a limit of bytes, all together, whatever is in them."""
    n_characters = sum(map(len, texts))
    if pairs is not None:
        n_characters += sum(map(len, pairs))
    return _MOST_BYTES * n_characters <= limit
