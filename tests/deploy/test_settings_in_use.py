"""Everything in deploy/ and in docs/deploying.md that looks like a setting is one."""

import json
import re
from pathlib import Path

import pytest

from tokend._channel import ConnectionSettings
from tokend._target import Target
from tokend_server.config import settings_list

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for path in sorted((ROOT / "deploy").rglob("*"))
    if path.is_file() and path.suffix not in {".pyc", ".json", ".py"}
]
# The client's, and the one that names a file of settings.
NOT_OF_THE_SERVER = {"TOKEND_TARGET", "TOKEND_TOKEN", "TOKEND_TIMEOUT_S", "TOKEND_CONFIG"}


@pytest.mark.parametrize("path", [*FILES, ROOT / "docs" / "deploying.md"], ids=lambda path: path.name)
def test_every_variable_and_flag_is_a_setting(path: Path):
    text = path.read_text(encoding="utf-8")
    known = settings_list()
    variables = {each.variable for each in known} | NOT_OF_THE_SERVER
    assert set(re.findall(r"\bTOKEND_[A-Z_]+\b", text)) <= variables
    flags = {each.flag for each in known} | {"--config", "--print-config"}
    for command in re.findall(r"tokend serve((?: --?[^\n`']*)?)", text):
        assert set(re.findall(r"--[a-z-]+", command)) <= flags, command


def test_there_is_something_to_look_at():
    found = {
        name for path in FILES for name in re.findall(r"\bTOKEND_[A-Z_]+\b", path.read_text(encoding="utf-8"))
    }
    assert {"TOKEND_LISTEN", "TOKEND_WORKERS", "TOKEND_TOKENIZER"} <= found


def test_the_service_config_for_others_is_that_of_our_client():
    page = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    [shown] = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, flags=re.DOTALL)]
    ours = ConnectionSettings(
        target=Target.read("tokend:1"),
        connections=1,
        token=None,
        tls=None,
        allow_plaintext_token=False,
        channel_options=(),
    )
    config = json.loads(dict(ours.options())["grpc.service_config"])
    [method], [our_method] = shown.pop("methodConfig"), config.pop("methodConfig")
    assert method["retryPolicy"] == our_method["retryPolicy"]
    assert method["name"][0] in our_method["name"]
    assert shown.items() <= config.items()
