"""Text of token ids from tables made at load: whole lists, and streams at a flat cost per token.

`build_decoder` chooses the machine by the file's decoder and proves it against the library before it serves.
"""

from tokend_server.engine.decoding.build import build_decoder
from tokend_server.engine.decoding.interface import FFFD, OpenSequence, TextDecoder
from tokend_server.engine.decoding.self_check import find_difference

__all__ = ["FFFD", "OpenSequence", "TextDecoder", "build_decoder", "find_difference"]
