"""llm, a command line: models of this API named in extra-openai-models.yaml."""
import json
import os
import pathlib

from checking import check, expect, main, play, run
from shapes import ANSWER, CALL, QUESTION, WEATHER_TEXT, Weather, expect_loop, is_weather

FUNCTION = '''
def get_weather(place: str) -> str:
    "Says what the weather of a place is."
    return "sunny, 21 degrees"
'''


def ask(at, *arguments):
    home = pathlib.Path(os.environ["HOME"]) / "llm"
    home.mkdir(exist_ok=True)
    (home / "extra-openai-models.yaml").write_text(json.dumps([{
        "model_id": "mine", "model_name": at.model, "api_base": at.url, "api_key_name": "mine", "supports_tools": True,
        "supports_schema": True, "can_stream": True}]), encoding="utf-8")
    (home / "keys.json").write_text(json.dumps({"mine": at.key}), encoding="utf-8")
    return run(["llm", *arguments], LLM_USER_PATH=str(home)).strip()


@check("llm", "prompt, streamed, with usage", model="real")
def _(at):
    expect(ask(at, "-m", "mine", "-o", "max_tokens", "8", "-u", QUESTION))


@check("llm", "prompt with a system, not streamed")
def _(at):
    play(ANSWER)
    expect(ask(at, "-m", "mine", "--no-stream", "-s", "Be brief.", QUESTION) == ANSWER)


@check("llm", "--functions: a tool in a loop")
def _(at):
    play(CALL, ANSWER)
    expect(ask(at, "-m", "mine", "--functions", FUNCTION, QUESTION) == ANSWER)
    expect_loop()


@check("llm", "--functions --no-stream")
def _(at):
    play(CALL, ANSWER)
    expect(ask(at, "-m", "mine", "--no-stream", "--functions", FUNCTION, QUESTION) == ANSWER)
    expect_loop()


@check("llm", "--schema", model="real")
def _(at):
    is_weather(ask(at, "-m", "mine", "--schema", json.dumps(Weather.model_json_schema()), QUESTION))


@check("llm", "a conversation that goes on (-c)")
def _(at):
    play(WEATHER_TEXT, ANSWER)
    ask(at, "-m", "mine", QUESTION)
    expect(ask(at, "-m", "mine", "-c", "And in words?") == ANSWER)


main()
