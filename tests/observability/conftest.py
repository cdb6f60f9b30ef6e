"""The servers and the Prometheus that all tests of this folder look at."""

from collections.abc import Iterator

import pytest

from tests.observability.prometheus import require
from tests.observability.scraped import Scraped, scraped_servers


@pytest.fixture(scope="session")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """Servers after 12 seconds of load."""
    require("prometheus")
    with scraped_servers(tmp_path_factory.mktemp("prometheus"), [(12, 0.02)]) as found:
        yield found
