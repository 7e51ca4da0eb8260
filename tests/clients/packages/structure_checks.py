"""instructor: answers in the form of a pydantic model, in each of its ways."""
import asyncio

import instructor
import openai
from checking import check, expect, heard, main, play
from shapes import QUESTION, WEATHER_TEXT, Weather, call, expect_constraint, is_weather

ASKED = [{"role": "user", "content": QUESTION}]
WRONG = call("Weather", place="Paris", sunny=True, wind="weak")
RIGHT = call("Weather", place="Rome", sunny=True, wind="weak")


def client(at, mode):
    return instructor.from_openai(openai.OpenAI(base_url=at.url, api_key=at.key, max_retries=0), mode=mode)


def ask(at, mode, **options):
    return client(at, mode).chat.completions.create(model=at.model, messages=ASKED, response_model=Weather, **options)


@check("instructor", "Mode.TOOLS, its default")
def _(at):
    play(RIGHT)
    is_weather(ask(at, instructor.Mode.TOOLS))


@check("instructor", "Mode.TOOLS_STRICT")
def _(at):
    play(RIGHT)
    is_weather(ask(at, instructor.Mode.TOOLS_STRICT))
    expect_constraint()


@check("instructor", "Mode.JSON_SCHEMA", model="real")
def _(at):
    is_weather(ask(at, instructor.Mode.JSON_SCHEMA, max_tokens=200))


@check("instructor", "Mode.JSON")
def _(at):
    play(WEATHER_TEXT)
    is_weather(ask(at, instructor.Mode.JSON))


@check("instructor", "asked again with what was wrong (max_retries)")
def _(at):
    play(WRONG, RIGHT)
    is_weather(ask(at, instructor.Mode.TOOLS, max_retries=2))
    expect(len(heard()) == 2)


@check("instructor", "create_partial, create_iterable, asyncio")
def _(at):
    play(call("PartialWeather", place="Rome", sunny=True, wind="weak"))
    is_weather(list(client(at, instructor.Mode.TOOLS).create_partial(
        model=at.model, messages=ASKED, response_model=Weather))[-1])
    play(call("IterableWeather", tasks=[{"place": "Rome", "sunny": True, "wind": "weak"}] * 2))

    async def many():
        spoken = instructor.from_openai(openai.AsyncOpenAI(base_url=at.url, api_key=at.key))
        return [one async for one in spoken.create_iterable(model=at.model, messages=ASKED, response_model=Weather)]
    expect(len(asyncio.run(many())) == 2)


@check("instructor", "Mode.RESPONSES_TOOLS")
def _(at):
    play(RIGHT)
    is_weather(client(at, instructor.Mode.RESPONSES_TOOLS).responses.create(
        model=at.model, input=QUESTION, response_model=Weather))


main()
