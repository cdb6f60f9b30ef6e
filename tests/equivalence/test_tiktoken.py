"""A second engine that nobody here wrote: tiktoken agrees with the service on GPT-2, cl100k and o200k."""

import pytest

from tests.equivalence.comparison import SHARE, WHOLE
from tests.equivalence.subjects import from_zoo, is_full
from tests.equivalence.tiktoken_engine import NAMES, compare_with_tiktoken

pytestmark = pytest.mark.timeout(1_200)


@pytest.mark.parametrize("name", NAMES)
def test_the_service_gives_what_tiktoken_gives(name, tmp_path):
    tally = compare_with_tiktoken(from_zoo(name), WHOLE if is_full() else SHARE, tmp_path)
    tally.demand_none()
