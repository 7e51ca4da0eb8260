"""The anthropic package: the Messages API."""
import asyncio

import anthropic
from checking import REFUSE, TOO_LONG, check, expect, expect_raises, heard, main, play, real
from shapes import ANSWER, CALL, QUESTION, RESULT, WEATHER_TOOL, Weather, expect_loop, is_weather

ASKED = [{"role": "user", "content": QUESTION}]
TOOL = {"name": "get_weather", "description": "The weather of a place.", "input_schema": WEATHER_TOOL}


def client(at, **options):
    return anthropic.Anthropic(base_url=at.root, api_key=at.key, **{"max_retries": 0, **options})


@check("anthropic", "messages.create with a system of blocks, marked for the cache")
def _(at):
    play(ANSWER)
    answer = client(at).messages.create(model=at.model, max_tokens=100, messages=ASKED, system=[
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}], metadata={"user_id": "u"})
    expect(answer.content[0].text == ANSWER and answer.stop_reason == "end_turn" and answer.usage.output_tokens > 0)
    expect("Be brief." in heard()[0]["prompt"])


@check("anthropic", "messages.stream, asyncio", model="real")
def _(at):
    async def ask():
        async with anthropic.AsyncAnthropic(base_url=at.root, api_key=at.key) as many:
            async with many.messages.stream(model=at.model, max_tokens=8, messages=ASKED) as stream:
                pieces = [piece async for piece in stream.text_stream]
                return pieces, await stream.get_final_message()
    pieces, message = asyncio.run(ask())
    expect("".join(pieces) == message.content[0].text and message.usage.input_tokens > 0)


@check("anthropic", "tool_use and tool_result, streamed")
def _(at):
    play(CALL, ANSWER)
    options = {"model": at.model, "max_tokens": 1000, "tools": [TOOL]}
    with client(at).messages.stream(messages=ASKED, **options) as stream:
        message = stream.get_final_message()
    asked = next(block for block in message.content if block.type == "tool_use")
    expect(message.stop_reason == "tool_use" and asked.input == {"place": "Rome"}, message)
    second = client(at).messages.create(messages=[
        *ASKED, {"role": "assistant", "content": message.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": asked.id, "content": RESULT}]}], **options)
    expect(second.content[0].text == ANSWER)
    expect_loop()


@check("anthropic", "tool_runner, the package's own loop")
def _(at):
    @anthropic.beta_tool
    def get_weather(place: str) -> str:
        """Says what the weather of a place is.

        Args:
            place: The name of a town.
        """
        return RESULT
    play(CALL, ANSWER)
    runner = client(at).beta.messages.tool_runner(model=at.model, max_tokens=1000, messages=ASKED, tools=[get_weather])
    expect(runner.until_done().content[0].text == ANSWER)
    expect_loop()


@check("anthropic", "tool_choice of a tool, thinking, top_k")
def _(at):
    play(CALL, "<think>\nRome.\n</think>\n\n" + ANSWER)
    answer = client(at).messages.create(model=at.model, max_tokens=2000, messages=ASKED, tools=[TOOL],
                                        tool_choice={"type": "tool", "name": "get_weather"}, extra_body={"top_k": 5})
    expect(answer.content[-1].type == "tool_use" and answer.content[-1].input == {"place": "Rome"})
    answer = client(at).messages.create(model=at.model, max_tokens=2000, messages=ASKED,
                                        thinking={"type": "enabled", "budget_tokens": 1024})
    expect([block.type for block in answer.content] == ["thinking", "text"], answer.content)


@check("anthropic", "count_tokens; models.list")
def _(at):
    expect(client(at).messages.count_tokens(model=at.model, messages=ASKED).input_tokens > 0)
    expect(client(at).models.list().data[0].id == at.model)


@check("anthropic", "messages.parse with a pydantic model", model="real")
def _(at):
    answer = client(at).messages.parse(model=at.model, max_tokens=100, messages=ASKED, output_format=Weather)
    is_weather(answer.parsed_output)


@check("anthropic", "errors: prompt too long; RateLimitError; a wrong key")
def _(at):
    error = expect_raises(anthropic.BadRequestError, lambda: client(real()).messages.create(
        model=real().model, max_tokens=10, messages=[{"role": "user", "content": TOO_LONG}]))
    expect(error.body["type"] == "error" and error.body["error"]["type"] == "invalid_request_error", error.body)
    expect(any(words in error.body["error"]["message"] for words in ("too long", "maximum context length")), error.body)
    play(REFUSE)
    expect_raises(anthropic.RateLimitError, lambda: client(at).messages.create(
        model=at.model, max_tokens=10, messages=ASKED))
    expect_raises(anthropic.AuthenticationError, lambda: anthropic.Anthropic(
        base_url=at.root, api_key="wrong").messages.create(model=at.model, max_tokens=10, messages=ASKED))


main()
