from pathlib import Path

import pytest

import headway_wire as wire
from headway.cli.answers import Ask
from headway.cli.local import LocalAnswerer
from headway.cli.main import run
from headway.errors import InvalidRequest, OutOfMemory
from headway.testing.script import Reply, Script, say
from headway.testing.scripted_service import ScriptedService
from headway.testing.tiny_model import write_tiny_model


async def whole(answerer: LocalAnswerer, ask: Ask) -> str:
    return "".join([f"({text})" if is_reasoning else text async for text, is_reasoning in answerer.answer(ask)])


async def test_a_model_of_our_own_answers_messages_and_prompts_until_it_is_closed() -> None:
    service = ScriptedService(Script(reply=say("Hé!"), replies={"Once": say(" upon a time")}))
    answerer = await LocalAnswerer.start(service)
    assert answerer.title == "scripted"
    assert await whole(answerer, Ask(messages=({"role": "user", "content": "hi"},))) == "Hé!"
    assert await whole(answerer, Ask(prompt="Once", options={"stop": [" a"], "max_tokens": 50})) == " upon"
    with pytest.raises(InvalidRequest, match="top_p"):
        await whole(answerer, Ask(prompt="x", options={"top_p": 7.0}))
    await service.until_idle()
    await answerer.aclose()
    assert not service.is_ready()[0]


async def test_reasoning_is_told_apart() -> None:
    service = ScriptedService(Script(reply=say("<think>\nwhy</think>\n\nso"), reasoning_parser="qwen3"))
    answerer = await LocalAnswerer.start(service)
    assert await whole(answerer, Ask(messages=({"role": "user", "content": "hi"},))) == "(w)(h)(y)so"
    await answerer.aclose()


async def test_closing_an_answer_aborts_it() -> None:
    service = ScriptedService(Script(reply=Reply(tokens=[b"a"], is_endless=True, gates={1: "never"})))
    answerer = await LocalAnswerer.start(service)
    answer = answerer.answer(Ask(prompt="x"))
    assert await anext(answer) == ("a", False)
    await answer.aclose()
    await service.until_idle()
    assert len(service.predictor().aborts) == 1
    await answerer.aclose()


async def test_a_model_that_can_not_be_loaded_is_told_with_its_reason_and_leaves_nothing_behind() -> None:
    error = wire.Error(kind="OutOfMemory", message="4 GiB are needed, 1 GiB is there")
    service = ScriptedService(Script(load_error=error))
    with pytest.raises(OutOfMemory, match="scripted could not be loaded: 4 GiB are needed"):
        await LocalAnswerer.start(service)
    assert service.stats()["pool"]["pool"]["leases"] == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--chat-template", "{% if %}"], "the chat template does not parse"),
        (["--chat-template", "/no/such.jinja"], "/no/such.jinja"),
        (["--generation-config", "/no/such/folder"], "generation_config is '/no/such/folder'"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "generate"])
def test_wrong_text_settings_are_told_before_anything_is_started(
    command: str, flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(write_tiny_model(tmp_path / "tiny"))
    args = ["serve", folder, "--port", "0"] if command == "serve" else ["generate", "x", "--model", folder]
    assert run([*args, *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("headway: ") == 1
