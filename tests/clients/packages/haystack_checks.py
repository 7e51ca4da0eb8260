"""Haystack: its generators and its agent."""
import asyncio

import openai
from checking import REFUSE, check, expect, expect_raises, main, play
from haystack.components.agents import Agent
from haystack.components.embedders import OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from shapes import ANSWER, CALL, QUESTION, Weather, expect_constraint, expect_loop, get_weather, is_weather

PACKAGE = "haystack-ai"
ASKED = [ChatMessage.from_user(QUESTION)]
TOOL = create_tool_from_function(get_weather)


def generator(at, kind=OpenAIChatGenerator, **options):
    return kind(api_key=Secret.from_token(at.key), api_base_url=at.url, model=at.model, max_retries=0, **options)


@check(PACKAGE, "OpenAIChatGenerator, with usage", model="real")
def _(at):
    answer = generator(at, generation_kwargs={"max_tokens": 8}).run(ASKED)["replies"][0]
    expect(answer.text and answer.meta["usage"]["completion_tokens"] > 0)


@check(PACKAGE, "run_async, streamed", model="real")
def _(at):
    pieces = []

    async def callback(chunk):
        pieces.append(chunk.content)
    asyncio.run(generator(at, generation_kwargs={"max_tokens": 8}).run_async(ASKED, streaming_callback=callback))
    expect("".join(pieces))


@check(PACKAGE, "Agent: a strict tool in a loop (tools_strict)")
def _(at):
    play(CALL, ANSWER)
    agent = Agent(chat_generator=generator(at, tools_strict=True), tools=[TOOL], system_prompt="Be brief.")
    expect(agent.run(ASKED)["messages"][-1].text == ANSWER)
    expect_constraint()
    expect_loop()


@check(PACKAGE, "Agent, streamed")
def _(at):
    play(CALL, ANSWER)
    pieces = []
    agent = Agent(chat_generator=generator(at), tools=[TOOL], streaming_callback=lambda chunk: pieces.append(chunk.content))
    agent.run(ASKED)
    expect("".join(pieces).endswith(ANSWER), pieces)
    expect_loop()


@check(PACKAGE, "response_format of a pydantic model", model="real")
def _(at):
    is_weather(generator(at, generation_kwargs={"response_format": Weather}).run(ASKED)["replies"][0].text)


@check(PACKAGE, "OpenAIResponsesChatGenerator in an agent; RateLimitError")
def _(at):
    play(CALL, ANSWER)
    agent = Agent(chat_generator=generator(at, OpenAIResponsesChatGenerator), tools=[TOOL])
    expect(agent.run(ASKED)["messages"][-1].text == ANSWER)
    expect_loop()
    play(REFUSE)
    expect_raises(openai.RateLimitError, lambda: generator(at).run(ASKED))


@check(PACKAGE, "OpenAITextEmbedder", fails="another kind of server")
def _(at):
    OpenAITextEmbedder(api_key=Secret.from_token(at.key), api_base_url=at.url, model=at.model, max_retries=0).run("a")


main()
