"""Vectors and scores of texts: a lease on a resident encoder, the texts' ids, and what its worker makes of them."""

from headway.core.embedding import Embedded, EmbedRequest, Scored, ScoreRequest
from headway.errors import UnsupportedFeature
from headway.service.frameworks import run_of
from headway.service.lease import Lease
from headway.service.remote.base import as_text_client
from headway.service.residents import Residents
from headway.service.served_model import ServedModel
from headway.worker.embed_prompt import EncoderInputs, prepare_texts
from headway.worker.prompt import ModelText


async def embed(residents: Residents, model: ServedModel, request: EmbedRequest) -> Embedded:
    """A vector of each input. Raises HeadwayError: then nothing runs on and nothing is leased."""
    from headway.worker.scoring import cut_vectors, embed_inputs, embedder_of

    if run_of(model.config).kind == "remote":
        return await _embed_remotely(await residents.lease(model), request)
    text = await residents.text(model)
    encoder = embedder_of(text)
    encoder.check_dimensions(request.dimensions)
    vectors, counts = await _run(residents, model, text, request, embed_inputs(request))
    return Embedded(cut_vectors(vectors, encoder, request.dimensions), counts)


async def _embed_remotely(lease: Lease, request: EmbedRequest) -> Embedded:
    remote = as_text_client(lease.client)
    if remote is not None:
        return await remote.embed(request, lease.release)
    lease.release(False)
    raise UnsupportedFeature(f"{lease.model.id} is a model of type {lease.model.config.type}: it makes no vectors")


async def score(residents: Residents, model: ServedModel, request: ScoreRequest) -> Scored:
    """A score of each pair. Raises as embed()."""
    from headway.worker.scoring import check_pairs, score_inputs, scorer_of, scores_of

    text = await residents.text(model)
    encoder = scorer_of(text)
    check_pairs(request)
    vectors, counts = await _run(residents, model, text, request, score_inputs(encoder, request))
    return Scored(scores_of(encoder, request, vectors), sum(counts))


async def _run(
    residents: Residents,
    model: ServedModel,
    text: ModelText,
    request: EmbedRequest | ScoreRequest,
    inputs: EncoderInputs,
) -> tuple[list[bytes], list[int]]:
    """What the worker gave for each input, and the tokens of each."""
    while True:
        lease = await residents.lease(model)
        try:
            # A worker that told no limit is none that this checks for: it checks itself.
            worker = lease.worker
            limit = worker.max_model_len or 1 << 31
            prepared = await prepare_texts(text, inputs, max_model_len=limit, truncate_to=request.truncate_to)
        except BaseException:
            lease.release(False)
            raise
        if not worker.ended.done():
            call = worker.embed(request.request_id, prepared, lease.release, priority=request.priority)
            return await call, [len(each.token_ids) for each in prepared]
        # It died while the texts were tokenised: nothing was asked of it, so the next one may be asked.
        lease.release(False)
