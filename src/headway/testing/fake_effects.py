"""What a pool decides, written down instead of done (service/pool.Effects)."""

from headway.service.events import Deny, Effect, Estimate, Forget, Grant, Start, Stop


class FakeEffects:
    """Remembers effects in order; take() gives them away."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def take(self) -> list[Effect]:
        """The effects since the last take()."""
        effects, self._effects = self._effects, []
        return effects

    def estimate(self, effect: Estimate) -> None:
        """Notes it."""
        self._effects.append(effect)

    def start(self, effect: Start) -> None:
        """Notes it."""
        self._effects.append(effect)

    def stop(self, effect: Stop) -> None:
        """Notes it."""
        self._effects.append(effect)

    def grant(self, effect: Grant) -> None:
        """Notes it."""
        self._effects.append(effect)

    def deny(self, effect: Deny) -> None:
        """Notes it."""
        self._effects.append(effect)

    def forget(self, effect: Forget) -> None:
        """Notes it."""
        self._effects.append(effect)
