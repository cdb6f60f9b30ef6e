"""deploy/systemd: a unit that systemd takes, and that may do little."""

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tokend_server.config import settings_list

ANALYZE = shutil.which("systemd-analyze") or ""
pytestmark = pytest.mark.skipif(not ANALYZE, reason="systemd-analyze is not on this machine")
UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "tokend.service"
# systemd's own scale, from 0 (may do nothing) to 10.
MOST_EXPOSURE = 2.0


def test_systemd_takes_the_unit(tmp_path: Path):
    # The program is not where it will be.
    here = UNIT.read_text(encoding="utf-8").replace("/opt/tokend/bin/tokend", sys.executable)
    copy = tmp_path / UNIT.name
    copy.write_text(here, encoding="utf-8")
    done = subprocess.run(
        [ANALYZE, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_may_do_little():
    done = subprocess.run(
        [
            *(ANALYZE, "security", "--offline=yes", "--no-pager"),
            *(f"--threshold={MOST_EXPOSURE * 10:.0f}", str(UNIT)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-400:]


def test_the_unit_leaves_the_time_that_a_server_takes_to_stop():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(UNIT)
    [grace] = [each.default for each in settings_list() if each.name == "drain_grace_s"]
    assert float(unit["Service"]["TimeoutStopSec"]) >= float(grace) + 12
