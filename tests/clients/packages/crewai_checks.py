"""CrewAI: its own client of this API (custom_openai)."""
from checking import REFUSE, check, expect, expect_raises, heard, main, play
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from shapes import ANSWER, CALL, QUESTION, RESULT, WEATHER_TEXT, Weather, expect_loop, get_weather, is_weather

TOOL = tool("get_weather")(get_weather)


def model(at, **options):
    return LLM(model=at.model, custom_openai=True, base_url=at.url, api_key=at.key, max_retries=0, **options)


def crew(spoken, tools=(), **options):
    agent = Agent(role="Weatherman", goal="Know the weather.", backstory="Long.", llm=spoken, tools=list(tools),
                  max_retry_limit=0)
    return Crew(agents=[agent], tasks=[Task(description=QUESTION, expected_output="A sentence.", agent=agent, **options)])


@check("crewai", "a model called by itself, and streamed", model="real")
def _(at):
    expect(model(at, max_tokens=8).call(QUESTION))
    expect(model(at, max_tokens=8, stream=True).call(QUESTION))


@check("crewai", "a crew of an agent without tools")
def _(at):
    play(ANSWER)
    expect(ANSWER in crew(model(at)).kickoff().raw)


@check("crewai", "a crew with a tool in a loop")
def _(at):
    play(CALL, ANSWER)
    expect(ANSWER in crew(model(at), [TOOL]).kickoff().raw)
    expect_loop()


@check("crewai", "the same, streamed")
def _(at):
    play(CALL, ANSWER)
    expect(ANSWER in crew(model(at, stream=True), [TOOL]).kickoff().raw)
    expect(RESULT in heard()[-1]["prompt"])


@check("crewai", "output_pydantic of a task")
def _(at):
    play(WEATHER_TEXT, WEATHER_TEXT)
    is_weather(crew(model(at), output_pydantic=Weather).kickoff().pydantic)


@check("crewai", "response_format of a model", model="real")
def _(at):
    is_weather(model(at, response_format=Weather).call(QUESTION))


@check("crewai", "api='responses': a tool in a loop; reasoning_effort")
def _(at):
    play(CALL, ANSWER)
    expect(ANSWER in crew(model(at, api="responses", reasoning_effort="low"), [TOOL]).kickoff().raw)
    expect(RESULT in heard()[-1]["prompt"])


@check("crewai", "a refusal for load reaches the caller")
def _(at):
    play(*[REFUSE] * 3)
    error = expect_raises(Exception, lambda: model(at).call(QUESTION))
    expect("429" in str(error) or "queue" in str(error), error)


main()
