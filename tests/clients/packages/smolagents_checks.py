"""smolagents: agents that call tools, and agents that write code."""
from checking import REFUSE, check, expect, heard, main, play
from shapes import ANSWER, QUESTION, RESULT, WEATHER_TEXT, call, get_weather, is_weather
from smolagents import CodeAgent, LiteLLMModel, OpenAIModel, ToolCallingAgent, tool

TOOL = tool(get_weather)
CODE = "Thought: so.\n<code>\n{}\n</code>"


def model(at, **options):
    return OpenAIModel(model_id=at.model, api_base=at.url, api_key=at.key, **options)


def agent(kind, at, **options):
    return kind(tools=[TOOL], model=model(at), verbosity_level=0, max_steps=4, **options)


@check("smolagents", "the model called by itself, and streamed", model="real")
def _(at):
    asked = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    expect(model(at, max_tokens=8)(asked).content)
    expect("".join(delta.content or "" for delta in model(at, max_tokens=8).generate_stream(asked)))


@check("smolagents", "ToolCallingAgent (tool_choice required)")
def _(at):
    play(call("get_weather", place="Rome"), call("final_answer", answer=ANSWER))
    expect(agent(ToolCallingAgent, at).run(QUESTION) == ANSWER)
    expect(RESULT in heard()[-1]["prompt"])


@check("smolagents", "ToolCallingAgent, its steps streamed")
def _(at):
    play(call("get_weather", place="Rome"), call("final_answer", answer=ANSWER))
    expect(agent(ToolCallingAgent, at, stream_outputs=True).run(QUESTION) == ANSWER)
    expect(RESULT in heard()[-1]["prompt"])


@check("smolagents", "CodeAgent (stop strings)")
def _(at):
    play(CODE.format("print(get_weather('Rome'))"), CODE.format(f"final_answer('{ANSWER}')"))
    expect(agent(CodeAgent, at).run(QUESTION) == ANSWER)
    expect(RESULT in heard()[-1]["prompt"])


@check("smolagents", "CodeAgent(use_structured_outputs_internally=True): json_schema")
def _(at):
    play('{"thought": "so", "code": "final_answer(get_weather(\'Rome\'))"}')
    expect(agent(CodeAgent, at, use_structured_outputs_internally=True).run(QUESTION) == RESULT)
    expect(heard()[0].get("constraint"))


@check("smolagents", "response_format of a model", model="scripted")
def _(at):
    play(WEATHER_TEXT)
    answer = model(at)([{"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
                       response_format={"type": "json_object"})
    is_weather(answer.content)


@check("smolagents", "LiteLLMModel; a refusal for load is tried again")
def _(at):
    spoken = LiteLLMModel(model_id=f"openai/{at.model}", api_base=at.url, api_key=at.key)
    play(REFUSE, call("final_answer", answer=ANSWER))
    expect(ToolCallingAgent(tools=[TOOL], model=spoken, verbosity_level=0).run(QUESTION) == ANSWER)


main()
