"""The real server over real tokenizers, against the library in this process: ids, offsets, counts, text, bytes.

`make test` takes the core set and a share of the inputs, `make zoo-full` everything.
"""

import pytest

from tests.equivalence.comparison import SHARE, SMALL_SHARE, SMALL_WHOLE, WHOLE, compare
from tests.equivalence.subjects import SMALL, chosen, is_full

pytestmark = pytest.mark.timeout(3_000)


@pytest.mark.parametrize("subject", chosen(), ids=lambda subject: subject.name)
def test_the_service_gives_what_the_library_gives(subject, tmp_path):
    outcome = compare(subject, WHOLE if is_full() else SHARE, tmp_path)
    outcome.tally.demand_none()
    assert outcome.tally.n_ids > 100 * outcome.tally.n_strings, "hardly anything was compared"
    # That files called exact bring every text back is one of the laws; the others have to earn their verdict too.
    assert outcome.info.round_trip.exact is (outcome.n_changed == 0)
    assert outcome.info.streaming.mode != "held"


@pytest.mark.parametrize("subject", SMALL, ids=lambda subject: subject.name)
def test_the_service_gives_what_the_library_gives_on_small_files_with_odd_parts(subject, tmp_path):
    outcome = compare(subject, SMALL_WHOLE if is_full() else SMALL_SHARE, tmp_path)
    outcome.tally.demand_none()
