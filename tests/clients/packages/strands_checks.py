"""Strands Agents: its models for chat completions, responses and messages."""
import asyncio

from checking import REFUSE, TOO_LONG, check, expect, expect_raises, main, play, real
from shapes import ANSWER, CALL, QUESTION, Weather, call, expect_loop, get_weather, is_weather
from strands import Agent, tool
from strands.models.litellm import LiteLLMModel
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel
from strands.types.exceptions import ContextWindowOverflowException, ModelThrottledException

PACKAGE = "strands-agents"
TOOL = tool(get_weather)


def model(at, kind=OpenAIModel, **params):
    return kind(client_args={"base_url": at.url, "api_key": at.key, "max_retries": 0}, model_id=at.model, params=params)


def agent(spoken, **options):
    return Agent(model=spoken, callback_handler=None, **options)


@check(PACKAGE, "an agent without tools", model="real")
def _(at):
    result = agent(model(at, max_tokens=200), system_prompt="Be brief.")(QUESTION)
    expect(str(result) and result.metrics.accumulated_usage["outputTokens"] > 0)


@check(PACKAGE, "a tool in a loop, events by asyncio")
def _(at):
    play(CALL, ANSWER)

    async def ask():
        return [event async for event in agent(model(at), tools=[TOOL]).stream_async(QUESTION)]
    text = "".join(event["data"] for event in asyncio.run(ask()) if "data" in event)
    expect(text.endswith(ANSWER), text)
    expect_loop()


@check(PACKAGE, "structured_output_model, by a tool")
def _(at):
    play(call("Weather", place="Rome", sunny=True, wind="weak"), "Done.")
    is_weather(agent(model(at))(QUESTION, structured_output_model=Weather).structured_output)


@check(PACKAGE, "OpenAIModel.structured_output, by response_format", model="real")
def _(at):
    async def ask():
        return [event async for event in model(at).structured_output(
            Weather, [{"role": "user", "content": [{"text": QUESTION}]}])]
    is_weather(asyncio.run(ask())[-1]["output"])


@check(PACKAGE, "OpenAIResponsesModel: a tool in a loop")
def _(at):
    play(CALL, ANSWER)
    expect(str(agent(model(at, OpenAIResponsesModel), tools=[TOOL])(QUESTION)).strip() == ANSWER)
    expect_loop()


@check(PACKAGE, "LiteLLMModel: a tool in a loop")
def _(at):
    play(CALL, ANSWER)
    spoken = LiteLLMModel(client_args={"api_base": at.url, "api_key": at.key}, model_id=f"openai/{at.model}")
    expect(str(agent(spoken, tools=[TOOL])(QUESTION)).strip() == ANSWER)
    expect_loop()


@check(PACKAGE, "ContextWindowOverflowException, ModelThrottledException")
def _(at):
    expect_raises(ContextWindowOverflowException, lambda: agent(model(real()), conversation_manager=None)(TOO_LONG))
    play(*[REFUSE] * 8)

    async def ask():
        async for _ in model(at).stream([{"role": "user", "content": [{"text": QUESTION}]}]):
            pass
    expect_raises(ModelThrottledException, lambda: asyncio.run(ask()))


main()
