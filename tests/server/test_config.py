from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokend_server.config import (
    Address,
    ConfigError,
    Nowhere,
    Settings,
    UnixAddress,
    load,
    print_config,
    settings_list,
)
from tokend_server.setting_flags import VERIFY
from tokend_server.setting_kinds import (
    ADDRESS,
    BOOLEAN,
    choice,
    count,
    count_or_auto,
    seconds,
    show_size,
    size,
)

SIZE = size(1, 2**31 - 1)


def write(folder: Path, text: str) -> str:
    path = folder / "tokend.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def error_of(argv=(), environ=None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(list(argv), environ or {})
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_those_of_the_contract():
    loaded = load([], {})
    assert loaded.settings == Settings()
    assert str(loaded.settings.listen) == "127.0.0.1:50051"
    assert str(loaded.settings.ops_listen) == "127.0.0.1:9464"
    assert loaded.settings.max_text_bytes == 16 * 2**20
    assert loaded.settings.max_batch_texts == 4096
    assert loaded.settings.max_batch_bytes == 48 * 2**20
    assert loaded.settings.max_ids == 4_000_000
    assert loaded.settings.max_sequences_per_stream == 16_384
    assert loaded.settings.max_streams == 8192
    assert loaded.settings.max_message_bytes == 64 * 2**20
    assert loaded.settings.default_special_tokens == "TEXT"
    assert loaded.settings.tokenizer is None
    assert not loaded.settings.allow_port_sharing
    assert set(loaded.origins.values()) == {"default"}


def test_flag_wins_over_environment_over_file_over_default(tmp_path):
    path = write(tmp_path, "max_ids = 1\nmax_streams = 1\nmax_batch_texts = 1\n")
    loaded = load(["--config", path, "--max-ids", "3"], {"TOKEND_MAX_IDS": "2", "TOKEND_MAX_STREAMS": "2"})
    assert (loaded.settings.max_ids, loaded.settings.max_streams, loaded.settings.max_batch_texts) == (
        3,
        2,
        1,
    )
    assert loaded.origins["max_ids"] == "flag --max-ids"
    assert loaded.origins["max_streams"] == "environment TOKEND_MAX_STREAMS"
    assert loaded.origins["max_batch_texts"] == f"file {path}"
    assert loaded.origins["max_text_bytes"] == "default"


def test_the_file_may_be_named_by_the_environment(tmp_path):
    path = write(tmp_path, "max_ids = 7\n")
    assert load([], {"TOKEND_CONFIG": path}).settings.max_ids == 7


def test_other_programs_variables_are_not_looked_at():
    load([], {"PATH": "/bin", "TOKENIZERS_PARALLELISM": "true", "TOKENDX": "1"})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TOKEND_TARGET", "localhost:1"),
        ("TOKEND_TOKEN", "x"),
        ("TOKEND_CLIENT_ANYTHING", "x"),
        ("TOKEND_ZOO_CACHE", "/x"),
        # What Kubernetes sets in every pod beside a Service named tokend, or tokend-metrics.
        ("TOKEND_SERVICE_HOST", "10.0.0.1"),
        ("TOKEND_SERVICE_PORT", "50051"),
        ("TOKEND_SERVICE_PORT_GRPC", "50051"),
        ("TOKEND_PORT", "tcp://10.0.0.1:50051"),
        ("TOKEND_PORT_50051_TCP", "tcp://10.0.0.1:50051"),
        ("TOKEND_PORT_50051_TCP_ADDR", "10.0.0.1"),
        ("TOKEND_METRICS_PORT_9464_TCP_PROTO", "tcp"),
    ],
)
def test_variables_that_are_not_the_servers_are_let_be(variable, value):
    assert load([], {variable: value}).settings == Settings()


def test_no_setting_hides_behind_the_foreign_variables():
    for each in settings_list():
        with pytest.raises(ConfigError, match=each.variable):
            load([], {each.variable + "_": "x"})


def test_an_unknown_variable_is_an_error_that_suggests_the_right_one():
    message = error_of(environ={"TOKEND_MAX_ID": "3"})
    assert "TOKEND_MAX_ID" in message
    assert "TOKEND_MAX_IDS" in message


def test_a_port_variable_without_a_kubernetes_value_is_unknown():
    assert error_of(environ={"TOKEND_PORT": "50051"}).endswith("TOKEND_PORT; did you mean TOKEND_LISTEN?")


def test_an_unknown_key_is_an_error_that_names_file_and_key(tmp_path):
    path = write(tmp_path, "max_idz = 3\n")
    message = error_of(["--config", path])
    assert path in message
    assert "max_idz" in message
    assert "max_ids" in message


@pytest.mark.parametrize(
    "text", ["[server]\nmax_ids = 3\n", "server.max_ids = 3\n", "[[server]]\nmax_ids = 3\n"]
)
def test_a_table_in_the_file_is_an_error_that_says_where_settings_stand(tmp_path, text):
    path = write(tmp_path, text)
    assert error_of(["--config", path]) == (
        f"file {path}: unknown table [server]; settings stand at the top level, in no table"
    )


def test_an_unknown_list_is_no_table(tmp_path):
    message = error_of(["--config", write(tmp_path, 'control_token = ["<a>"]\n')])
    assert message.endswith("unknown setting control_token; did you mean control_tokens?")


def test_an_unknown_flag_is_an_error_that_suggests_the_right_one_and_flags_are_not_abbreviated():
    assert error_of(["--nonsense"]) == "unknown flag --nonsense; --help lists all settings"
    for arguments in (["--max-id", "3"], ["--max-id=3"], ["--front", "native", "--max-id"]):
        assert error_of(arguments) == "unknown flag --max-id; did you mean --max-ids?"
    for flag, meant in (
        ("--port", "; did you mean --listen?"),
        ("--tls-cert", "; did you mean --tls-cert-file?"),
        ("--auth-token", "; did you mean --auth-tokens-file?"),
        ("--tokeniser", "; did you mean --tokenizer?"),
        # Like --front by its letters, and nothing of the kind.
        ("--fort", "; --help lists all settings"),
    ):
        assert error_of([flag, "x"]) == f"unknown flag {flag}{meant}"
    assert "'tokenizer.json'" in error_of(["tokenizer.json"])
    assert "--max-ids" in error_of(["--max-ids"])


class TestVerify:
    """The command line of `tokend verify`: the file by its place, and the flags that matter to a verdict."""

    def load(self, *arguments, environ=None):
        return load(arguments, environ or {}, command=VERIFY).settings

    def test_the_file_is_given_by_its_place_anywhere(self):
        for arguments in (["x.json", "--state-dir", "s"], ["--state-dir", "s", "x.json"]):
            settings = self.load(*arguments)
            assert (settings.tokenizer, settings.state_dir) == (Path("x.json"), Path("s"))

    def test_without_one_it_is_the_one_that_serve_would_serve(self, tmp_path):
        assert self.load().tokenizer is None
        assert self.load(environ={"TOKEND_TOKENIZER": "y.json"}).tokenizer == Path("y.json")
        assert self.load("--config", write(tmp_path, "tokenizer = 'z.json'")).tokenizer == Path("z.json")
        assert self.load("x.json", environ={"TOKEND_TOKENIZER": "y.json"}).tokenizer == Path("x.json")

    def test_a_flag_of_serve_alone_is_refused_and_a_variable_of_serve_is_not(self):
        with pytest.raises(ConfigError, match="unknown flag --listen"):
            self.load("x.json", "--listen", "127.0.0.1:1")
        with pytest.raises(ConfigError, match="did you mean --state-dir"):
            self.load("--statedir", "s", "x.json")
        self.load("x.json", environ={"TOKEND_LISTEN": "127.0.0.1:1"})

    def test_help_tells_of_the_file_and_of_nothing_that_does_not_matter(self, capsys):
        with pytest.raises(SystemExit):
            self.load("--help")
        shown = " ".join(capsys.readouterr().out.split())
        assert "FILE the tokenizer.json; without it" in shown
        assert "--control-tokens" in shown
        assert "--listen" not in shown


@pytest.mark.parametrize(
    "text", ["max_ids = true", "max_ids = 1.5", "max_ids = [1]", "listen = 50051", "log_level = 3"]
)
def test_a_value_of_the_wrong_toml_type_is_an_error_that_names_the_key(tmp_path, text):
    message = error_of(["--config", write(tmp_path, text)])
    assert text.split(" ", 1)[0] in message
    assert "expected" in message


@pytest.mark.parametrize(
    "content", [b"max_ids = ", b"\xff\xfe", b"max_ids = 1\nmax_ids = 2", b"max_ids = " + b"[" * 100_000]
)
def test_a_file_that_is_not_toml_is_one_clear_line(tmp_path, content):
    path = tmp_path / "tokend.toml"
    path.write_bytes(content)
    assert str(path) in error_of(["--config", str(path)])


def test_a_file_without_an_end_is_one_clear_line():
    assert "larger than" in error_of(["--config", "/dev/zero"])


def test_a_missing_file_is_one_clear_line(tmp_path):
    assert "No such file" in error_of(["--config", str(tmp_path / "none.toml")])


def test_a_bad_value_names_its_source_and_what_is_expected():
    assert "flag --max-ids: 'x'" in error_of(["--max-ids", "x"])
    assert "environment TOKEND_LOG_LEVEL: 'loud'" in error_of(environ={"TOKEND_LOG_LEVEL": "loud"})
    assert "debug, info, warning, error" in error_of(environ={"TOKEND_LOG_LEVEL": "loud"})


@pytest.mark.parametrize(
    ("smaller", "larger"), [("max-text-bytes", "max-batch-bytes"), ("max-batch-bytes", "max-message-bytes")]
)
def test_limits_that_contradict_each_other_are_refused(smaller, larger):
    message = error_of([f"--{smaller}", "100MiB"])
    assert f"--{smaller}" in message
    assert f"--{larger}" in message


def test_control_tokens_come_from_repeated_flags_a_comma_list_or_an_array(tmp_path):
    wanted = ("<tool_call>", "[INST]")
    path = write(tmp_path, 'control_tokens = ["<tool_call>", "[INST]"]\n')
    flags = ["--control-tokens", "<tool_call>", "--control-tokens", "[INST]"]
    assert load(flags, {}).settings.control_tokens == wanted
    assert load([], {"TOKEND_CONTROL_TOKENS": "<tool_call>,[INST]"}).settings.control_tokens == wanted
    assert load(["--config", path], {}).settings.control_tokens == wanted


def test_a_token_with_a_comma_can_be_given_by_flag():
    assert load(["--control-tokens", "/a{1,2}/"], {}).settings.control_tokens == ("/a{1,2}/",)


def test_an_empty_list_variable_overrides_the_file_with_nothing(tmp_path):
    path = write(tmp_path, 'control_tokens = ["a"]\n')
    assert load(["--config", path], {"TOKEND_CONTROL_TOKENS": ""}).settings.control_tokens == ()


def test_a_boolean_has_two_flags():
    assert load(["--allow-port-sharing"], {}).settings.allow_port_sharing
    assert not load(
        ["--no-allow-port-sharing"], {"TOKEND_ALLOW_PORT_SHARING": "true"}
    ).settings.allow_port_sharing
    assert load([], {"TOKEND_ALLOW_PORT_SHARING": "1"}).settings.allow_port_sharing


def test_what_print_config_shows_is_a_file_that_gives_the_same_settings(tmp_path):
    argv = [
        *("--tokenizer", 'a "quoted"\\\n\x7f é path.json', "--listen", "[::1]:0", "--max-text-bytes", "1000"),
        *(
            "--control-tokens",
            "<|ü|>",
            "--control-tokens",
            "/a,b/",
            "--drain-grace-s",
            "0.25",
            "--allow-port-sharing",
        ),
    ]
    loaded = load(argv, {"TOKEND_LOG_FORMAT": "json"})
    shown = print_config(loaded)
    again = load(["--config", write(tmp_path, shown), "--print-config"], {})
    assert again.settings == loaded.settings
    assert again.print_config
    lines = shown.splitlines()
    assert len(lines) == len(settings_list())
    assert any(
        line.startswith('log_format = "json"') and line.endswith("# environment TOKEND_LOG_FORMAT")
        for line in lines
    )
    assert any(line.startswith("max_ids = 4000000") and line.endswith("# default") for line in lines)


def test_help_names_every_flag(capsys):
    with pytest.raises(SystemExit) as ended:
        load(["--help"], {})
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for each in settings_list():
        assert each.flag in shown


@pytest.mark.parametrize(
    ("text", "host", "port", "shown"),
    [
        ("127.0.0.1:50051", "127.0.0.1", 50051, "127.0.0.1:50051"),
        ("localhost:0", "localhost", 0, "localhost:0"),
        ("[::1]:0", "::1", 0, "[::1]:0"),
        ("[::]:65535", "::", 65535, "[::]:65535"),
    ],
)
def test_addresses_are_read_and_shown_alike(text, host, port, shown):
    address = ADDRESS.parse(text)
    assert address == Address(host=host, port=port)
    assert str(address) == shown


@pytest.mark.parametrize(
    "text", ["", ":1", "1", "host", "host:", "host:65536", "host:-1", "::1:1", "[::1]", "[h]:1", "h:1²"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 (the message is the kind's `expected`)
        ADDRESS.parse(text)


@given(st.integers(1, 2**31 - 1))
def test_a_size_reads_back_as_it_is_shown(n_bytes):
    assert SIZE.parse(show_size(n_bytes)) == n_bytes


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("1", 1),
        ("16MiB", 2**24),
        ("16 mib", 2**24),
        ("1kB", 1000),
        ("1_000", 1000),
        ("5B", 5),
        ("1GiB", 2**30),
    ],
)
def test_sizes_take_units(text, n_bytes):
    assert SIZE.parse(text) == n_bytes


@pytest.mark.parametrize("text", ["", "MiB", "0", "-1", "1.5MiB", "1 TiB", "2GiB", "1MiBB", "9" * 30, "٣"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises((ValueError, KeyError)):
        SIZE.parse(text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (count(1, 5), "0"), (count(1, 5), "6"), (count(1, 5), "+1"), (seconds(0, 10), "nan"), (seconds(0, 10), "inf"),
        (seconds(0, 10), "-1"), (BOOLEAN, "maybe"), (choice("A"), "B"), (count_or_auto(1, 5), "0"),
        (count_or_auto(1, 5), "automatic"),
    ],
)  # fmt: skip
def test_values_out_of_bounds_are_refused(kind, text):
    with pytest.raises((ValueError, KeyError)):
        kind.parse(text)


def test_auto_is_a_number_of_its_own():
    kind = count_or_auto(1, 5)
    assert [kind.parse(text) for text in ("1", "5", "auto", "AUTO")] == [1, 5, 0, 0]
    assert [kind.show(value) for value in (1, 5, 0)] == ["1", "5", '"auto"']


@pytest.mark.parametrize("listen", ["unix:/run/tokend/grpc.sock", "unix:///run/tokend/grpc.sock"])
def test_sockets_modes_and_what_is_off_are_shown_as_they_are_read(tmp_path, listen):
    flags = ["--listen", listen, "--ops-listen", "OFF", "--listen-mode", "660", "--no-reflection"]
    loaded = load(flags, {})
    settings = loaded.settings
    assert settings.listen == UnixAddress(path="/run/tokend/grpc.sock")
    assert (settings.ops_listen, settings.listen_mode, settings.reflection) == (Nowhere(), 0o660, False)
    file = tmp_path / "tokend.toml"
    file.write_text(print_config(loaded))
    assert load(["--config", str(file)], {}).settings == settings


@pytest.mark.parametrize("text", ["unix:", "unix:relative", "unix://relative", "unix:/a\0b", "off"])
def test_what_is_no_place_to_listen_is_refused(text):
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        load(["--listen", text], {})


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("unix:/a", True), ("0.0.0.0:1", False),
     ("[::]:1", False), ("10.0.0.7:1", False), ("tokend.example:1", False)],
)  # fmt: skip
def test_what_others_reach_is_told_from_this_machine(address, loopback):
    assert load(["--listen", address], {}).settings.listen.is_loopback is loopback


@pytest.mark.parametrize(
    "flags", [["--tls-cert-file", "a"], ["--tls-key-file", "a"], ["--tls-client-ca-file", "a"]]
)
def test_half_of_tls_is_refused(flags):
    with pytest.raises(ConfigError, match="tls_"):
        load(flags, {})
