"""Pydantic AI: agents over chat completions, responses and messages."""
import asyncio

from checking import REFUSE, TOO_LONG, check, expect, expect_raises, main, play, real
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from shapes import (ANSWER, CALL, QUESTION, WEATHER_TEXT, Weather, call, expect_loop, get_weather, is_weather)

PACKAGE = "pydantic-ai-slim"


def model(at, kind=OpenAIChatModel):
    return kind(at.model, provider=OpenAIProvider(base_url=at.url, api_key=at.key))


@check(PACKAGE, "run_sync, with usage", model="real")
def _(at):
    result = Agent(model(at), instructions="Be brief.", model_settings={"max_tokens": 8}).run_sync(QUESTION)
    expect(result.output)


@check(PACKAGE, "a tool in a loop; run_stream")
def _(at):
    play(CALL, ANSWER, CALL, ANSWER)
    agent = Agent(model(at), tools=[get_weather])
    expect(agent.run_sync(QUESTION).output == ANSWER)
    expect_loop()

    async def ask():
        async with agent.run_stream(QUESTION) as result:
            return [piece async for piece in result.stream_text(delta=True)]
    expect("".join(asyncio.run(ask())) == ANSWER)


@check(PACKAGE, "output_type by a tool, its default, with a tool before")
def _(at):
    play(CALL, call("final_result", place="Rome", sunny=True, wind="weak"))
    is_weather(Agent(model(at), tools=[get_weather], output_type=Weather).run_sync(QUESTION).output)
    expect_loop()


@check(PACKAGE, "NativeOutput", model="real")
def _(at):
    is_weather(Agent(model(at), output_type=NativeOutput(Weather)).run_sync(QUESTION).output)


@check(PACKAGE, "PromptedOutput")
def _(at):
    play(WEATHER_TEXT)
    is_weather(Agent(model(at), output_type=PromptedOutput(Weather)).run_sync(QUESTION).output)


@check(PACKAGE, "OpenAIResponsesModel: a tool in a loop")
def _(at):
    play(CALL, ANSWER)
    expect(Agent(model(at, OpenAIResponsesModel), tools=[get_weather]).run_sync(QUESTION).output == ANSWER)
    expect_loop()


@check(PACKAGE, "AnthropicModel: a tool in a loop")
def _(at):
    play(CALL, ANSWER)
    spoken = AnthropicModel(at.model, provider=AnthropicProvider(base_url=at.root, api_key=at.key))
    expect(Agent(spoken, tools=[get_weather]).run_sync(QUESTION).output == ANSWER)
    expect_loop()


@check(PACKAGE, "ModelHTTPError: overflow (400) and load (429)")
def _(at):
    error = expect_raises(ModelHTTPError, lambda: Agent(model(real())).run_sync(TOO_LONG))
    expect(error.status_code == 400 and error.body["code"] == "context_length_exceeded", error)
    play(REFUSE, REFUSE, REFUSE)
    expect(expect_raises(ModelHTTPError, lambda: Agent(model(at)).run_sync(QUESTION)).status_code == 429)


main()
