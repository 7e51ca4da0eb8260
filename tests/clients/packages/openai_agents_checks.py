"""The OpenAI Agents SDK: over responses, its default, and over chat completions."""
import asyncio

import openai
from agents import (Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool,
                    set_tracing_disabled)
from checking import REFUSE, check, expect, expect_raises, heard, main, play
from openai.types.shared import Reasoning
from shapes import ANSWER, CALL, QUESTION, WEATHER_TEXT, Weather, call, expect_constraint, expect_loop, get_weather, is_weather

PACKAGE = "openai-agents"
TOOL = function_tool(get_weather)
set_tracing_disabled(True)


def agent(at, kind=OpenAIChatCompletionsModel, **options):
    client = openai.AsyncOpenAI(base_url=at.url, api_key=at.key, max_retries=0)
    return Agent(name="Weatherman", instructions="Be brief.", model=kind(model=at.model, openai_client=client), **options)


def streamed(one):
    async def ask():
        result = Runner.run_streamed(one, QUESTION)
        async for _ in result.stream_events():
            pass
        return result.final_output
    return asyncio.run(ask())


@check(PACKAGE, "chat completions, no tools", model="real")
def _(at):
    result = Runner.run_sync(agent(at, model_settings=ModelSettings(max_tokens=8)), QUESTION)
    expect(result.final_output and result.context_wrapper.usage.output_tokens > 0)


@check(PACKAGE, "chat completions: a strict tool in a loop, streamed too")
def _(at):
    play(CALL, ANSWER, CALL, ANSWER)
    expect(Runner.run_sync(agent(at, tools=[TOOL]), QUESTION).final_output == ANSWER)
    expect_constraint()
    expect(streamed(agent(at, tools=[TOOL])) == ANSWER)
    expect_loop()


@check(PACKAGE, "chat completions: output_type", model="real")
def _(at):
    is_weather(Runner.run_sync(agent(at, output_type=Weather), QUESTION).final_output)


@check(PACKAGE, "responses: a strict tool in a loop, streamed too")
def _(at):
    play(CALL, ANSWER, CALL, ANSWER)
    expect(Runner.run_sync(agent(at, OpenAIResponsesModel, tools=[TOOL]), QUESTION).final_output == ANSWER)
    expect(streamed(agent(at, OpenAIResponsesModel, tools=[TOOL])) == ANSWER)
    expect_loop()


@check(PACKAGE, "responses: output_type with a tool before")
def _(at):
    play(CALL, WEATHER_TEXT)
    is_weather(Runner.run_sync(agent(at, OpenAIResponsesModel, tools=[TOOL], output_type=Weather), QUESTION).final_output)
    expect_loop()


@check(PACKAGE, "a handoff to another agent")
def _(at):
    play(call("transfer_to_weatherman"), CALL, ANSWER)
    first = agent(at, handoffs=[agent(at, tools=[TOOL])])
    expect(Runner.run_sync(first, QUESTION).final_output == ANSWER)
    expect(len(heard()) == 3)


@check(PACKAGE, "reasoning, verbosity, store, tool_choice, parallel_tool_calls; RateLimitError")
def _(at):
    play(CALL, ANSWER)
    settings = ModelSettings(reasoning=Reasoning(effort="low"), verbosity="low", store=False, tool_choice="required",
                             parallel_tool_calls=False, metadata={"a": "b"})
    expect(Runner.run_sync(agent(at, tools=[TOOL], model_settings=settings), QUESTION).final_output == ANSWER)
    play(REFUSE)
    expect_raises(openai.RateLimitError, lambda: Runner.run_sync(agent(at), QUESTION))


main()
