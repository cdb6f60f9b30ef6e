"""Every setting of the server, and where its value comes from: flag > TOKEND_* > TOML file > default.

A new setting is one line in `Settings`, and one in docs/configuration.md (a test asks for it). Its flag, its
environment variable and its key in the file follow from its name: `drain_grace_s` is `--drain-grace-s`,
`TOKEND_DRAIN_GRACE_S` and `drain_grace_s = 30`.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from tokend_server.setting_flags import SERVE, Command, FlagError, probably_meant, read_flags
from tokend_server.setting_kinds import (
    ADDRESS,
    BOOLEAN,
    FILE_MODE,
    OPS_ADDRESS,
    PATH,
    Address,
    Kind,
    Nowhere,
    UnixAddress,
    choice,
    count,
    count_or_auto,
    seconds,
    show_size,
    size,
    texts,
)

__all__ = [
    "Address",
    "ConfigError",
    "Loaded",
    "Nowhere",
    "Setting",
    "Settings",
    "UnixAddress",
    "load",
    "print_config",
    "settings_list",
]

_KIB, _MIB = 2**10, 2**20
# So much the native front reads before it refuses it itself.
_MOST_METADATA_BYTES = 2**20
# gRPC counts a message's bytes in a signed 32-bit integer.
_MAX_MESSAGE_BYTES = 2**31 - 1
_PREFIX = "TOKEND_"
# The client's variables live in the same environment, and so do those of the project's own tests.
_FOREIGN_VARIABLES = frozenset({"TOKEND_TARGET", "TOKEND_TOKEN", "TOKEND_TIMEOUT_S"})
_FILE_LIMIT_BYTES = 1 << 20
_FOREIGN_PREFIXES = ("TOKEND_CLIENT_", "TOKEND_TEST_", "TOKEND_ZOO_", "TOKEND_BENCH_")
# Kubernetes hands each pod such variables for every Service of its namespace; one named `tokend` is likely.
_KUBERNETES_SERVICE = re.compile(
    r"TOKEND_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_KUBERNETES_PORT = re.compile(r"(?:tcp|udp|sctp)://.*")


class ConfigError(Exception):
    """The settings cannot be used; one line that names the flag, variable or key and says what is expected."""


def setting(default: object, kind: Kind, help_text: str) -> Any:  # noqa: ANN401 (a dataclass field, typed by its annotation)
    """Declare a setting: its default, how it is read, and one line of help."""
    return field(default=default, metadata={"kind": kind, "help": help_text})


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Every setting, with its default. Sizes are bytes, durations seconds."""

    # One line a setting.
    # fmt: off
    tokenizer: Path | None = setting(None, PATH, "the tokenizer.json to serve; unset: the embedded default")  # noqa: RUF009 (None)
    listen: Address | UnixAddress = setting(Address(host="127.0.0.1", port=50051), ADDRESS, "where gRPC listens; port 0 takes a free one")  # noqa: RUF009 (frozen)
    ops_listen: Address | UnixAddress | Nowhere = setting(Address(host="127.0.0.1", port=9464), OPS_ADDRESS, "where /metrics, /healthz and /readyz listen; off: nowhere")  # noqa: RUF009 (frozen)
    listen_mode: int = setting(0o600, FILE_MODE, "file mode of Unix sockets that are listened on: who may connect")
    reflection: bool = setting(True, BOOLEAN, "answer gRPC reflection, by which tools learn the methods")
    auth_tokens_file: Path | None = setting(None, PATH, "file of bearer tokens; every call but health then needs one (tokend new-token)")  # noqa: RUF009 (None)
    tls_cert_file: Path | None = setting(None, PATH, "PEM of the server's certificate and its chain; with it the gRPC port speaks TLS alone")  # noqa: RUF009 (None)
    tls_key_file: Path | None = setting(None, PATH, "PEM of the certificate's private key")  # noqa: RUF009 (None)
    tls_client_ca_file: Path | None = setting(None, PATH, "PEM of the authorities whose certificates clients must show (mTLS); unset: clients need none")  # noqa: RUF009 (None)
    allow_port_sharing: bool = setting(False, BOOLEAN, "let another server listen on the same gRPC port (SO_REUSEPORT)")
    front: str = setting("grpcio", choice("grpcio", "native"), "what takes gRPC's connections; native needs the extra tokend[native]")
    control_tokens: tuple[str, ...] = setting((), texts("TOKEN"), "more added tokens that TEXT keeps as text and REJECT refuses: names, or /pattern/")
    default_special_tokens: str = setting("TEXT", choice("TEXT", "PARSE", "REJECT"), "special-token policy of a request that names none")
    engine: str = setting("auto", choice("auto", "reference"), "what computes ids; auto: the fast engine where it is verified for the file")
    shadow_every: int = setting(256, count(0, 1_000_000), "one in so many answers of the fast engine is checked by the reference; 0: none")
    state_dir: Path | None = setting(None, PATH, "folder for verdicts on the fast engine; unset: tokend in XDG_STATE_HOME or ~/.local/state")  # noqa: RUF009 (None)
    max_text_bytes: int = setting(16 * _MIB, size(1, _MAX_MESSAGE_BYTES), "largest text, in UTF-8 bytes")
    max_batch_texts: int = setting(4096, count(1, 2**31 - 1), "most texts (or id lists) in one batch")
    max_batch_bytes: int = setting(48 * _MIB, size(1, _MAX_MESSAGE_BYTES), "most text in one batch, in UTF-8 bytes")
    max_ids: int = setting(4_000_000, count(1, 2**31 - 1), "most token ids in one call or one message of a stream")
    max_sequences_per_stream: int = setting(16_384, count(1, 2**31 - 1), "most open sequences on one StreamDecode")
    max_streams: int = setting(8192, count(1, 1_000_000), "most open streams of this server")
    max_work_texts: int = setting(32_768, count(2, 2**31 - 1), "most texts (or id lists) in work at a time; half of them in unary calls, half in streams")
    max_work_bytes: int = setting(256 * _MIB, size(2, 2**40), "most bytes of requests in work at a time; half of them in unary calls, half in streams")
    max_message_bytes: int = setting(64 * _MIB, size(64 * _KIB, _MAX_MESSAGE_BYTES), "largest gRPC message, either way")
    max_metadata_bytes: int = setting(16 * _KIB, size(1024, _MOST_METADATA_BYTES), "most metadata of one call")
    max_stop_strings: int = setting(64, count(1, 4096), "most stop strings of one sequence")
    max_stop_bytes: int = setting(1024, size(1, 1 << 20), "longest stop string, in UTF-8 bytes")
    workers: int = setting(1, count_or_auto(1, 1024), "processes that serve, all on the same port; auto: one for each usable core")
    unary_threads: int = setting(0, count_or_auto(1, 1024), "most threads of each worker for messages above 2 KiB and up to 32 KiB; auto: its share of the cores, at most 4")
    drain_grace_s: float = setting(15.0, seconds(0, 3600), "how long SIGTERM waits for calls and streams in flight")
    keepalive_s: float = setting(60.0, seconds(1, 7200), "how long a client may be silent before it is asked whether it is there")
    max_connection_age_s: float | None = setting(None, seconds(1, 604_800), "after how long a connection is to be made anew; unset: 30 minutes with grpcio, no limit with native")
    max_connection_age_grace_s: float | None = setting(None, seconds(1, 604_800), "how long calls and streams of such a connection may go on; unset: to their end")
    log_level: str = setting("info", choice("debug", "info", "warning", "error"), "least severe log records to write")
    traces: str = setting("off", choice("off", "otlp"), "OpenTelemetry spans of calls; otlp: sent to where OTEL_* says, needs the extra tokend[otel]")
    log_format: str = setting("text", choice("text", "json"), "form of the log on stderr, one line a record")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other.

        Raises:
            ConfigError: a text limit above the batch limit, a batch limit above the message limit, half of TLS,
                or what the native front cannot do.
        """
        self._check_tls()
        if self.front == "native" and (self.max_connection_age_s or self.max_connection_age_grace_s):
            raise ConfigError(
                "the native front has no age of connections: take --front grpcio, or unset max_connection_age_s and "
                "max_connection_age_grace_s"
            )
        if isinstance(self.listen, UnixAddress):
            self._check_unix()
        for smaller, larger in (
            ("max_text_bytes", "max_batch_bytes"),
            ("max_batch_bytes", "max_message_bytes"),
        ):
            low, high = getattr(self, smaller), getattr(self, larger)
            if low > high:
                raise ConfigError(
                    f"{smaller} ({show_size(low)}) is above {larger} ({show_size(high)}): raise {_flag(larger)} or "
                    f"lower {_flag(smaller)}"
                )

    def _check_unix(self) -> None:
        if self.workers > 1:
            raise ConfigError(
                "workers share a TCP port, and a Unix socket has one listener: take --workers 1"
            )
        if self.front == "native":
            raise ConfigError(
                "the native front has no Unix socket: take --front grpcio, or HOST:PORT for --listen"
            )
        if self.allow_port_sharing:
            raise ConfigError("allow_port_sharing is for TCP ports; a Unix socket has one listener")

    def _check_tls(self) -> None:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ConfigError("tls_cert_file and tls_key_file go together: set both or neither")
        if self.tls_cert_file is None:
            if self.tls_client_ca_file is not None:
                raise ConfigError(
                    "tls_client_ca_file asks clients for certificates, which takes tls_cert_file"
                )
        elif self.front == "native":
            raise ConfigError("the native front has no TLS: take --front grpcio, or unset tls_cert_file")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One setting, as documentation and `--help` tell it."""

    name: str
    flag: str
    variable: str
    default: str
    """As TOML; empty where unset is the default."""
    help: str
    kind: Kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """The settings in force, and for each name where its value came from."""

    settings: Settings
    origins: Mapping[str, str]
    """`default`, `file PATH`, `environment TOKEND_X` or `flag --x`."""
    print_config: bool
    """`--print-config` was given: print and end, do not serve."""


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _show(kind: Kind, value: object) -> str:
    return "" if value is None else kind.show(value)


def settings_list() -> tuple[Setting, ...]:
    """Return every setting, in the order in which they are documented."""
    return tuple(_described(each) for each in fields(Settings))


def _described(each: Field[Any]) -> Setting:
    kind: Kind = each.metadata["kind"]
    return Setting(
        name=each.name,
        flag=_flag(each.name),
        variable=_PREFIX + each.name.upper(),
        default=_show(kind, each.default),
        help=each.metadata["help"],
        kind=kind,
    )


def load(argv: Sequence[str], environ: Mapping[str, str], *, command: Command = SERVE) -> Loaded:
    """Read the settings from the command line, the environment and the file that they name.

    Args:
        argv: The arguments after the program's name.
        environ: The environment; variables without the prefix `TOKEND_` are not looked at.
        command: Which command it is; it decides which settings have flags.

    Raises:
        ConfigError: an unknown or unusable flag, variable or key, or a file that cannot be read.
        SystemExit: `--help` was given.
    """
    try:
        flags = read_flags(argv, settings_list(), command)
    except FlagError as error:
        raise ConfigError(str(error)) from None
    values: dict[str, Any] = {}
    origins = {each.name: "default" for each in settings_list()}

    def take(raw: Mapping[str, object], origin_of: Callable[[Setting], str]) -> None:
        for each in settings_list():
            if each.name in raw:
                origins[each.name] = origin_of(each)
                values[each.name] = _read(each, origins[each.name], raw[each.name])

    config_path = flags.pop("config", environ.get(_PREFIX + "CONFIG"))
    print_wanted = flags.pop("print_config", False)
    if config_path is not None:
        take(_read_file(config_path), lambda _: f"file {config_path}")
    take(_read_environment(environ), lambda each: f"environment {each.variable}")
    take(flags, lambda each: f"flag {each.flag}")
    return Loaded(settings=Settings(**values), origins=origins, print_config=print_wanted)


def _read(each: Setting, origin: str, raw: object) -> object:
    """Turn what one source says into the setting's value."""
    kind = each.kind
    try:
        if not kind.repeatable:
            return _read_one(kind, raw)
        if isinstance(raw, str):
            return tuple(_read_one(kind, item) for item in raw.split(",") if item)
        if isinstance(raw, list):
            return tuple(_read_one(kind, item) for item in raw)
    except (ValueError, KeyError):
        pass
    named = origin if origin.startswith(("flag", "environment")) else f"{origin}, key {each.name}"
    raise ConfigError(f"{named}: {raw!r} is not usable; expected {kind.expected}")


def _read_one(kind: Kind, raw: object) -> object:
    # What TOML has as a number goes through the same text. isinstance would take `max_ids = true` for 1.
    if isinstance(raw, str) or type(raw) in kind.toml_types:
        return kind.parse(str(raw))
    raise ValueError


def _unknown(origin: str, name: str, known: Sequence[str]) -> ConfigError:
    return ConfigError(f"{origin}: unknown setting {name}{probably_meant(name, known)}")


def _read_file(path: str) -> Mapping[str, object]:
    try:
        with Path(path).open("rb") as file:
            # Bounded: what is named may be a device.
            data = file.read(_FILE_LIMIT_BYTES + 1)
        if len(data) > _FILE_LIMIT_BYTES:
            raise ConfigError(f"--config {path}: larger than {_FILE_LIMIT_BYTES} bytes")
        table = tomllib.loads(data.decode())
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else f"not TOML: {problem}"
        raise ConfigError(f"--config {path}: {reason}") from None
    except RecursionError:
        raise ConfigError(f"--config {path}: not TOML: nested too deeply") from None
    known = [each.name for each in settings_list()]
    for key in table:
        if key not in known:
            if _is_table(table[key]):
                raise ConfigError(
                    f"file {path}: unknown table [{key}]; settings stand at the top level, in no table"
                )
            raise _unknown(f"file {path}", key, known)
    return table


def _is_table(value: object) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(item, dict) for item in value)
    )


def _read_environment(environ: Mapping[str, str]) -> Mapping[str, str]:
    by_variable = {each.variable: each.name for each in settings_list()}
    found = {}
    for variable, value in environ.items():
        if variable in by_variable:
            found[by_variable[variable]] = value
        elif (
            variable.startswith(_PREFIX)
            and variable != _PREFIX + "CONFIG"
            and not _is_foreign(variable, value)
        ):
            raise _unknown("environment", variable, list(by_variable))
    return found


def _is_foreign(variable: str, value: str) -> bool:
    return (
        variable in _FOREIGN_VARIABLES
        or variable.startswith(_FOREIGN_PREFIXES)
        or _KUBERNETES_SERVICE.fullmatch(variable) is not None
        or (variable.endswith("_PORT") and _KUBERNETES_PORT.fullmatch(value) is not None)
    )


def print_config(loaded: Loaded) -> str:
    """Return the settings in force as a TOML file, each line ending in where its value came from."""
    lines = []
    for each in settings_list():
        shown = _show(each.kind, getattr(loaded.settings, each.name))
        line = f"{each.name} = {shown}" if shown else f"# {each.name} is unset"
        # A path may hold a line break; the rest of it must not become a line of its own.
        lines.append((line, loaded.origins[each.name].encode("unicode_escape").decode()))
    width = min(max(len(line) for line, _ in lines), 56)
    return "".join(f"{line:<{width}}  # {origin}\n" for line, origin in lines)
