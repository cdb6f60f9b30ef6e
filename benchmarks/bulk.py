"""Many texts over the wire against the libraries in the caller's own process, on the same two cores."""

import os
import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
import tiktoken
from benchmarks import texts
from benchmarks.measure import in_turn, median_ratio
from benchmarks.results import Row, Sizes, Target
from benchmarks.servers import prepare, tokenizer_file
from benchmarks.servers import tokend as serve
from tokenizers import Tokenizer

import tokend
from tests.zoo import catalogue as zoo

__all__ = ["compare"]

_TARGET = Target(at_least=7, aim=15)
_CHARACTERS = 2_000
_TIKTOKEN = {"o200k": "o200k_base", "cl100k": "cl100k_base"}
_MATTER = {"o200k", "llama3", "gpt2"}
"""Those that have a target."""


def compare(sizes: Sizes) -> Iterator[Row]:
    """One row for each tokenizer, and one more where tiktoken has its vocabulary."""
    for name in sizes.bulk_files:
        yield from _compare_on(name, sizes)


def _compare_on(name: str, sizes: Sizes) -> Iterator[Row]:
    file = tokenizer_file(name)
    if sizes.verify:
        prepare(file)
    library = Tokenizer.from_file(str(file))
    rounds = {n: texts.take_bytes(sizes.bulk_bytes, _CHARACTERS, seed=n + 1) for n in range(-1, sizes.rounds)}
    n_tokens: dict[str, dict[int, int]] = {}
    with serve(file) as server, tokend.Client(server.target) as client:

        def over_the_wire(batch: list[str]) -> int:
            return sum(len(each.numpy()) for each in client.encode_stream(batch))

        def in_process(batch: list[str]) -> int:
            return sum(map(len, library.encode_batch_fast(batch)))

        def timed(way: str, encode: Callable[[list[str]], int], n: int) -> float:
            start_s = time.perf_counter()
            found = encode(rounds[n])
            took_s = time.perf_counter() - start_s
            n_tokens.setdefault(way, {})[n] = found
            return found / took_s

        ways: dict[str, Callable[[int], float]] = {
            "wire": lambda n: timed("wire", over_the_wire, n),
            "library": lambda n: timed("library", in_process, n),
        }
        if name in _TIKTOKEN:
            other = _tiktoken(_TIKTOKEN[name])
            ways["tiktoken"] = lambda n: timed("tiktoken", other, n)
        rates = in_turn(sizes.rounds, ways)
        same = _same_ids(client, library, rounds[0][:200])
    bytes_per_token = sum(len(text.encode()) for text in rounds[0]) / n_tokens["wire"][0]
    if n_tokens["wire"] != n_tokens["library"] or not same:
        raise RuntimeError("the ids over the wire are not those of the library")
    medians = {way: median(each) for way, each in rates.items()}
    for way, title in (("library", "encode_batch_fast in process"), ("tiktoken", "tiktoken in process")):
        if way in rates:
            yield Row(
                number=1,
                what=f"bulk over the wire, {name}, against {title}",
                value=median_ratio(rates["wire"], rates[way]),
                target=_TARGET if way == "library" and name in _MATTER else None,
                note=(
                    f"{medians['wire'] / 1e6:.1f} M tokens/s ({medians['wire'] * bytes_per_token / 1e6:.0f} MB/s) "
                    f"against {medians[way] / 1e6:.2f} M ({medians[way] * bytes_per_token / 1e6:.1f} MB/s); "
                    f"engine {server.engine}"
                ),
                figures={"tokens_per_s": rates, "bytes_per_token": bytes_per_token, "engine": server.engine},
            )


def _tiktoken(name: str) -> Callable[[list[str]], int]:
    os.environ["TIKTOKEN_CACHE_DIR"] = str(zoo.place("tiktoken-ranks"))
    encoding = tiktoken.get_encoding(name)
    return lambda batch: sum(map(len, encoding.encode_ordinary_batch(batch, num_threads=2)))


def _same_ids(client: tokend.Client, library: Tokenizer, batch: list[str]) -> bool:
    answers = client.encode_stream(batch)
    expected = library.encode_batch_fast(batch)
    return all(np.array_equal(got.numpy(), each.ids) for got, each in zip(answers, expected, strict=True))
