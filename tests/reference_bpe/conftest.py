"""The second opinion is compared over the wire, by the same clients as the cases."""

from tests.equivalence.conftest import client_of  # noqa: F401 (a fixture)
