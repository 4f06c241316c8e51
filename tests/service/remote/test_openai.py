"""A model behind another OpenAI-compatible server: what that is asked, what comes back, and every way it can fail."""

import asyncio
import base64
import json
import struct
from collections.abc import Sequence
from typing import Any

import pytest

from headway.config import InferConfig, ServerConfig
from headway.core.embedding import EmbedRequest
from headway.core.output import TextDelta
from headway.core.request import ChatPrompt, GenerateRequest, Prompt, TextPrompt, TokensPrompt
from headway.core.sampling import SamplingParams
from headway.core.structured import StructuredOutputsParams
from headway.core.tools import ToolCall, ToolUse, add_deltas
from headway.errors import (
    CallerError,
    ContextLengthExceeded,
    DeadlineExceeded,
    HeadwayError,
    InvalidConfig,
    InvalidRequest,
    PayloadTooLarge,
    ShuttingDown,
    UnsupportedFeature,
    UpstreamFailed,
    UpstreamLimited,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from headway.service.catalog_form import read_entries
from headway.service.local import LocalService
from headway.service.protocol import GenerateStream
from headway.service.remote.retries import retry_delay_s
from headway.service.remote.stream import RemoteStream
from headway.testing.fake_clock import FakeClock
from headway.testing.scripted_upstream import Answer, ScriptedUpstream, sse
from service.remote.conftest import WAIT_S, Serve, until

CHAT = "/v1/chat/completions"
HI = ChatPrompt([{"role": "user", "content": "hi"}])
CITY_TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def chunk(text: str | None = None, *, end: str | None = None, index: int = 0, **delta: Any) -> bytes:
    """One of chat's."""
    fields = delta | ({} if text is None else {"content": text})
    return sse({"choices": [{"index": index, "delta": fields, "finish_reason": end}]})


USAGE = sse(
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 1},
        },
    }
)
DONE = sse("[DONE]")
WHOLE = Answer([chunk(role="assistant"), chunk("Hel"), chunk("lo"), chunk(end="stop"), USAGE, DONE])


def request(prompt: Prompt = HI, *, tool_use: ToolUse | None = None, **sampling: Any) -> GenerateRequest:
    return GenerateRequest("r", "far", prompt, SamplingParams(**sampling), tool_use=tool_use or ToolUse())


async def ask(service: LocalService, *args: Any, **fields: Any) -> tuple[list[TextDelta], Any]:
    async with await service.generate(request(*args, **fields)) as stream:
        return [delta async for delta in stream], stream.usage


async def read_into(texts: list[str], stream: GenerateStream) -> None:
    async for delta in stream:
        texts.append(delta.text)


def joined(deltas: Sequence[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


async def until_settled(service: LocalService) -> None:
    """Waits until no lease is left."""
    await until(lambda: not service.stats()["pool"]["pool"]["leases"])


@pytest.fixture
def listed(upstream: ScriptedUpstream) -> ScriptedUpstream:
    """It has one model, "theirs"."""
    upstream.add_models("theirs")
    return upstream


async def test_a_stream_that_is_closed_before_it_was_begun_gives_its_lease_and_its_connection_back(
    listed: ScriptedUpstream, serve: Serve
) -> None:
    listed.add(CHAT, Answer([chunk("a"), asyncio.Event()]))
    service = await serve()
    stream = await service.generate(request())
    await stream.aclose()  # in the same turn of the loop
    await until_settled(service)
    async with asyncio.timeout(WAIT_S):
        await listed.requests[-1].is_left.wait()
    assert service.stats()["models"]["far"]["client_open_requests"] == 0


class TestAnswers:
    async def test_a_chat_streams_through_with_the_counts_of_the_other_server(
        self, listed: ScriptedUpstream, serve: Serve
    ) -> None:
        listed.add(CHAT, WHOLE)
        service = await serve()
        deltas, usage = await ask(service)
        assert joined(deltas) == "Hello"
        assert (deltas[-1].finish_reason, deltas[-1].choice) == ("stop", 0)
        counts = (usage.num_prompt_tokens, usage.num_output_tokens, usage.num_cached_tokens, usage.num_reasoning_tokens)
        assert counts == (7, 3, 4, 1)
        await until_settled(service)
        assert service.stats()["models"]["far"]["client_output_tokens_total"] == 3
        assert listed.requests[-1].json == {
            "model": "theirs",
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": "hi"}],
        }

    async def test_a_connection_is_used_again(self, listed: ScriptedUpstream, serve: Serve) -> None:
        listed.add(CHAT, WHOLE)
        service = await serve()
        for _ in range(4):
            await ask(service)
            await until_settled(service)
        assert listed.num_connections == 1

    async def test_a_delta_is_there_before_the_next_one_is_made(self, listed: ScriptedUpstream, serve: Serve) -> None:
        gate = asyncio.Event()
        listed.add(CHAT, Answer([chunk("a"), gate, chunk("b", end="length"), DONE]))
        service = await serve()
        async with asyncio.timeout(WAIT_S), await service.generate(request()) as stream:
            assert (await anext(stream)).text == "a"
            gate.set()
            last = await anext(stream)
        assert (last.text, last.finish_reason) == ("b", "length")

    async def test_texts_and_token_ids_go_to_completions(self, listed: ScriptedUpstream, serve: Serve) -> None:
        answer = Answer([sse({"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}), DONE])
        listed.add("/v1/completions", answer)
        service = await serve()
        for prompt, told in ((TextPrompt("once"), "once"), (TokensPrompt([5, 6]), [5, 6])):
            deltas, _ = await ask(service, prompt)
            assert joined(deltas) == "x"
            assert listed.requests[-1].json["prompt"] == told

    async def test_choices_reasoning_and_log_probabilities(self, listed: ScriptedUpstream, serve: Serve) -> None:
        told = [{"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [{"token": "e", "logprob": -1.5}]}]
        with_logprobs = {"index": 1, "delta": {"content": "é"}, "logprobs": {"content": told}, "finish_reason": "stop"}
        listed.add(
            CHAT,
            Answer([chunk(reasoning_content="hm"), sse({"choices": [with_logprobs]}), chunk("b", end="stop"), DONE]),
        )
        deltas, _ = await ask(await serve(), n=2, logprobs=1)
        assert [(delta.choice, delta.text, delta.reasoning) for delta in deltas] == [
            (0, "", "hm"),
            (1, "é", ""),
            (0, "b", ""),
        ]
        (entry,) = deltas[1].logprobs
        assert (entry.chosen.token, entry.chosen.bytes, entry.chosen.logprob) == ("é", b"\xc3\xa9", -0.5)
        assert [(top.token, top.bytes, top.logprob) for top in entry.top] == [("e", b"e", -1.5)]
        assert listed.requests[-1].json["n"] == 2
        assert (listed.requests[-1].json["logprobs"], listed.requests[-1].json["top_logprobs"]) == (True, 1)

    async def test_a_tool_call_in_pieces_and_one_of_a_server_that_numbers_none(
        self, listed: ScriptedUpstream, serve: Serve
    ) -> None:
        def call(index: int | None, call_id: str | None, name: str | None, arguments: str) -> bytes:
            function = {"arguments": arguments} | ({} if name is None else {"name": name})
            piece = {"function": function} | ({} if call_id is None else {"id": call_id})
            return chunk(tool_calls=[piece | ({} if index is None else {"index": index})])

        numbered = [call(0, "a", "weather", ""), call(0, None, None, '{"x":'), call(0, None, None, "1}")]
        unnumbered = [call(None, "a", "weather", '{"x":1}'), call(None, "b", "weather", "{}")]
        for pieces, whole in (
            (numbered, [ToolCall("a", "weather", '{"x":1}')]),
            (unnumbered, [ToolCall("a", "weather", '{"x":1}'), ToolCall("b", "weather", "{}")]),
        ):
            upstream_answer = Answer([*pieces, chunk(end="tool_calls"), DONE])
            listed.add(CHAT, upstream_answer, WHOLE)
            service = await serve()
            deltas, _ = await ask(
                service,
                ChatPrompt([{"role": "user", "content": "w"}], [CITY_TOOL]),
                tool_use=ToolUse("named", "weather", is_parallel=False),
            )
            calls: list[ToolCall] = []
            for delta in deltas:
                add_deltas(calls, delta.tool_calls)
            assert calls == whole
            assert deltas[-1].finish_reason == "stop"
            sent = listed.requests[-1].json
            assert sent["tools"] == [CITY_TOOL]
            assert sent["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
            assert sent["parallel_tool_calls"] is False
            listed._answers[CHAT].clear()

    async def test_a_server_that_does_not_stream_answers_at_once(self, listed: ScriptedUpstream, serve: Serve) -> None:
        choice = {"index": 0, "message": {"role": "assistant", "content": "all"}, "finish_reason": "stop"}
        listed.add(CHAT, Answer.of_json({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}))
        deltas, usage = await ask(await serve())
        assert (joined(deltas), usage.num_output_tokens) == ("all", 2)

    async def test_embeddings_in_base64_and_in_numbers(self, listed: ScriptedUpstream, serve: Serve) -> None:
        packed = struct.pack("<2f", 0.5, -1.0)
        service = await serve()
        for vector in (base64.b64encode(packed).decode(), [0.5, -1.0]):
            listed.add(
                "/v1/embeddings",
                Answer.of_json(
                    {
                        "data": [{"index": 1, "embedding": vector}, {"index": 0, "embedding": vector}],
                        "usage": {"prompt_tokens": 9},
                    }
                ),
            )
            embedded = await service.embed(
                EmbedRequest(request_id="e", model="far", inputs=[TextPrompt("a"), TextPrompt("b")], dimensions=2)
            )
            assert list(embedded.vectors) == [packed, packed]
            assert embedded.num_tokens == 9
            listed._answers["/v1/embeddings"].clear()
        assert listed.requests[-1].json == {
            "model": "theirs",
            "input": ["a", "b"],
            "encoding_format": "base64",
            "dimensions": 2,
        }
        await until_settled(service)


class TestFields:
    async def test_only_what_the_caller_said_is_sent(self, listed: ScriptedUpstream, serve: Serve) -> None:
        listed.add(CHAT, WHOLE)
        service = await serve()
        await ask(service, temperature=1.0, given=("temperature",), max_tokens=5, stop=("x",), logit_bias={3: -1.0})
        sent = listed.requests[-1].json
        assert sent["temperature"] == 1.0
        assert sent["max_tokens"] == 5
        assert sent["stop"] == ["x"]
        assert sent["logit_bias"] == {"3": -1.0}
        assert "top_p" not in sent

    async def test_a_schema_goes_as_response_format(self, listed: ScriptedUpstream, serve: Serve) -> None:
        listed.add(CHAT, WHOLE)
        await ask(await serve(), structured_outputs=StructuredOutputsParams(json='{"type": "object"}'))
        told = listed.requests[-1].json["response_format"]
        assert told["json_schema"]["schema"] == {"type": "object"}
        assert told["json_schema"]["strict"] is True

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"top_k": 3}, "top_k"),
            ({"structured_outputs": StructuredOutputsParams(regex="a+")}, "structured_outputs.regex"),
            ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ],
    )
    async def test_what_the_server_does_not_take_is_refused_by_name(
        self, listed: ScriptedUpstream, serve: Serve, fields: dict[str, Any], param: str
    ) -> None:
        service = await serve()
        with pytest.raises(UnsupportedFeature) as caught:
            await service.generate(request(**fields))
        assert caught.value.param == param
        assert all(received.path == "/v1/models" for received in listed.requests)
        await until_settled(service)

    async def test_a_server_of_vllms_dialect_gets_its_fields(self, listed: ScriptedUpstream, serve: Serve) -> None:
        listed.add(CHAT, WHOLE)
        service = await serve(dialect="vllm")
        prompt = ChatPrompt([{"role": "user", "content": "hi"}], template_kwargs={"enable_thinking": False})
        await ask(service, prompt, top_k=3, min_p=0.1, structured_outputs=StructuredOutputsParams(regex="a+"))
        sent = listed.requests[-1].json
        assert (sent["top_k"], sent["min_p"]) == (3, 0.1)
        assert sent["structured_outputs"] == {"regex": "a+"}
        assert sent["chat_template_kwargs"] == {"enable_thinking": False}

    async def test_a_history_goes_as_openai_has_it(self, listed: ScriptedUpstream, serve: Serve) -> None:
        listed.add(CHAT, WHOLE)
        call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": {"x": 1}}}
        history = [
            {"role": "user", "content": "w"},
            {"role": "assistant", "content": "", "tool_calls": [call], "reasoning": "r", "reasoning_content": "r"},
            {"role": "tool", "content": "sun", "tool_call_id": "c", "name": "weather"},
        ]
        await ask(await serve(), ChatPrompt(history, [CITY_TOOL]))
        _, assistant, tool = listed.requests[-1].json["messages"]
        assert assistant["tool_calls"][0]["function"]["arguments"] == '{"x":1}'
        assert "reasoning" not in assistant
        assert tool == {"role": "tool", "content": "sun", "tool_call_id": "c"}


class TestRefusals:
    @pytest.mark.case("err-upstream-12")
    @pytest.mark.parametrize(
        ("answer", "kind", "words"),
        [
            (Answer([b"overloaded"], 503, content_type="text/plain"), UpstreamUnavailable, "overloaded"),
            (
                Answer([b"<html><b>Bad</b> Gateway &amp; co</html>"], 502, content_type="text/html"),
                UpstreamFailed,
                "& co",
            ),
            (Answer.of_json({"error": {"message": "n must be 1", "param": "n"}}, 400), InvalidRequest, "n must be 1"),
            (
                Answer.of_json({"error": {"message": "long", "code": "context_length_exceeded"}}, 400),
                ContextLengthExceeded,
                "long",
            ),
            (Answer.of_json({"detail": [{"msg": "no"}]}, 422), InvalidRequest, "no"),
            (Answer.of_json({"message": "big"}, 413), PayloadTooLarge, "big"),
            (Answer.of_json({"error": "key"}, 401), UpstreamFailed, "api_key_env"),
            (Answer.of_json({"error": "gone"}, 404), UpstreamFailed, "404"),
            (Answer.of_json({"error": "slow"}, 504), UpstreamTimeout, "slow"),
            (Answer([], 500), UpstreamFailed, "Internal Server Error"),
            (Answer([], 302, {"location": "http://evil.example/"}), UpstreamFailed, "evil.example"),
            (Answer(is_reset=True), UpstreamFailed, "not reached"),
        ],
    )
    async def test_each_status_is_an_error_of_its_class_with_the_servers_words(
        self, listed: ScriptedUpstream, serve: Serve, answer: Answer, kind: type[HeadwayError], words: str
    ) -> None:
        listed.add(CHAT, answer)
        service = await serve()
        with pytest.raises(kind) as caught:
            await service.generate(request())
        assert words in caught.value.message
        assert "127.0.0.1" in caught.value.message
        await until_settled(service)
        assert len([received for received in listed.requests if received.path == CHAT]) == 1

    async def test_too_much_asked_passes_on_how_long_to_wait(self, listed: ScriptedUpstream, serve: Serve) -> None:
        listed.add(CHAT, Answer.of_json({"error": "busy"}, 429, retry_after="17"))
        with pytest.raises(UpstreamLimited) as caught:
            await (await serve()).generate(request())
        assert caught.value.retry_after_s == 17.0

    async def test_the_key_goes_along_and_is_in_no_card(
        self, listed: ScriptedUpstream, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAR_KEY", "sesame")
        listed.add(CHAT, WHOLE)
        service = await serve(api_key_env="FAR_KEY")
        await ask(service)
        assert {received.headers["authorization"] for received in listed.requests} == {"Bearer sesame"}
        assert "sesame" not in repr(service.models())

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"api_key_env": "NOT_SET"}, "NOT_SET"),
            ({"api_key": "sesame"}, "api_key_env"),
            ({"url": "ftp://there"}, "http://"),
            ({"url": "http://user:secret@there/v1"}, "api_key_env"),
            ({"connect_timeout_s": 0}, "connect_timeout_s"),
        ],
    )
    async def test_options_that_can_not_be_used_say_which(
        self, serve: Serve, options: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(InvalidConfig) as caught:
            await (await serve(**options)).generate(request())
        assert words in caught.value.message
        assert "secret" not in caught.value.message
        assert "sesame" not in caught.value.message

    async def test_a_load_looks_for_the_model(self, upstream: ScriptedUpstream, serve: Serve) -> None:
        upstream.add_models("one", "two")
        with pytest.raises(UpstreamFailed, match=r"several models.*one, two"):
            await (await serve()).generate(request())
        with pytest.raises(UpstreamFailed, match=r"no model 'three'.*one, two"):
            await (await serve(model="three")).generate(request())

    async def test_a_server_that_is_not_there_is_a_failed_load(self, serve: Serve) -> None:
        service = await serve(source="http://127.0.0.1:9/v1")
        with pytest.raises(UpstreamFailed, match="not reached"):
            await service.generate(request())
        assert service.models()[0].state == "failed"


class TestBrokenStreams:
    @pytest.mark.parametrize(
        ("parts", "kind", "words"),
        [
            ([chunk("a"), "reset"], UpstreamFailed, "broke off"),
            ([chunk("a")], UpstreamFailed, "before it was whole"),
            ([chunk("a"), DONE], UpstreamFailed, "before it was whole"),
            ([chunk("a"), sse({"error": {"message": "boom", "code": 503}})], UpstreamUnavailable, "boom"),
            ([chunk("a"), sse({"error": "boom"})], UpstreamFailed, "boom"),
            ([chunk("a"), sse("{no json")], UpstreamFailed, "no chunk"),
            ([chunk("a"), chunk("b", index=1)], UpstreamFailed, "choice 1"),
            ([chunk("a"), chunk(tool_calls=[{"index": 0, "function": {"arguments": "x"}}])], UpstreamFailed, "name"),
        ],
    )
    async def test_what_came_is_told_and_then_an_error_never_a_silent_end(
        self, listed: ScriptedUpstream, serve: Serve, parts: list[Any], kind: type[HeadwayError], words: str
    ) -> None:
        listed.add(CHAT, Answer(parts))
        service = await serve()
        stream = await service.generate(request())
        texts: list[str] = []
        with pytest.raises(kind, match=words):
            await read_into(texts, stream)
        assert texts == ["a"]
        await until_settled(service)

    async def test_an_end_without_counts_and_without_done_is_an_end(
        self, listed: ScriptedUpstream, serve: Serve
    ) -> None:
        listed.add(CHAT, Answer([chunk("a", end="stop"), "reset"]))
        deltas, usage = await ask(await serve())
        assert (joined(deltas), usage.num_output_tokens) == ("a", 0)

    async def test_silence_before_the_first_token_and_between_tokens(
        self, listed: ScriptedUpstream, serve: Serve
    ) -> None:
        never = asyncio.Event()
        listed.add(CHAT, Answer(before_head=never), Answer([never]), Answer([chunk("a"), never]))
        service = await serve(first_token_timeout_s=0.05, between_tokens_timeout_s=0.04)
        with pytest.raises(UpstreamTimeout, match=r"0\.05 s \(options\.first_token_timeout_s\)"):
            await service.generate(request())
        for name in (r"0\.05 s \(options\.first_token", r"0\.04 s \(options\.between_tokens"):
            with pytest.raises(UpstreamTimeout, match=name):
                await ask(service)
        await until_settled(service)


class TestLeaving:
    async def test_who_leaves_closes_the_connection_and_ends_the_lease(
        self, listed: ScriptedUpstream, serve: Serve
    ) -> None:
        listed.add(CHAT, Answer([chunk("a"), asyncio.Event()]))
        service = await serve()
        async with asyncio.timeout(WAIT_S):
            async with await service.generate(request()) as stream:
                await anext(stream)
            await listed.requests[-1].is_left.wait()
            await until_settled(service)
        assert service.stats()["models"]["far"]["client_aborts_total"] == 1

    async def test_who_leaves_before_the_head_too(self, listed: ScriptedUpstream, serve: Serve) -> None:
        listed.add(CHAT, Answer(before_head=asyncio.Event()))
        service = await serve()
        asking = asyncio.create_task(service.generate(request()))
        async with asyncio.timeout(WAIT_S):
            await until(lambda: any(received.path == CHAT for received in listed.requests))
            asking.cancel()
            await listed.requests[-1].is_left.wait()
            await until_settled(service)

    async def test_a_reader_who_does_not_read_holds_the_other_server_up_and_is_given_up(
        self, listed: ScriptedUpstream, serve: Serve
    ) -> None:
        clock = FakeClock()
        listed.add(CHAT, Answer([chunk("x" * 1000)] * 40_000))
        service = await serve(server=ServerConfig(max_unsent_bytes=10_000, slow_reader_timeout_s=5.0), clock=clock)
        stream = await service.generate(request())
        async with asyncio.timeout(WAIT_S):
            assert isinstance(stream, RemoteStream)
            await until(lambda: stream.is_full)
            assert stream.num_unread_bytes < 20_000
            clock.advance(5.0)
            with pytest.raises(CallerError, match="nothing was read for 5 s"):
                await anext(aiter(stream))
            await listed.requests[-1].is_left.wait()

    async def test_its_own_time_out_ends_a_request_with_what_it_has(
        self, listed: ScriptedUpstream, serve: Serve
    ) -> None:
        clock = FakeClock()
        listed.add(CHAT, Answer([chunk("a"), asyncio.Event()]))
        service = await serve(clock=clock)
        async with asyncio.timeout(WAIT_S), await service.generate(request(timeout_s=3.0)) as stream:
            first = await anext(aiter(stream))
            clock.advance(3.0)
            last = await anext(aiter(stream))
        assert (first.text, last.text, last.finish_reason, last.stop_reason) == ("a", "", "abort", "timeout")

    async def test_its_own_time_out_is_over_before_there_is_an_answer(
        self, listed: ScriptedUpstream, serve: Serve
    ) -> None:
        listed.add(CHAT, Answer(before_head=asyncio.Event()))
        service = await serve(infer=InferConfig(concurrency=1))
        await service.load("far")
        told = await asyncio.gather(
            *(service.generate(request(timeout_s=0.05)) for _ in range(2)), return_exceptions=True
        )
        assert [type(error) for error in told] == [DeadlineExceeded] * 2
        assert service.stats()["models"]["far"]["upstream_failures_total"] == 0
        await until_settled(service)

    async def test_a_shut_down_is_told(self, listed: ScriptedUpstream, serve: Serve) -> None:
        listed.add(CHAT, Answer([chunk("a"), asyncio.Event()]))
        service = await serve()
        stream = await service.generate(request())
        await service.drain(0.0)
        with pytest.raises(ShuttingDown):
            await read_into([], stream)


def test_waits_grow_to_a_limit_and_are_never_shorter_than_what_is_asked_for() -> None:
    assert [retry_delay_s(n, 1.0) for n in (1, 2, 3, 5, 6, 50)] == [0.2, 0.4, 0.8, 3.2, 5.0, 5.0]
    assert retry_delay_s(3, 0.0) == 0.0
    assert retry_delay_s(1, 1.0, 3.0) == 3.0
    assert retry_delay_s(1, 1.0, 5.5) is None


class TestTrying:
    async def test_what_was_not_answered_is_asked_again_so_often(
        self, listed: ScriptedUpstream, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headway.service.remote.upstream.random.random", lambda: 0.0)
        listed.add(CHAT, Answer(is_reset=True), Answer([], 503), WHOLE)
        service = await serve(infer=InferConfig(max_retries=2))
        deltas, _ = await ask(service)
        assert joined(deltas) == "Hello"
        assert service.stats()["models"]["far"]["upstream_retries_total"] == 2

    async def test_a_fault_of_the_callers_is_not(self, listed: ScriptedUpstream, serve: Serve) -> None:
        listed.add(CHAT, Answer.of_json({"error": "bad"}, 400), WHOLE)
        with pytest.raises(InvalidRequest):
            await (await serve(infer=InferConfig(max_retries=3))).generate(request())

    async def test_a_server_that_wants_a_longer_wait_is_not(self, listed: ScriptedUpstream, serve: Serve) -> None:
        listed.add(CHAT, Answer.of_json({"error": "later"}, 503, retry_after="60"), WHOLE)
        with pytest.raises(UpstreamUnavailable) as caught:
            await (await serve(infer=InferConfig(max_retries=3))).generate(request())
        assert caught.value.retry_after_s == 60.0

    async def test_a_server_that_fails_is_left_alone_and_asked_again_later(
        self, listed: ScriptedUpstream, serve: Serve
    ) -> None:
        clock = FakeClock()
        listed.add(CHAT, Answer([], 502), Answer([], 504), WHOLE)
        service = await serve(clock=clock, breaker_failures=2, breaker_open_s=10.0)
        for kind in (UpstreamFailed, UpstreamTimeout):
            with pytest.raises(kind):
                await service.generate(request())
        num_asked = len(listed.requests)
        with pytest.raises(UpstreamUnavailable) as caught:
            await service.generate(request())
        assert (caught.value.retry_after_s, len(listed.requests)) == (10.0, num_asked)
        assert service.stats()["models"]["far"]["upstream_state"] == 2.0
        clock.advance(10.0)
        assert joined((await ask(service))[0]) == "Hello"
        assert service.stats()["models"]["far"]["upstream_state"] == 0.0

    async def test_so_many_at_once_and_the_others_wait(self, listed: ScriptedUpstream, serve: Serve) -> None:
        gate = asyncio.Event()
        listed.add(CHAT, Answer([chunk("a"), gate, chunk(end="stop"), DONE]))
        service = await serve(infer=InferConfig(concurrency=1))
        first = await service.generate(request())
        second = asyncio.create_task(ask(service))
        await anext(aiter(first))
        assert len([received for received in listed.requests if received.path == CHAT]) == 1
        gate.set()
        await read_into([], first)
        assert joined((await second)[0]) == "a"


def test_a_key_in_clear_does_not_get_into_the_catalog() -> None:
    entry = {"id": "far", "framework": "openai", "source": "https://there/v1", "options": {"api_key": "sesame"}}
    with pytest.raises(InvalidRequest, match="api_key_env") as caught:
        read_entries(json.dumps({"models": [entry]}).encode(), place="here")
    assert "sesame" not in caught.value.message
