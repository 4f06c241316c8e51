"""Who leaves when memory is wanted: a pure choice among residents that nobody uses.

lru    the longest unused first
lfu    the least often used first, of these the longest unused
cost   GreedyDual-Size-Frequency (Cherkasova 1998): H = L + frequency x cost / size, the least H first. The cost is what
       a load takes, in seconds, as measured; the size is the largest share that the model has of any budget; L is the H
       of what was evicted last, as the model was last used, so that what was useful once ages
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headway.config import EvictionPolicy
from headway.service.events import Amounts

_LEAST_SHARE = 1e-6


@dataclass(frozen=True, slots=True)
class Candidate:
    """A resident that may leave."""

    model: str
    amounts: Amounts
    """What comes back if it does."""
    last_used_at: float
    num_uses: int
    load_s: float
    """What it costs to have it back."""
    inflation: float = 0.0
    """L when it was last used."""


@dataclass(frozen=True, slots=True)
class Victims:
    """Those that leave, the least worth first; together they free enough."""

    models: tuple[str, ...]
    inflation: float
    """L from now on, under the policy cost."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """All candidates together do not free enough: nothing is evicted."""

    missing: Amounts
    """What is wanted beside all of them."""


def choose_victims(
    candidates: Iterable[Candidate], needed: Amounts, policy: EvictionPolicy, budget: Amounts
) -> Victims | Shortage:
    """A set of candidates that frees `needed`, of the least worth.

    1. In ascending worth, each is taken that has something of what is still needed.
    2. Together they are too little: nothing is evicted.
    3. Of those taken, the ones that turn out to be needless stay, the most worth first.

    Args:
        needed: by resource; all over 0.
        budget: the limit of each resource, for shares.
    """
    left = dict(needed)
    taken: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda each: _worth(each, policy, budget)):
        if not left:
            break
        if any(candidate.amounts.get(name, 0) > 0 for name in left):  # 1
            taken.append(candidate)
            left = _left(left, candidate.amounts)
    if left:  # 2
        return Shortage(left)
    victims = _without_needless(taken, needed)  # 3
    inflation = max((_gdsf(victim, budget) for victim in victims), default=0.0)
    return Victims(tuple(victim.model for victim in victims), inflation)


def _left(needed: Amounts, freed: Amounts) -> dict[str, int]:
    """What is still needed of each resource."""
    return {name: amount - freed.get(name, 0) for name, amount in needed.items() if amount > freed.get(name, 0)}


def _without_needless(taken: Sequence[Candidate], needed: Amounts) -> list[Candidate]:
    kept = list(taken)
    for candidate in reversed(taken):
        others = [other for other in kept if other is not candidate]
        if all(sum(other.amounts.get(name, 0) for other in others) >= amount for name, amount in needed.items()):
            kept = others
    return kept


def _worth(candidate: Candidate, policy: EvictionPolicy, budget: Amounts) -> tuple[float, float, str]:
    """The least goes first; equal ones by their last use, then by name, so that a choice can be repeated."""
    value: Mapping[EvictionPolicy, float] = {
        "lru": 0.0,
        "lfu": float(candidate.num_uses),
        "cost": _gdsf(candidate, budget),
    }
    return value[policy], candidate.last_used_at, candidate.model


def _gdsf(candidate: Candidate, budget: Amounts) -> float:
    """H."""
    shares = [candidate.amounts.get(name, 0) / limit for name, limit in budget.items() if limit > 0]
    return candidate.inflation + candidate.num_uses * candidate.load_s / max([_LEAST_SHARE, *shares])
