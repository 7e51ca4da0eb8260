"""AutoGen: its client of this API, and agents."""
import asyncio

import openai
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from checking import REFUSE, check, expect, expect_raises, main, play
from shapes import (ANSWER, CALL, QUESTION, WEATHER_TEXT, Weather, expect_constraint, expect_loop, get_weather, is_weather)

PACKAGE = "autogen-ext"
INFO = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True, "family": "unknown",
        "multiple_system_messages": True}
ASKED = [UserMessage(content=QUESTION, source="user")]


def client(at, **options):
    return OpenAIChatCompletionClient(model=at.model, base_url=at.url, api_key=at.key, model_info=INFO, max_retries=0,
                                      **options)


def run(agent):
    return asyncio.run(agent.run(task=QUESTION)).messages[-1]


@check(PACKAGE, "create, with usage", model="real")
def _(at):
    answer = asyncio.run(client(at, max_tokens=8).create(ASKED))
    expect(answer.content and answer.usage.completion_tokens > 0)


@check(PACKAGE, "create_stream, with usage", model="real")
def _(at):
    async def ask():
        return [piece async for piece in client(at, max_tokens=8, include_name_in_message=False).create_stream(
            ASKED, include_usage=True)]
    *pieces, result = asyncio.run(ask())
    expect("".join(pieces) == result.content and result.usage.completion_tokens > 0)


@check(PACKAGE, "AssistantAgent: a tool in a loop")
def _(at):
    play(CALL, ANSWER)
    agent = AssistantAgent("weatherman", client(at), tools=[get_weather], reflect_on_tool_use=True)
    expect(run(agent).content == ANSWER)
    expect_loop()


@check(PACKAGE, "AssistantAgent, streamed, parallel_tool_calls=False")
def _(at):
    play(CALL, ANSWER)
    agent = AssistantAgent("weatherman", client(at, parallel_tool_calls=False), tools=[get_weather],
                           reflect_on_tool_use=True, model_client_stream=True)
    expect(run(agent).content == ANSWER)
    expect_loop()


@check(PACKAGE, "output_content_type, with strict tools", model="scripted")
def _(at):
    play(WEATHER_TEXT)
    is_weather(run(AssistantAgent("weatherman", client(at), output_content_type=Weather)).content)
    expect_constraint()


@check(PACKAGE, "json_output=a pydantic model", model="real")
def _(at):
    is_weather(asyncio.run(client(at).create(ASKED, json_output=Weather)).content)


@check(PACKAGE, "RateLimitError")
def _(at):
    play(REFUSE)
    expect_raises(openai.RateLimitError, lambda: asyncio.run(client(at).create(ASKED)))


main()
