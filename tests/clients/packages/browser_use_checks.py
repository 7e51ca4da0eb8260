"""Browser Use: its client of this API by itself, and an agent in Debian's Chromium on a page of this process."""
import asyncio
import http.server
import json
import threading

from browser_use import Agent, BrowserProfile, ChatOpenAI
from browser_use.llm.exceptions import ModelProviderError, ModelRateLimitError
from browser_use.llm.messages import SystemMessage, UserMessage
from checking import REFUSE, TOO_LONG, check, expect, expect_raises, heard, main, play, real
from shapes import ANSWER, QUESTION, WEATHER_TEXT, Weather, expect_constraint, is_weather

PACKAGE = "browser-use"
ASKED = [SystemMessage(content="Be brief."), UserMessage(content=QUESTION)]
PAGE = b"<html><head><title>Towns</title></head><body><h1>Rome has sun</h1></body></html>"


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):  # noqa: N802
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_):
        pass


def model(at, **options):
    return ChatOpenAI(model=at.model, base_url=at.url, api_key=at.key, **{"max_retries": 0, **options})


def step(**action):
    return json.dumps({"thinking": "So.", "evaluation_previous_goal": "Well.", "memory": "None.", "next_goal": "On.",
                       "action": [action]})


def browse(at, **options):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    play(step(navigate={"url": f"http://127.0.0.1:{server.server_address[1]}/", "new_tab": False}),
         step(done={"text": ANSWER, "success": True}))
    profile = BrowserProfile(executable_path="/usr/bin/chromium", headless=True, chromium_sandbox=False,
                             enable_default_extensions=False)
    agent = Agent(task=QUESTION, llm=model(at), browser_profile=profile, use_judge=False, enable_signal_handler=False,
                  use_vision=False, **options)
    result = asyncio.run(agent.run(max_steps=4))
    server.shutdown()
    expect(result.final_result() == ANSWER, result.errors())
    expect("Rome has sun" in heard()[1]["prompt"])


@check(PACKAGE, "ainvoke (frequency_penalty, as it comes), with usage", model="real")
def _(at):
    answer = asyncio.run(model(at, max_completion_tokens=8).ainvoke(ASKED))
    expect(answer.completion is not None and answer.usage.prompt_tokens > 0)


@check(PACKAGE, "ainvoke with output_format", model="real")
def _(at):
    is_weather(asyncio.run(model(at).ainvoke(ASKED, output_format=Weather)).completion)


@check(PACKAGE, "dont_force_structured_output, the schema in the prompt")
def _(at):
    play(WEATHER_TEXT)
    spoken = model(at, dont_force_structured_output=True, add_schema_to_system_prompt=True)
    is_weather(asyncio.run(spoken.ainvoke(ASKED, output_format=Weather)).completion)


@check(PACKAGE, "an agent opens a page and ends (the schema of all its actions)")
def _(at):
    browse(at)
    expect_constraint()


@check(PACKAGE, "an agent in flash mode, several actions a step")
def _(at):
    browse(at, flash_mode=True)
    expect_constraint()


@check(PACKAGE, "ModelRateLimitError; overflow is named")
def _(at):
    play(*[REFUSE] * 3)
    expect_raises(ModelRateLimitError, lambda: asyncio.run(model(at).ainvoke(ASKED)))
    error = expect_raises(ModelProviderError, lambda: asyncio.run(model(real()).ainvoke([UserMessage(content=TOO_LONG)])))
    expect("maximum context length" in str(error), error)


main()
