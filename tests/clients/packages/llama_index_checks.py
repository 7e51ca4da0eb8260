"""LlamaIndex: OpenAILike, as its documents say for servers that are not OpenAI's, and agents."""
import asyncio

import openai
from checking import REFUSE, check, expect, expect_raises, heard, main, play
from llama_index.core.agent.workflow import FunctionAgent, ReActAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from shapes import ANSWER, CALL, QUESTION, Weather, call, expect_loop, get_weather, is_weather

ASKED = [ChatMessage(role="user", content=QUESTION)]


def model(at, **options):
    return OpenAILike(model=at.model, api_base=at.url, api_key=at.key, is_chat_model=True, is_function_calling_model=True,
                      **{"max_retries": 0, "context_window": 16384, **options})


@check("llama-index-core", "chat and complete", model="real")
def _(at):
    expect(model(at, max_tokens=8).chat(ASKED).message.content)
    expect(model(at, max_tokens=8).complete(QUESTION).text)


@check("llama-index-core", "astream_chat", model="real")
def _(at):
    async def ask():
        return [chunk.delta async for chunk in await model(at, max_tokens=8).astream_chat(ASKED)]
    expect("".join(asyncio.run(ask())))


@check("llama-index-core", "FunctionAgent: a tool in a loop (streamed)")
def _(at):
    play(CALL, ANSWER)

    async def ask():
        return await FunctionAgent(tools=[get_weather], llm=model(at), system_prompt="Be brief.").run(QUESTION)
    expect(str(asyncio.run(ask())) == ANSWER)
    expect_loop()


@check("llama-index-core", "ReActAgent: a tool in a loop of text")
def _(at):
    play('Thought: I need a tool.\nAction: get_weather\nAction Input: {"place": "Rome"}',
         f"Thought: I can answer.\nAnswer: {ANSWER}")

    async def ask():
        return await ReActAgent(tools=[get_weather], llm=model(at)).run(QUESTION)
    expect(str(asyncio.run(ask())) == ANSWER)
    expect("sunny" in heard()[-1]["prompt"])


@check("llama-index-core", "as_structured_llm, by a forced call of a tool")
def _(at):
    play(call("Weather", place="Rome", sunny=True, wind="weak"))
    is_weather(model(at).as_structured_llm(Weather).chat(ASKED).raw)


@check("llama-index-core", "as_structured_llm with should_use_structured_outputs", model="real")
def _(at):
    is_weather(model(at, should_use_structured_outputs=True).as_structured_llm(Weather).chat(ASKED).raw)


@check("llama-index-core", "RateLimitError; reasoning_effort")
def _(at):
    play(REFUSE)
    expect_raises(openai.RateLimitError, lambda: model(at).chat(ASKED))
    play(ANSWER)
    expect(model(at, reasoning_effort="low").chat(ASKED).message.content == ANSWER)


main()
