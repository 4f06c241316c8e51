from collections.abc import Callable
from itertools import count

import pytest

from headway.core.sequence import Sequence


@pytest.fixture(scope="session")
def make_sequence_once() -> Callable[..., Sequence]:
    """make_sequence for hypothesis, whose examples share their fixtures."""
    return _make_maker()


@pytest.fixture
def make_sequence() -> Callable[..., Sequence]:
    """Makes sequences named after their arrival; tokens are letters or ids."""
    return _make_maker()


def _make_maker() -> Callable[..., Sequence]:
    arrivals = count()

    def make(tokens, max_total_tokens: int = 100) -> Sequence:
        token_ids = [ord(token) if isinstance(token, str) else token for token in tokens]
        arrival = next(arrivals)
        return Sequence(
            request_id=str(arrival),
            choice=0,
            arrival=arrival,
            token_ids=token_ids,
            num_prompt_tokens=len(token_ids),
            max_total_tokens=max_total_tokens,
        )

    return make
