"""When an operator is warned of a certificate's end."""

import logging

import pytest

from tokend_server.certificates import ExpiryWatch, ServerCertificate

DAY_S = 86_400.0


def living(days: float) -> ServerCertificate:
    return ServerCertificate(
        key=b"", chain=b"", client_authorities=None, lives_s=days * DAY_S, expires_s=1000 * DAY_S
    )


class Warned:
    def __init__(self, certificate: ServerCertificate, caplog: pytest.LogCaptureFixture) -> None:
        self.certificate, self.now_s, self._caplog = certificate, 0.0, caplog
        self._watch = ExpiryWatch(lambda: self.certificate, clock=lambda: self.now_s)

    def at(self, days_left: float) -> list[str]:
        """Look at that time, and give what was said."""
        self.now_s = (1000 - days_left) * DAY_S
        self._caplog.clear()
        self._watch.look()
        return [record.levelname for record in self._caplog.records]


def test_a_long_lived_one_is_warned_of_for_its_last_two_weeks_once_a_day(caplog):
    caplog.set_level(logging.INFO)
    warned = Warned(living(90), caplog)
    said = {days: warned.at(days) for days in (80, 14.1, 13.9, 13.5, 12.8, 0.5, 0.1)}
    assert said == {
        80: [],
        14.1: [],
        13.9: ["WARNING"],
        13.5: [],
        12.8: ["WARNING"],
        0.5: ["WARNING"],
        0.1: [],
    }
    assert [warned.at(days) for days in (-0.1, -0.2, -1.2)] == [["ERROR"], [], ["ERROR"]]


def test_one_that_lives_for_a_day_is_warned_of_in_its_last_fifth_only(caplog):
    caplog.set_level(logging.INFO)
    warned = Warned(living(1), caplog)
    assert [warned.at(days) for days in (0.9, 0.4, 0.21, 0.19)] == [[], [], [], ["WARNING"]]


def test_a_new_one_is_warned_of_anew(caplog):
    caplog.set_level(logging.INFO)
    warned = Warned(living(90), caplog)
    assert warned.at(3) == ["WARNING"]
    warned.certificate = living(90)
    assert warned.at(2.9) == ["WARNING"]
