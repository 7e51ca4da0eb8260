"""Inspect: evaluations over openai-api/, its way to servers of one's own."""
import os

from checking import TOO_LONG, check, expect, main, play
from inspect_ai import Task, eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, ResponseSchema, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import basic_agent, generate, use_tools
from inspect_ai.tool import tool
from inspect_ai.util import json_schema
from shapes import ANSWER, CALL, QUESTION, RESULT, Weather, call, expect_loop, is_weather

PACKAGE = "inspect_ai"


@tool
def get_weather():
    async def execute(place: str):
        """Says what the weather of a place is.

        Args:
            place: The name of a town.
        """
        return RESULT if place == "Rome" else "unknown"
    return execute


def model(at, prefix="openai-api/mine", **options):
    os.environ["MINE_API_KEY"] = at.key
    return get_model(f"{prefix}/{at.model}", base_url=at.root if prefix == "anthropic" else at.url, api_key=at.key,
                     config=GenerateConfig(max_retries=0), memoize=False, **options)


def run(spoken, solver, text=QUESTION, target="21 degrees", **options):
    log, = evaluate(Task(dataset=[Sample(input=text, target=target)], solver=solver, scorer=includes(), **options),
                    model=spoken, display="none", log_dir="logs")
    return log


def score(log):
    expect(log.status == "success", log.error.message if log.error else log.status)
    return log.results.scores[0].metrics["accuracy"].value


@check(PACKAGE, "generate", model="real")
def _(at):
    log = run(model(at), generate(max_tokens=8))
    expect(log.status == "success" and log.samples[0].output.usage.output_tokens > 0, log.error)


@check(PACKAGE, "use_tools and generate: a tool in a loop")
def _(at):
    play(CALL, ANSWER)
    expect(score(run(model(at), [use_tools(get_weather()), generate()])) == 1)
    expect_loop()


@check(PACKAGE, "basic_agent, which submits")
def _(at):
    play(CALL, call("submit", answer=ANSWER))
    expect(score(run(model(at), basic_agent(tools=[get_weather()]))) == 1)
    expect_loop()


@check(PACKAGE, "response_schema", model="real")
def _(at):
    log = run(model(at), generate(response_schema=ResponseSchema(name="weather", json_schema=json_schema(Weather))))
    expect(log.status == "success", log.error)
    is_weather(log.samples[0].output.completion)


@check(PACKAGE, "responses_api=True: a tool in a loop; reasoning_effort")
def _(at):
    play(CALL, ANSWER)
    expect(score(run(model(at, responses_api=True), [use_tools(get_weather()), generate(reasoning_effort="low")])) == 1)
    expect_loop()


@check(PACKAGE, "anthropic/ over /v1/messages: a tool in a loop")
def _(at):
    play(CALL, ANSWER)
    expect(score(run(model(at, "anthropic"), [use_tools(get_weather()), generate()])) == 1)
    expect_loop()


@check(PACKAGE, "overflow is stop_reason model_length; num_choices, logprobs, seed")
def _(at):
    log = run(model(at), generate(), TOO_LONG)
    expect(log.status == "success" and log.samples[0].output.stop_reason == "model_length", log.error or log.samples[0].output)
    play(ANSWER)
    log = run(model(at), generate(num_choices=2, logprobs=True, top_logprobs=2, seed=1))
    expect(log.status == "success" and len(log.samples[0].output.choices) == 2, log.error)


main()
