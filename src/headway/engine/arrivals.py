"""Arrivals: an accepted request becomes its sequences, one a choice, each with its seed, its end tokens, and what its
output has to match."""

import random
from collections.abc import Callable

import headway_wire as wire
from headway.cache.kv_cache import KVCache
from headway.core.sequence import Fork, Sequence
from headway.engine.compiled_grammar import CompiledGrammar
from headway.engine.constrained import ConstrainedOutput
from headway.engine.constraint import OutputConstraint
from headway.errors import InvariantBroken


class Arrivals:
    """Owned by the engine's loop.

    Args:
        seed: of the seeds of requests that have none; None: from the system.
        end_token_ids: the model's own; they end a choice unless it ignores them.
        now: seconds.
        forces_tokens: tokens that a constraint leaves no choice about are not sampled.
    """

    def __init__(
        self, *, seed: int | None, end_token_ids: frozenset[int], now: Callable[[], float], forces_tokens: bool = True
    ) -> None:
        self._end_token_ids = end_token_ids
        self._forces_tokens = forces_tokens
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
                num_to_score=len(prompt),
                fork=fork,
            )
            for choice in range(sampling.n)
        ]
        if fork is not None:
            fork.sequences.extend(sequences)
        return sequences

    def constrain(self, sequences: list[Sequence], grammar: CompiledGrammar) -> dict[Sequence, ConstrainedOutput]:
        """The outputs of a request's sequences, each on its own way through the grammar. Their tokens now have what
        their outputs begin with. Raises InvalidRequest where the grammar cannot even begin."""
        outputs = {}
        for sequence in sequences:
            sampling = sequence.sampling
            if sampling.constraint is None:
                raise InvariantBroken(f"request {sequence.request_id} has a grammar and no constraint")
            # What the grammar leaves no choice about may still be forbidden by these: then it has to be sampled.
            forces = self._forces_tokens and sampling.allowed_token_ids is None and not sampling.bad_token_ids
            constraint = OutputConstraint(sampling.constraint, grammar, forces=forces)
            output = ConstrainedOutput(constraint, constraint.begin(), tells_logprobs=sampling.logprobs is not None)
            output.begin(sequence)
            sequence.token_ids = sequences[0].token_ids  # all begin alike
            outputs[sequence] = output
        return outputs
