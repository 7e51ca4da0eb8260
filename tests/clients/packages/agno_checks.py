"""Agno: OpenAILike, OpenAIChat and OpenResponses."""
from agno.agent import Agent
from agno.exceptions import ModelProviderError, ModelRateLimitError
from agno.models.openai import OpenAIChat, OpenAILike, OpenAIResponses
from checking import REFUSE, check, expect, main, play
from shapes import ANSWER, CALL, QUESTION, WEATHER_TEXT, Weather, expect_loop, get_weather, is_weather


def model(at, kind=OpenAILike, **options):
    return kind(id=at.model, base_url=at.url, api_key=at.key, max_retries=0, **options)


def agent(spoken, **options):
    return Agent(model=spoken, telemetry=False, **options)


@check("agno", "an agent without tools", model="real")
def _(at):
    result = agent(model(at, max_tokens=8), instructions="Be brief.").run(QUESTION)
    expect(result.content and result.metrics.output_tokens > 0)


@check("agno", "a tool in a loop, streamed too")
def _(at):
    play(CALL, ANSWER, CALL, ANSWER)
    expect(agent(model(at), tools=[get_weather]).run(QUESTION).content == ANSWER)
    expect_loop()
    events = list(agent(model(at), tools=[get_weather]).run(QUESTION, stream=True))
    expect("".join(event.content for event in events if event.event == "RunContent") == ANSWER)


@check("agno", "output_schema", model="real")
def _(at):
    is_weather(agent(model(at, OpenAIChat), output_schema=Weather).run(QUESTION).content)


@check("agno", "output_schema with a tool before, and use_json_mode")
def _(at):
    play(CALL, WEATHER_TEXT, WEATHER_TEXT)
    is_weather(agent(model(at, OpenAIChat), tools=[get_weather], output_schema=Weather).run(QUESTION).content)
    is_weather(agent(model(at), output_schema=Weather, use_json_mode=True).run(QUESTION).content)


@check("agno", "OpenAIResponses: a tool in a loop")
def _(at):
    play(CALL, ANSWER)
    expect(agent(model(at, OpenAIResponses), tools=[get_weather]).run(QUESTION).content == ANSWER)
    expect_loop()


@check("agno", "reasoning_effort, verbosity, service_tier; ModelRateLimitError")
def _(at):
    play(ANSWER, REFUSE)
    spoken = model(at, OpenAIChat, reasoning_effort="low", verbosity="low", service_tier="auto", store=False)
    expect(agent(spoken).run(QUESTION).content == ANSWER)
    try:
        result = agent(model(at)).run(QUESTION)
    except (ModelRateLimitError, ModelProviderError) as error:
        expect(error.status_code == 429, error)
        return
    expect(str(result.status).endswith("error"), result.status)


main()
