"""Mirascope: calls, tools and formats over its provider of this API."""
from checking import REFUSE, check, expect, expect_raises, main, play
from mirascope import llm
from shapes import (ANSWER, CALL, QUESTION, WEATHER_TEXT, Weather, call, expect_constraint, expect_loop, get_weather,
                    is_weather)

TOOL = llm.tool(get_weather)


def name(at, suffix=":completions"):
    llm.register_provider("openai", scope="openai/", api_key=at.key, base_url=at.url)
    return f"openai/{at.model}{suffix}"


def ask(at, suffix=":completions", **options):
    @llm.call(name(at, suffix), **options)
    def asked():
        return QUESTION
    return asked


@check("mirascope", "a call, and streamed", model="real")
def _(at):
    expect(ask(at, max_tokens=8)().text())
    expect("".join(ask(at, max_tokens=8).stream().text_stream()))


@check("mirascope", "a tool in a loop")
def _(at):
    play(CALL, ANSWER)
    response = ask(at, tools=[TOOL])()
    while response.tool_calls:
        response = response.resume(response.execute_tools())
    expect(response.text() == ANSWER)
    expect_loop()


@check("mirascope", "a strict format", model="real")
def _(at):
    is_weather(ask(at, format=llm.format(Weather, mode="strict"))().parse())


@check("mirascope", "formats by a tool and by JSON")
def _(at):
    play(call("__mirascope_formatted_output_tool__", place="Rome", sunny=True, wind="weak"), WEATHER_TEXT)
    is_weather(ask(at, format=llm.format(Weather, mode="tool"))().parse())
    expect_constraint()
    is_weather(ask(at, format=llm.format(Weather, mode="json"))().parse())


@check("mirascope", "responses: a tool in a loop")
def _(at):
    play(CALL, ANSWER)
    response = ask(at, ":responses", tools=[TOOL])()
    while response.tool_calls:
        response = response.resume(response.execute_tools())
    expect(response.text() == ANSWER)
    expect_loop()


@check("mirascope", "RateLimitError")
def _(at):
    play(*[REFUSE] * 4)
    expect_raises(llm.RateLimitError, lambda: ask(at)())


main()
