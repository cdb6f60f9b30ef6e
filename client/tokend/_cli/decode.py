"""`tokend decode`: ids to text."""

from tokend import Client
from tokend._cli.arguments import Arguments, decode_options
from tokend._cli.inputs import STANDARD_INPUT, IdReader, open_input, parse_ids, read_bytes
from tokend._cli.output import Output, note

__all__ = ["ids_from", "run"]


def run(arguments: Arguments, client: Client, output: Output) -> None:
    """Decodes ids from the arguments or standard input."""
    options = decode_options(arguments)
    ids = parse_ids(arguments.ids, "IDS") if arguments.ids else ids_from(STANDARD_INPUT)
    options["include_bytes"] = arguments.bytes
    decoded = client.decode(ids, **options)
    if arguments.json:
        raw = {"raw_bytes": decoded.raw_bytes} if arguments.bytes else {}
        counts = {"unknown_id_count": decoded.unknown_id_count, "fingerprint": decoded.fingerprint}
        output.write_json({"text": decoded.text, **raw, **counts})
        return
    if arguments.bytes:
        output.write_bytes(decoded.raw_bytes or b"")
    else:
        output.write(decoded.text)
        output.end_line(decoded.text)
    if decoded.unknown_id_count:
        output.flush()
        note(f"unknown ids left out or replaced: {decoded.unknown_id_count}")


def ids_from(name: str) -> list[int]:
    """Reads all ids of a file, or of standard input (`-`)."""
    reader = IdReader(name)
    with open_input(name) as file:
        return [*reader.feed(read_bytes(file, name)), *reader.finish()]
