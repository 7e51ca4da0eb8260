"""LangChain: its model for this API, and agents."""
import asyncio

import langchain_core.exceptions
import openai
from checking import REFUSE, TOO_LONG, check, expect, expect_raises, heard, main, play, real
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from shapes import (ANSWER, CALL, QUESTION, WEATHER_TEXT, Weather, call, expect_constraint, expect_loop, get_weather,
                    is_weather)

TOOL = tool(get_weather)


def model(at, **options):
    return ChatOpenAI(base_url=at.url, api_key=at.key, model=at.model, **{"max_retries": 0, **options})


@check("langchain-openai", "invoke, with usage_metadata", model="real")
def _(at):
    answer = model(at, max_tokens=8, temperature=0).invoke(QUESTION)
    expect(answer.content and answer.usage_metadata["output_tokens"] > 0)


@check("langchain-openai", "astream, with usage", model="real")
def _(at):
    async def ask():
        return [chunk async for chunk in model(at, max_tokens=8, stream_usage=True).astream(QUESTION)]
    chunks = asyncio.run(ask())
    expect("".join(chunk.content for chunk in chunks))
    expect(any(chunk.usage_metadata for chunk in chunks))


@check("langchain-openai", "bind_tools(strict=True, tool_choice='any', parallel_tool_calls=False)")
def _(at):
    play(CALL)
    bound = model(at).bind_tools([TOOL], strict=True, tool_choice="any", parallel_tool_calls=False)
    expect([asked["args"] for asked in bound.invoke(QUESTION).tool_calls] == [{"place": "Rome"}])
    expect_constraint()


@check("langchain-openai", "with_structured_output, its default method", model="real")
def _(at):
    is_weather(model(at).with_structured_output(Weather).invoke(QUESTION))


@check("langchain-openai", "with_structured_output by function_calling and json_mode")
def _(at):
    play(call("Weather", place="Rome", sunny=True, wind="weak"), WEATHER_TEXT)
    for method in ("function_calling", "json_mode"):
        is_weather(model(at).with_structured_output(Weather, method=method).invoke(QUESTION + " Answer in JSON."))


@check("langchain-openai", "reasoning_effort, verbosity, service_tier; use_responses_api, streamed")
def _(at):
    play(ANSWER, ANSWER, ANSWER)
    expect(model(at, reasoning_effort="low", verbosity="low", service_tier="auto").invoke(QUESTION).content == ANSWER)
    spoken = model(at, use_responses_api=True)
    expect(spoken.invoke(QUESTION).text == ANSWER)
    expect("".join(chunk.text for chunk in spoken.stream(QUESTION)) == ANSWER)


@check("langchain-openai", "errors: ContextOverflowError, RateLimitError")
def _(at):
    expect_raises(langchain_core.exceptions.ContextOverflowError, lambda: model(real()).invoke(TOO_LONG))
    play(REFUSE)
    expect_raises(openai.RateLimitError, lambda: model(at).invoke(QUESTION))


@check("langchain-openai", "OpenAIEmbeddings", fails="another kind of server")
def _(at):
    OpenAIEmbeddings(base_url=at.url, api_key=at.key, model=at.model, max_retries=0,
                     check_embedding_ctx_length=False).embed_query("a")


@check("langchain", "create_agent: a tool in a loop, streamed")
def _(at):
    play(CALL, ANSWER)
    agent = create_agent(model(at), tools=[TOOL], system_prompt="Be brief.")
    steps = list(agent.stream({"messages": [("user", QUESTION)]}, stream_mode="values"))
    expect(steps[-1]["messages"][-1].content == ANSWER)
    expect_loop()


@check("langchain", "create_agent(response_format) by the provider", model="scripted")
def _(at):
    play(CALL, WEATHER_TEXT)
    agent = create_agent(model(at), tools=[TOOL], response_format=ProviderStrategy(Weather))
    is_weather(agent.invoke({"messages": [("user", QUESTION)]})["structured_response"])
    expect_loop()


@check("langchain", "create_agent(response_format) by a tool, as it comes")
def _(at):
    play(CALL, call("Weather", place="Rome", sunny=True, wind="weak"))
    agent = create_agent(model(at), tools=[TOOL], response_format=ToolStrategy(Weather))
    is_weather(agent.invoke({"messages": [("user", QUESTION)]})["structured_response"])
    expect_loop()


@check("langchain", "create_agent over langchain-anthropic: a tool in a loop")
def _(at):
    from langchain_anthropic import ChatAnthropic
    play(CALL, ANSWER)
    spoken = ChatAnthropic(base_url=at.root, api_key=at.key, model=at.model, max_tokens=1000, max_retries=0)
    answer = create_agent(spoken, tools=[TOOL]).invoke({"messages": [("user", QUESTION)]})
    expect(answer["messages"][-1].text == ANSWER)
    expect_loop()


@check("langchain", "two calls at once, of both the results come back")
def _(at):
    play(CALL + "\n" + call("get_weather", place="Oslo"), ANSWER)
    answer = create_agent(model(at), tools=[TOOL]).invoke({"messages": [("user", QUESTION)]})
    expect(answer["messages"][-1].content == ANSWER)
    expect(heard()[-1]["prompt"].count("<|im_start|>tool\n") == 2)


main()
