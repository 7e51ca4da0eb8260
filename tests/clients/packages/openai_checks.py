"""The openai package: chat completions and responses."""
import asyncio
import json

import openai
from checking import REFUSE, TOO_LONG, check, expect, expect_raises, heard, main, play, real
from shapes import ANSWER, CALL, QUESTION, RESULT, WEATHER_TOOL, Weather, expect_constraint, expect_loop, is_weather

ASKED = [{"role": "user", "content": QUESTION}]


def client(at, **options):
    return openai.OpenAI(base_url=at.url, api_key=at.key, **{"max_retries": 0, **options})


@check("openai", "chat, with usage", model="real")
def _(at):
    answer = client(at).chat.completions.create(model=at.model, messages=ASKED, max_completion_tokens=8)
    expect(answer.choices[0].message.content)
    expect(answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens)


@check("openai", "stream with usage, asyncio", model="real")
def _(at):
    async def ask():
        async with openai.AsyncOpenAI(base_url=at.url, api_key=at.key) as many:
            stream = await many.chat.completions.create(model=at.model, messages=ASKED, max_tokens=8, stream=True,
                                                        stream_options={"include_usage": True})
            return [chunk async for chunk in stream]
    chunks = asyncio.run(ask())
    expect("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))
    expect(chunks[-1].usage.completion_tokens > 0)


@check("openai", "strict tool, called and answered; the call is streamed")
def _(at):
    play(CALL, ANSWER)
    tool = {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": WEATHER_TOOL}}
    options = {"model": at.model, "tools": [tool], "parallel_tool_calls": False}
    with client(at).chat.completions.stream(messages=ASKED, **options) as stream:
        names = [event.name for event in stream if event.type == "tool_calls.function.arguments.done"]
        message = stream.get_final_completion().choices[0].message
    expect(names == ["get_weather"] and json.loads(message.tool_calls[0].function.arguments) == {"place": "Rome"})
    expect(0 < len(message.tool_calls[0].id) <= 40)
    expect_constraint()
    again = client(at).chat.completions.create(messages=[
        *ASKED, {"role": "assistant", "tool_calls": [call.model_dump(exclude={"function": {"parsed_arguments"}})
                                                     for call in message.tool_calls]},
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}], **options)
    expect(again.choices[0].message.content == ANSWER)
    expect_loop()


@check("openai", "chat.completions.parse with a pydantic model", model="real")
def _(at):
    answer = client(at).chat.completions.parse(model=at.model, messages=ASKED, response_format=Weather)
    is_weather(answer.choices[0].message.parsed)


@check("openai", "json_object", model="scripted")
def _(at):
    play('{"place": "Rome"}')
    answer = client(at).chat.completions.create(model=at.model, messages=ASKED, response_format={"type": "json_object"})
    expect(json.loads(answer.choices[0].message.content) == {"place": "Rome"})
    expect_constraint()


@check("openai", "hints: reasoning_effort, verbosity, store, metadata, service_tier, prediction, cache keys")
def _(at):
    play(ANSWER)
    answer = client(at).chat.completions.create(
        model=at.model, messages=ASKED, reasoning_effort="low", verbosity="low", store=False, metadata={"a": "b"},
        service_tier="auto", prompt_cache_key="k", prompt_cache_retention="24h", safety_identifier="s", user="u",
        modalities=["text"], extra_body={"enable_caching": True})
    expect(answer.choices[0].message.content == ANSWER)


@check("openai", "responses.create, streamed too, with usage")
def _(at):
    play(ANSWER, ANSWER)
    answer = client(at).responses.create(model=at.model, instructions="Be brief.", input=QUESTION)
    expect(answer.output_text == ANSWER and answer.status == "completed" and answer.usage.output_tokens > 0)
    events = list(client(at).responses.create(model=at.model, input=ASKED, stream=True, store=False))
    expect("".join(event.delta for event in events if event.type == "response.output_text.delta") == ANSWER)
    expect(events[0].type == "response.created" and events[-1].type == "response.completed")
    expect(events[-1].response.output_text == ANSWER)


@check("openai", "responses with a function, called and answered (store=False)")
def _(at):
    play(CALL, ANSWER)
    options = {"model": at.model, "store": False, "include": ["reasoning.encrypted_content"], "tools": [
        {"type": "function", "name": "get_weather", "strict": True, "parameters": WEATHER_TOOL}]}
    first = client(at).responses.create(input=ASKED, **options)
    asked = next(item for item in first.output if item.type == "function_call")
    expect(asked.name == "get_weather" and json.loads(asked.arguments) == {"place": "Rome"})
    second = client(at).responses.create(input=[*ASKED, *first.output, {
        "type": "function_call_output", "call_id": asked.call_id, "output": RESULT}], **options)
    expect(second.output_text == ANSWER, second.output)
    expect_loop()


@check("openai", "responses.parse with a pydantic model", model="real")
def _(at):
    is_weather(client(at).responses.parse(model=at.model, input=QUESTION, text_format=Weather).output_parsed)


@check("openai", "errors: context_length_exceeded; RateLimitError with Retry-After, tried again")
def _(at):
    error = expect_raises(openai.BadRequestError, lambda: client(real()).chat.completions.create(
        model=real().model, messages=[{"role": "user", "content": TOO_LONG}]))
    expect(error.code == "context_length_exceeded" and "maximum context length is" in error.message, error)
    play(REFUSE, REFUSE, ANSWER)
    error = expect_raises(openai.RateLimitError,
                          lambda: client(at).chat.completions.create(model=at.model, messages=ASKED))
    expect(int(error.response.headers["retry-after"]) >= 1)
    answer = client(at, max_retries=2).chat.completions.create(model=at.model, messages=ASKED)
    expect(answer.choices[0].message.content == ANSWER)


@check("openai", "embeddings.create", fails="another kind of server")
def _(at):
    client(at).embeddings.create(model=at.model, input="a")


@check("openai", "thoughts of a model apart from its answer; developer messages")
def _(at):
    play("<think>\nIt is Rome.\n</think>\n\n" + ANSWER)
    answer = client(at).chat.completions.create(model=at.model, messages=[
        {"role": "developer", "content": "Be brief."}, *ASKED])
    expect(answer.choices[0].message.content.strip() == ANSWER)
    expect(answer.choices[0].message.reasoning_content.strip() == "It is Rome.")
    expect("<|im_start|>system\nBe brief." in heard()[0]["prompt"])


main()
