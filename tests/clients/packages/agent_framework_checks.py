"""Agent Framework: OpenAIChatClient (responses) and OpenAIChatCompletionClient."""
import asyncio

from agent_framework import Agent
from agent_framework.exceptions import ChatClientException
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from checking import REFUSE, check, expect, expect_raises, main, play
from shapes import ANSWER, CALL, QUESTION, Weather, expect_loop, get_weather, is_weather

PACKAGE = "agent-framework-core"


def agent(at, kind=OpenAIChatCompletionClient, **options):
    client = kind(model=at.model, base_url=at.url, api_key=at.key)
    return Agent(client, "Be brief.", name="Weatherman", **options)


def run(one, **options):
    return asyncio.run(one.run(QUESTION, **options))


def streamed(one):
    async def ask():
        stream = one.run(QUESTION, stream=True)
        expect([update async for update in stream])
        return (await stream.get_final_response()).text
    return asyncio.run(ask())


@check(PACKAGE, "chat completions, no tools", model="real")
def _(at):
    result = run(agent(at), options={"max_tokens": 8})
    expect(result.text and result.usage_details)


@check(PACKAGE, "chat completions: a tool in a loop, streamed too")
def _(at):
    play(CALL, ANSWER, CALL, ANSWER)
    expect(run(agent(at, tools=[get_weather])).text == ANSWER)
    expect_loop()
    expect(streamed(agent(at, tools=[get_weather])) == ANSWER)


@check(PACKAGE, "chat completions: response_format of a pydantic model", model="real")
def _(at):
    is_weather(run(agent(at), options={"response_format": Weather}).value)


@check(PACKAGE, "responses: a tool in a loop, streamed too")
def _(at):
    play(CALL, ANSWER, CALL, ANSWER)
    one = {"kind": OpenAIChatClient, "tools": [get_weather], "default_options": {"store": False}}
    expect(run(agent(at, **one)).text == ANSWER)
    text = streamed(agent(at, **one))
    expect(text == ANSWER, text)
    expect_loop()


@check(PACKAGE, "responses: response_format of a pydantic model", model="real")
def _(at):
    is_weather(run(agent(at, OpenAIChatClient), options={"response_format": Weather, "store": False}).value)


@check(PACKAGE, "reasoning_effort, user, tool_choice, one call at a time; load reaches the caller")
def _(at):
    play(CALL, ANSWER)
    options = {"reasoning_effort": "low", "user": "u", "tool_choice": "required", "allow_multiple_tool_calls": False}
    expect(run(agent(at, tools=[get_weather]), options=options).text == ANSWER)
    play(*[REFUSE] * 4)
    expect("429" in str(expect_raises(ChatClientException, lambda: run(agent(at)))))


main()
