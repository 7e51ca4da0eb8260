"""Outlines: its models for this API, and for servers with fields of their own."""
import typing

import openai
import outlines
from checking import REFUSE, check, expect, expect_raises, main, play
from shapes import ANSWER, QUESTION, Weather, is_weather


def client(at):
    return openai.OpenAI(base_url=at.url, api_key=at.key, max_retries=0)


def model(at):
    return outlines.from_openai(client(at), at.model)


@check("outlines", "text, and streamed", model="real")
def _(at):
    expect(model(at)(QUESTION, max_tokens=8))
    expect("".join(model(at).stream(QUESTION, max_tokens=8)))


@check("outlines", "a pydantic model", model="real")
def _(at):
    is_weather(model(at)(QUESTION, Weather))


@check("outlines", "a pydantic model, streamed", model="real")
def _(at):
    is_weather("".join(model(at).stream(QUESTION, Weather)))


@check("outlines", "JSON without a schema", model="scripted")
def _(at):
    play('{"a": 1}')
    expect(model(at)(QUESTION, dict) == '{"a": 1}')


@check("outlines", "a system's message, and a refusal for load")
def _(at):
    play(ANSWER, REFUSE)
    chat = outlines.inputs.Chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}])
    expect(model(at)(chat) == ANSWER)
    expect("429" in str(expect_raises(Exception, lambda: model(at)(QUESTION))))


@check("outlines", "from_vllm: choices and regular expressions in extra_body", model="real")
def _(at):
    spoken = outlines.from_vllm(client(at), at.model)
    expect(spoken(QUESTION, typing.Literal["sun", "rain"]) in ("sun", "rain"))
    expect(spoken(QUESTION, outlines.regex("[0-9]{2} C")).endswith(" C"))


main()
