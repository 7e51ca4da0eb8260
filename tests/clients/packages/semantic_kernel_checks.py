"""Semantic Kernel: its chat completion, and agents over it and over responses."""
import asyncio

import openai
from checking import REFUSE, check, expect, expect_raises, main, play
from semantic_kernel.agents import ChatCompletionAgent, OpenAIResponsesAgent
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory
from semantic_kernel.exceptions import ServiceResponseException
from semantic_kernel.functions import KernelArguments, kernel_function
from shapes import ANSWER, QUESTION, RESULT, Weather, call, expect_loop, is_weather

PACKAGE = "semantic-kernel"
CALL = call("WeatherPlugin-get_weather", place="Rome")


class WeatherPlugin:
    @kernel_function(description="Says what the weather of a place is.")
    def get_weather(self, place: str) -> str:
        return RESULT if place == "Rome" else "unknown"


def client(at):
    return openai.AsyncOpenAI(base_url=at.url, api_key=at.key, max_retries=0)


def service(at):
    return OpenAIChatCompletion(ai_model_id=at.model, async_client=client(at))


def history():
    messages = ChatHistory(system_message="Be brief.")
    messages.add_user_message(QUESTION)
    return messages


def agent(at, **settings):
    return ChatCompletionAgent(
        service=service(at), name="Weatherman", instructions="Be brief.", plugins=[WeatherPlugin()],
        arguments=KernelArguments(settings=OpenAIChatPromptExecutionSettings(
            function_choice_behavior=FunctionChoiceBehavior.Auto(), **settings)))


@check(PACKAGE, "get_chat_message_content, with usage", model="real")
def _(at):
    settings = OpenAIChatPromptExecutionSettings(max_tokens=8)
    answer = asyncio.run(service(at).get_chat_message_content(history(), settings))
    expect(str(answer) and answer.metadata["usage"].completion_tokens > 0)


@check(PACKAGE, "get_streaming_chat_message_content", model="real")
def _(at):
    async def ask():
        settings = OpenAIChatPromptExecutionSettings(max_completion_tokens=8)
        return [str(piece) async for piece in service(at).get_streaming_chat_message_content(history(), settings)]
    expect("".join(asyncio.run(ask())))


@check(PACKAGE, "ChatCompletionAgent: a function in a loop")
def _(at):
    play(CALL, ANSWER)
    expect(str(asyncio.run(agent(at).get_response(messages=QUESTION))) == ANSWER)
    expect_loop()


@check(PACKAGE, "the same, streamed, parallel_tool_calls=False")
def _(at):
    play(CALL, ANSWER)

    async def ask():
        return [str(piece.message) async for piece in agent(at, parallel_tool_calls=False).invoke_stream(messages=QUESTION)]
    expect("".join(asyncio.run(ask())) == ANSWER)
    expect_loop()


@check(PACKAGE, "response_format of a pydantic model; reasoning_effort, store", model="real")
def _(at):
    settings = OpenAIChatPromptExecutionSettings(response_format=Weather, reasoning_effort="low", store=False)
    is_weather(str(asyncio.run(service(at).get_chat_message_content(history(), settings))))


@check(PACKAGE, "OpenAIResponsesAgent: a function in a loop, nothing stored")
def _(at):
    spoken = OpenAIResponsesAgent(ai_model_id=at.model, client=client(at), name="Weatherman", instructions="Be brief.",
                                  plugins=[WeatherPlugin()], store_enabled=False)
    play(CALL, ANSWER)
    expect(str(asyncio.run(spoken.get_response(messages=QUESTION))) == ANSWER)
    expect_loop()


@check(PACKAGE, "ServiceResponseException over RateLimitError")
def _(at):
    play(REFUSE)
    error = expect_raises(ServiceResponseException, lambda: asyncio.run(
        service(at).get_chat_message_content(history(), OpenAIChatPromptExecutionSettings())))
    expect(isinstance(error.__cause__, openai.RateLimitError), error)


main()
