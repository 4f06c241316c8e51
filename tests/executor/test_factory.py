import pytest

from headway.executor.factory import spin_briefly


@pytest.mark.parametrize(
    ("given", "set_to"),
    [
        ({}, {"GOMP_SPINCOUNT": "2000"}),
        ({"GOMP_SPINCOUNT": "infinity"}, {"GOMP_SPINCOUNT": "infinity"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ],
)
def test_threads_spin_briefly_unless_the_user_said_otherwise(given: dict[str, str], set_to: dict[str, str]) -> None:
    environ = dict(given)
    spin_briefly(environ)
    assert environ == set_to
