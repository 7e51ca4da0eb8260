"""LiteLLM: the prefixes that its documents name for servers of one's own."""
import asyncio
import json

import litellm
from checking import REFUSE, TOO_LONG, check, expect, expect_raises, heard, main, play, real
from shapes import ANSWER, CALL, QUESTION, RESULT, WEATHER_TOOL, Weather, expect_constraint, expect_loop, is_weather

ASKED = [{"role": "user", "content": QUESTION}]
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER_TOOL}}


def options(at, prefix="openai", **more):
    base = at.root if prefix == "anthropic" else at.url
    return {"model": f"{prefix}/{at.model}", "api_base": base, "api_key": at.key, "num_retries": 0, "max_retries": 0, **more}


@check("litellm", "completion under openai/ and hosted_vllm/, with usage", model="real")
def _(at):
    for prefix in ("openai", "hosted_vllm"):
        answer = litellm.completion(messages=ASKED, max_tokens=8, **options(at, prefix))
        expect(answer.choices[0].message.content and answer.usage.completion_tokens > 0)


@check("litellm", "acompletion, streamed with usage", model="real")
def _(at):
    async def ask():
        stream = await litellm.acompletion(messages=ASKED, max_tokens=8, stream=True,
                                           stream_options={"include_usage": True}, **options(at))
        return [chunk async for chunk in stream]
    chunks = asyncio.run(ask())
    expect("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
    expect(chunks[-1].usage.completion_tokens > 0)


@check("litellm", "tools in a loop, the call streamed")
def _(at):
    play(CALL, ANSWER)
    chunks = list(litellm.completion(messages=ASKED, tools=[TOOL], stream=True, **options(at)))
    message = litellm.stream_chunk_builder(chunks, messages=ASKED).choices[0].message
    expect(json.loads(message.tool_calls[0].function.arguments) == {"place": "Rome"})
    again = litellm.completion(messages=[*ASKED, message.model_dump(), {
        "role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}], tools=[TOOL], **options(at))
    expect(again.choices[0].message.content == ANSWER)
    expect_loop()


@check("litellm", "response_format=a pydantic model", model="real")
def _(at):
    is_weather(litellm.completion(messages=ASKED, response_format=Weather, **options(at)).choices[0].message.content)


@check("litellm", "tool_choice required, parallel_tool_calls=False, strict")
def _(at):
    play(CALL)
    tool = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    answer = litellm.completion(messages=ASKED, tools=[tool], tool_choice="required", parallel_tool_calls=False,
                                **options(at))
    expect(answer.choices[0].message.tool_calls[0].function.name == "get_weather")
    expect_constraint()


@check("litellm", "reasoning_effort and what else it passes on; thoughts as reasoning_content")
def _(at):
    play("<think>\nRome.\n</think>\n\n" + ANSWER)
    answer = litellm.completion(messages=ASKED, reasoning_effort="low", user="u", metadata={"a": "b"}, store=False,
                                allowed_openai_params=["reasoning_effort"], extra_body={"caching": True}, **options(at))
    expect(answer.choices[0].message.content.strip() == ANSWER)
    expect(answer.choices[0].message.reasoning_content.strip() == "Rome.")


@check("litellm", "ContextWindowExceededError, RateLimitError")
def _(at):
    expect_raises(litellm.ContextWindowExceededError, lambda: litellm.completion(
        messages=[{"role": "user", "content": TOO_LONG}], **options(real())))
    play(REFUSE, ANSWER)
    expect_raises(litellm.RateLimitError, lambda: litellm.completion(messages=ASKED, **options(at)))


@check("litellm", "responses(), and anthropic/ over /v1/messages")
def _(at):
    play(ANSWER, ANSWER)
    answer = litellm.responses(input=QUESTION, **options(at))
    expect(answer.output[-1].content[0].text == ANSWER)
    answer = litellm.completion(messages=ASKED, max_tokens=100, **options(at, "anthropic"))
    expect(answer.choices[0].message.content == ANSWER)
    expect(len(heard()) == 2)


@check("litellm", "embedding()", fails="another kind of server")
def _(at):
    litellm.embedding(input=["a"], **options(at))


main()
