"""Where each token stands in the text: units, parts of characters, and normalizers that move things."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizers_for_tests import BL, WP, byte_level_bpe, load


@pytest.mark.parametrize(
    ("unit", "spans"),
    [
        ("code_points", [(0, 0), (0, 1), (1, 2), (2, 3), (0, 0)]),
        ("utf8_bytes", [(0, 0), (0, 3), (3, 6), (6, 7), (0, 0)]),
        ("utf16_units", [(0, 0), (0, 1), (1, 2), (2, 3), (0, 0)]),
    ],
)
def test_the_unit_is_the_one_that_was_asked_for(client_of, unit, spans):
    encoded = client_of(WP()).encode("北京!", offsets=unit)
    assert encoded.ids == [2, 19, 20, 9, 3]
    assert encoded.offsets == spans


def test_tokens_that_are_parts_of_a_character_all_have_the_characters_span(client_of):
    encoded = client_of(BL()).encode("é🙂a", offsets="code_points", add_special_tokens=False)
    assert encoded.ids == [195, 169, 259, 153, 130, 97]
    assert encoded.offsets == [(0, 1), (0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]
    encoded = client_of(BL()).encode("é🙂a", offsets="utf16_units", add_special_tokens=False)
    assert encoded.offsets == [(0, 1), (0, 1), (1, 3), (1, 3), (1, 3), (3, 4)]


def test_offsets_are_places_in_the_text_that_was_sent_not_in_the_normalized_one(client_of):
    encoded = client_of(WP()).encode("CAFÉ\0\u200b hello", offsets="code_points")
    assert encoded.ids == [2, 16, 5, 3]
    assert encoded.offsets == [(0, 0), (0, 4), (7, 12), (0, 0)]


def test_a_composed_accent_belongs_to_no_token_as_in_the_library(client_of):
    file = byte_level_bpe(normalizer={"type": "NFC"}, post=False)
    encoded = client_of(file).encode("e\u0301x", offsets="code_points")
    assert encoded.ids == [0xC3, 0xA9, 120]
    # The accent is character 1, and no span holds it; docs/cases.md says why it stays so.
    assert encoded.offsets == load(file).encode("e\u0301x").offsets == [(0, 1), (0, 1), (2, 3)]


@settings(max_examples=100)
@given(text=st.text(max_size=20), unit=st.sampled_from(["code_points", "utf8_bytes", "utf16_units"]))
def test_spans_cut_the_text_into_pieces_without_gap(client_of, text, unit):
    encoded = client_of(BL()).encode(text, offsets=unit, add_special_tokens=False)
    codec, width = {
        "code_points": ("utf-32-le", 4),
        "utf8_bytes": ("utf-8", 1),
        "utf16_units": ("utf-16-le", 2),
    }[unit]
    data = text.encode(codec)
    pieces = [
        data[start * width : end * width].decode(codec) for start, end in dict.fromkeys(encoded.offsets)
    ]
    assert "".join(pieces) == text
