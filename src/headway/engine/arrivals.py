"""Arrivals: an accepted request becomes its sequences, one a choice, each with its seed and its end tokens."""

import random
from collections.abc import Callable

import headway_wire as wire
from headway.cache.kv_cache import KVCache
from headway.core.sequence import Fork, Sequence


class Arrivals:
    """Owned by the engine's loop.

    Args:
        seed: of the seeds of requests that have none; None: from the system.
        end_token_ids: the model's own; they end a choice unless it ignores them.
        now: seconds.
    """

    def __init__(self, *, seed: int | None, end_token_ids: frozenset[int], now: Callable[[], float]) -> None:
        self._end_token_ids = end_token_ids
        self._now = now
        self._random: random.Random = random.SystemRandom() if seed is None else random.Random(seed)
        self._num_arrived = 0

    def make_sequences(self, submit: wire.Submit, max_total_tokens: int, cache: KVCache) -> list[Sequence]:
        """One a choice. They share one list of prompt tokens until they start, for many may wait for long; where they
        share a prompt that is worth sharing, the first computes it and the others start from the prefix tree."""
        sampling = submit.sampling
        own = frozenset() if sampling.ignore_eos else self._end_token_ids
        seed = self._random.getrandbits(64) - 2**63 if sampling.seed is None else sampling.seed
        is_shared = cache.enable_prefix_caching and len(submit.prompt_token_ids) > cache.block_size
        fork = Fork() if sampling.n > 1 and is_shared else None
        prompt = list(submit.prompt_token_ids)
        arrival_s = self._now()
        first, self._num_arrived = self._num_arrived, self._num_arrived + sampling.n
        sequences = [
            Sequence(
                request_id=submit.request_id,
                choice=choice,
                arrival=first + choice,
                arrival_s=arrival_s,
                token_ids=prompt,
                num_prompt_tokens=len(prompt),
                max_total_tokens=max_total_tokens,
                sampling=sampling,
                seed=seed,
                end_token_ids=own.union(sampling.stop_token_ids),
                priority=submit.priority,
                tenant=submit.tenant,
                cache_salt=submit.cache_salt,
                is_scored=choice > 0 or sampling.prompt_logprobs is None or len(prompt) < 2,
                fork=fork,
            )
            for choice in range(sampling.n)
        ]
        if fork is not None:
            fork.sequences.extend(sequences)
        return sequences
