"""Cutting many texts into batches that a server takes, and that answer soon."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field

from tokend._arguments import checked_text

__all__ = ["Batch", "BatchCutter", "cut_async_batches", "cut_batches"]


@dataclass(slots=True, kw_only=True)
class Batch:
    """Texts that travel in one message."""

    start: int
    """The place of the first text in the caller's own list."""
    texts: list[str] = field(default_factory=list)
    pairs: list[str] = field(default_factory=list)
    """Empty, or one for each text."""

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(slots=True, kw_only=True)
class BatchCutter:
    """Gathers checked texts; `add` hands out a batch when the next text does not fit into it.

    >>> cutter = BatchCutter(max_texts=2, max_bytes=100)
    >>> [cutter.add(text) for text in ("a", "b")], cutter.add("c").texts, cutter.rest().texts
    ([None, None], ['a', 'b'], ['c'])
    """

    max_texts: int
    max_bytes: int
    """A text above it still goes, alone: whether it is too large is the server's to say."""
    _open: Batch = field(default_factory=lambda: Batch(start=0))
    _open_bytes: int = 0

    def add(self, text: str, pair: str | None = None) -> Batch | None:
        """Takes one more text, and returns the batch before it if that is full now."""
        index = self._open.start + len(self._open.texts)
        text_bytes = checked_text(text, "texts", index)
        if pair is not None:
            text_bytes += checked_text(pair, "pairs", index)
        full = None
        n_texts = len(self._open.texts)
        if n_texts and (n_texts >= self.max_texts or self._open_bytes + text_bytes > self.max_bytes):
            full, self._open, self._open_bytes = self._open, Batch(start=index), 0
        self._open.texts.append(text)
        if pair is not None:
            self._open.pairs.append(pair)
        self._open_bytes += text_bytes
        return full

    def rest(self) -> Batch | None:
        """The last batch; None if no text is left."""
        rest, self._open = self._open, Batch(start=self._open.start + len(self._open.texts))
        self._open_bytes = 0
        return rest if rest.texts else None


def cut_batches(texts: Iterable[str], cutter: BatchCutter) -> Iterator[Batch]:
    """Batches of any iterable of texts.

    An exception of the iterable, or a bad text, comes out after the batch of the texts before it.
    """
    try:
        for text in texts:
            full = cutter.add(text)
            if full is not None:
                yield full
    except Exception:
        rest = cutter.rest()
        if rest is not None:
            yield rest
        raise
    rest = cutter.rest()
    if rest is not None:
        yield rest


async def cut_async_batches(texts: AsyncIterable[str], cutter: BatchCutter) -> AsyncIterator[Batch]:
    """`cut_batches` for an async iterable."""
    try:
        async for text in texts:
            full = cutter.add(text)
            if full is not None:
                yield full
    except Exception:
        rest = cutter.rest()
        if rest is not None:
            yield rest
        raise
    rest = cutter.rest()
    if rest is not None:
        yield rest
