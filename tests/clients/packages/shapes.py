"""What checks ask for: values that any model gives under a constraint, and a tool with its call."""
import json
import typing
import urllib.error
import urllib.request

import pydantic
from checking import call, expect, heard, real

QUESTION = "What is the weather in Rome?"
RESULT = "sunny, 21 degrees"
ANSWER = "It is sunny in Rome, at 21 degrees."
CALL = call("get_weather", place="Rome")


class Weather(pydantic.BaseModel):
    """The weather of a place."""

    place: typing.Literal["Rome", "Oslo"]
    sunny: bool
    wind: typing.Literal["weak", "strong"]


def is_weather(value):
    """Whether the value, or its text, is such an object."""
    if isinstance(value, str):
        value = Weather.model_validate_json(value)
    if isinstance(value, dict):
        value = Weather.model_validate(value)
    expect(value.place in ("Rome", "Oslo") and isinstance(value.sunny, bool) and value.wind in ("weak", "strong"), value)


WEATHER_TEXT = '{"place": "Rome", "sunny": true, "wind": "weak"}'


def get_weather(place: str) -> str:
    """Says what the weather of a place is.

    Args:
        place: The name of a town.
    """
    return RESULT if place == "Rome" else "unknown"


WEATHER_TOOL = {"type": "object", "properties": {"place": {"type": "string", "description": "The name of a town."}},
                "required": ["place"], "additionalProperties": False}


def expect_loop():
    """The function was called, and its result came back to the model."""
    expect(len(heard()) >= 2, f"{len(heard())} requests came")
    results = heard()[-1]["prompt"].partition("<|im_start|>tool\n")[2]
    expect(RESULT in results, heard()[-1]["prompt"])


def expect_constraint(index=0):
    """The answer was forced into its form, not only asked for; a schema is one that a real worker takes."""
    constraint = heard()[index].get("constraint")
    expect(constraint, "the worker got no constraint")
    if "jsonSchema" not in constraint:
        return
    at = real()
    body = {"model": at.model, "max_tokens": 1, "messages": [{"role": "user", "content": QUESTION}],
            "guided_json": constraint["jsonSchema"]}
    request = urllib.request.Request(at.url + "/chat/completions", json.dumps(body).encode(), {
        "Content-Type": "application/json", "Authorization": f"Bearer {at.key}"})
    try:
        urllib.request.urlopen(request, timeout=60).close()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"the worker does not take the schema: {error.read().decode()}") from None
