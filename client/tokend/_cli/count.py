"""`tokend count`: how many ids each file, or each line, has."""

import sys
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

from tokend import Client, Counts, EncodeOptions, InvalidRequestError
from tokend._cli.arguments import Arguments, encode_options
from tokend._cli.count_input import TextBatch, batches, total_bytes
from tokend._cli.failures import BAD_INPUT, CliFailure, bad_input, of_call
from tokend._cli.inputs import STANDARD_INPUT
from tokend._cli.output import Output
from tokend._cli.progress import ProgressBar

__all__ = ["run"]

_Counted = tuple[TextBatch, Counts]
_IN_FLIGHT = 4


def run(arguments: Arguments, client: Client, output: Output) -> None:
    """Counts files, or standard input."""
    options = encode_options(arguments)
    names = arguments.files or [STANDARD_INPUT]
    if names.count(STANDARD_INPUT) > 1:
        raise bad_input("standard input (-) is named twice; it can be read once")
    report = _Report(
        output, ProgressBar(total_bytes(names)), as_json=arguments.json, is_quiet=arguments.total
    )
    try:
        # Wrong options, and another tokenizer than the expected one, show before any file is read.
        report.fingerprint = client.count("", **options).fingerprint
        max_text_bytes = client.tokenizer_info().limits.max_text_bytes
        texts = batches(names, by_line=arguments.lines, max_text_bytes=max_text_bytes)
        with closing(_counted(client, texts, options, target=arguments.target)) as counted:
            for item in counted:
                if isinstance(item, CliFailure):
                    report.refuse(item)
                else:
                    report.add(*item)
    finally:
        report.progress.clear()
    report.finish(has_total=len(names) > 1)


def _counted(
    client: Client, texts: Iterator[TextBatch | CliFailure], options: EncodeOptions, *, target: str
) -> Generator[_Counted | CliFailure, None, None]:
    """Counts batches, some of them at the same time; yields them, and what could not be read, in order."""

    def counts_of(batch: TextBatch | CliFailure) -> _Counted | CliFailure:
        if isinstance(batch, CliFailure):
            return batch
        try:
            return batch, client.count(batch.texts, **options)
        except InvalidRequestError as error:
            if error.index is None:
                raise
            raise of_call(error, target=target, subject=batch.subject(error.index)) from error

    waiting: deque[Future[_Counted | CliFailure]] = deque()
    with ThreadPoolExecutor(_IN_FLIGHT) as pool:
        try:
            for batch in texts:
                waiting.append(pool.submit(counts_of, batch))
                while waiting and (len(waiting) >= _IN_FLIGHT or waiting[0].done()):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BaseException:
            # Calls in flight would hold the exit up until they are answered.
            pool.shutdown(wait=False, cancel_futures=True)
            client.close()
            raise


class _Report:
    """Writes counts as they come, and adds them up."""

    def __init__(self, output: Output, progress: ProgressBar, *, as_json: bool, is_quiet: bool) -> None:
        self.progress = progress
        self.fingerprint = ""
        self._output = output
        self._as_json = as_json
        self._is_quiet = is_quiet
        self._total = 0
        self._n_texts = 0
        self._n_refused = 0

    def add(self, batch: TextBatch, counts: Counts) -> None:
        """Writes the counts of one batch."""
        self._total += counts.total
        self._n_texts += len(counts.counts)
        if not self._is_quiet:
            self.progress.clear()
            for index, n_tokens in enumerate(counts.counts):
                if self._as_json:
                    line = batch.lines[index]
                    place = {"name": batch.names[index]} | ({} if line is None else {"line": line})
                    self._output.write_json({**place, "count": n_tokens})
                else:
                    self._output.write(f"{n_tokens}\t{batch.place(index)}\n")
            self._output.flush()
        self.progress.advance(batch.n_bytes)

    def refuse(self, failure: CliFailure) -> None:
        """Says why a file is not counted; the others are."""
        self._n_refused += 1
        self.progress.clear()
        self._output.flush()
        sys.stderr.write(f"tokend: {failure}\n")

    def finish(self, *, has_total: bool) -> None:
        """Writes the total, unless it would be one of a part only."""
        if self._n_refused:
            if has_total or self._is_quiet or self._as_json:
                files = "1 file" if self._n_refused == 1 else f"{self._n_refused} files"
                raise bad_input(f"no total: {files} could not be counted")
            self._output.flush()
            raise CliFailure("", exit_code=BAD_INPUT)
        if self._as_json:
            totals = {"total": self._total, "texts": self._n_texts, "fingerprint": self.fingerprint}
            self._output.write_json(totals)
        elif has_total or self._is_quiet:
            self._output.write(f"{self._total}\ttotal\n")
