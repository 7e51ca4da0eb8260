"""DSPy, over LiteLLM: its adapters ask for JSON in their own ways."""
import typing

import dspy
from dspy.lm15 import AccessPolicy, ModelSupport, OpenAIChatCompat, ProviderDefinition, register_provider
from checking import TOO_LONG, check, expect, expect_raises, heard, main, play, real
from shapes import ANSWER, QUESTION, RESULT, call, get_weather


class Describe(dspy.Signature):
    """Say what the weather is."""

    question: str = dspy.InputField()
    place: typing.Literal["Rome", "Oslo"] = dspy.OutputField()
    sunny: bool = dspy.OutputField()


def model(at, **options):
    return dspy.LM(f"openai/{at.model}", api_base=at.url, api_key=at.key, cache=False,
                   **{"max_tokens": 1000, "num_retries": 0, **options})


def declared(at, **options):
    """The model with a word that it can do what DSPy does not know of it."""
    register_provider(ProviderDefinition.chat(AccessPolicy(provider="mine", base_url=at.url),
                                              compat=OpenAIChatCompat.preset("vllm")),
                      supports=ModelSupport(function_calling=True, response_schema=True), replace=True)
    return dspy.LM(f"mine/{at.model}", api_base=at.url, api_key=at.key, cache=False, max_tokens=1000, **options)


@check("dspy", "a model called by itself", model="real")
def _(at):
    expect(model(at, max_tokens=8)(QUESTION)[0])


@check("dspy", "Predict with ChatAdapter, its default")
def _(at):
    play("[[ ## place ## ]]\nRome\n\n[[ ## sunny ## ]]\nTrue\n\n[[ ## completed ## ]]")
    with dspy.context(lm=model(at)):
        answer = dspy.Predict(Describe)(question=QUESTION)
    expect(answer.place == "Rome" and answer.sunny is True)


@check("dspy", "Predict with JSONAdapter: json_schema", model="real")
def _(at):
    with dspy.context(lm=declared(at), adapter=dspy.JSONAdapter()):
        answer = dspy.Predict(Describe)(question=QUESTION)
    expect(answer.place in ("Rome", "Oslo") and isinstance(answer.sunny, bool))


@check("dspy", "ReAct: a tool in a loop")
def _(at):
    play('[[ ## next_thought ## ]]\nA tool.\n\n[[ ## next_tool_name ## ]]\nget_weather\n\n[[ ## next_tool_args ## ]]\n'
         '{"place": "Rome"}\n\n[[ ## completed ## ]]',
         "[[ ## next_thought ## ]]\nDone.\n\n[[ ## next_tool_name ## ]]\nfinish\n\n[[ ## next_tool_args ## ]]\n{}\n\n"
         "[[ ## completed ## ]]",
         f"[[ ## reasoning ## ]]\nSo.\n\n[[ ## answer ## ]]\n{ANSWER}\n\n[[ ## completed ## ]]")
    with dspy.context(lm=model(at)):
        expect(dspy.ReAct("question -> answer", tools=[get_weather])(question=QUESTION).answer == ANSWER)
    expect(RESULT in heard()[-1]["prompt"])


@check("dspy", "dspy.ToolCalls by the server's own calls")
def _(at):
    class Ask(dspy.Signature):
        question: str = dspy.InputField()
        tools: list[dspy.Tool] = dspy.InputField()
        outputs: dspy.ToolCalls = dspy.OutputField()
    play(call("get_weather", place="Rome"))
    with dspy.context(lm=declared(at), adapter=dspy.ChatAdapter(use_native_function_calling=True)):
        answer = dspy.Predict(Ask)(question=QUESTION, tools=[dspy.Tool(get_weather)])
    expect(answer.outputs.tool_calls[0].args == {"place": "Rome"})


@check("dspy", "a prompt that is too long is known as that")
def _(at):
    def ask():
        with dspy.context(lm=model(real())):
            dspy.Predict("question -> answer")(question=TOO_LONG)
    error = expect_raises(Exception, ask)
    expect("ContextWindowExceeded" in type(error).__name__, type(error).__name__)


main()
