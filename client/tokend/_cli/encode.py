"""`tokend encode`: one text to ids, as numbers, as JSON or as pieces to look at."""

import shutil

from tokend import Client, Encoded
from tokend._cli.arguments import Arguments, encode_options
from tokend._cli.failures import bad_input
from tokend._cli.inputs import STANDARD_INPUT, argument_text, read_text
from tokend._cli.output import Output, note
from tokend._cli.pieces import coloured, cut_pair, cut_text, listed

__all__ = ["run"]


def run(arguments: Arguments, client: Client, output: Output) -> None:
    """Encodes TEXT, a file or standard input."""
    _check(arguments)
    options = encode_options(arguments)
    text, pair = _text(arguments), None
    if arguments.pair is not None:
        pair = argument_text(arguments.pair, "--pair")
    if arguments.show:
        options["offsets"] = "code_points"
        encoded = client.encode(text, pair, **options)
        _show(arguments, client, output, text, encoded)
    elif arguments.json:
        if arguments.offsets is not None:
            options["offsets"] = arguments.offsets
        options["include_tokens"] = arguments.include_tokens
        encoded = client.encode(text, pair, **options)
        output.write_json(_reply(encoded))
        return
    else:
        encoded = client.encode(text, pair, **options)
        output.write(" ".join(map(str, encoded.ids)) + "\n")
    if encoded.special_text_count:
        output.flush()
        note(
            f"control tokens kept as text: {encoded.special_text_count}; --special-tokens parse makes them tokens"
        )


def _check(arguments: Arguments) -> None:
    if arguments.text is not None and arguments.file is not None:
        raise bad_input("TEXT and --file are both given; one text at a time")
    if arguments.show and arguments.json:
        raise bad_input("--show is for people and --json for programs; choose one")
    for flag in ("offsets", "include_tokens"):
        if getattr(arguments, flag) and not arguments.json:
            raise bad_input(f"--{flag.replace('_', '-')} needs --json, whose output has room for it")


def _text(arguments: Arguments) -> str:
    if arguments.file is not None:
        return read_text(arguments.file)
    if arguments.text is None or arguments.text == STANDARD_INPUT:
        return read_text(STANDARD_INPUT)
    return argument_text(arguments.text, "TEXT")


def _reply(encoded: Encoded) -> dict[str, object]:
    wanted = {"offsets": encoded.offsets, "tokens": encoded.tokens, "type_ids": encoded.type_ids}
    return {
        "ids": encoded.ids,
        "token_count": encoded.token_count,
        "total_token_count": encoded.total_token_count,
        "special_text_count": encoded.special_text_count,
        **{name: value for name, value in wanted.items() if value is not None},
        "fingerprint": encoded.fingerprint,
    }


def _show(arguments: Arguments, client: Client, output: Output, text: str, encoded: Encoded) -> None:
    distinct = sorted(set(encoded.ids))
    known = dict(zip(distinct, client.lookup(distinct), strict=True)) if distinct else {}
    infos = [known[token_id] for token_id in encoded.ids]
    # The offsets of a pair do not say to which of the texts they belong: there the tokens' bytes have to do.
    pieces = cut_text(text, infos, encoded.offsets or []) if arguments.pair is None else cut_pair(infos)
    if output.has_colour(arguments.color):
        lines = coloured(pieces, columns=shutil.get_terminal_size().columns)
    else:
        lines = listed(pieces)
    output.write("".join(f"{line}\n" for line in lines))
