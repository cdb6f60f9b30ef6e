"""Truncation of a pair: the library joins every piece that it cut off one text with every one of the other."""

import pytest
from tokenizers import Tokenizer

from tests.tokenizers_for_tests import WP
from tokend_server.engine.truncation import TruncationSide, truncate_encoding

TEXT = "hello world " * 2_000


def test_the_library_s_own_way_takes_memory_with_the_square_of_the_text():
    tokenizer = Tokenizer.from_str(WP())
    tokenizer.enable_truncation(103)
    assert len(tokenizer.encode("hello " * 1_000, "world " * 1_000).overflowing) == 20 * 20 - 1


@pytest.mark.parametrize("side", TruncationSide)
@pytest.mark.parametrize("n_tokens", [0, 1, 2, 99, 1_000, 3_998, 3_999, 4_000, 5_000])
def test_cutting_leaves_next_to_nothing_behind(side, n_tokens):
    tokenizer = Tokenizer.from_str(WP())
    whole = tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert len(whole) == 4_000
    encoding = tokenizer.encode(TEXT, add_special_tokens=False)
    truncate_encoding(encoding, n_tokens, side)
    first = 0 if side is TruncationSide.RIGHT else max(0, len(whole) - n_tokens)
    assert encoding.ids == whole[first : first + n_tokens]
    assert len(encoding.overflowing) <= 1
