"""mini-swe-agent, over LiteLLM: commands as calls of a tool, as responses, and as text."""
import os
import pathlib

import litellm
from checking import TOO_LONG, check, expect, expect_raises, heard, main, play, run
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir, get_config_from_spec
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_response_model import LitellmResponseModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel
from shapes import call

DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo well"
PACKAGE = "mini-swe-agent"


def agent(at, kind, config="mini.yaml", **options):
    settings = get_config_from_spec(config)
    prefix = {"model_name": f"openai/{at.model}", "cost_tracking": "ignore_errors",
              "model_kwargs": {"api_base": at.url, "api_key": at.key, "drop_params": True, **options}}
    own = {name: settings["agent"][name] for name in ("system_template", "instance_template")}
    return DefaultAgent(kind(**{**settings.get("model", {}), **prefix}), LocalEnvironment(), **own, step_limit=5)


@check(PACKAGE, "commands as calls of a tool")
def _(at):
    play("I look.\n" + call("bash", command="echo $((6 * 7))0"), call("bash", command=DONE))
    result = agent(at, LitellmModel).run("Do it.")
    expect(result["exit_status"] == "Submitted" and result["submission"].strip() == "well", result)
    expect("420" in heard()[1]["prompt"])


@check(PACKAGE, "two commands in one answer (parallel_tool_calls), and an answer without one")
def _(at):
    play("No command here.", call("bash", command="echo $((6 * 7))0") + "\n" + call("bash", command="echo $((6 * 7))1"),
         call("bash", command=DONE))
    expect(agent(at, LitellmModel, parallel_tool_calls=True).run("Do it.")["exit_status"] == "Submitted")
    expect("420" in heard()[2]["prompt"] and "421" in heard()[2]["prompt"])


@check(PACKAGE, "commands over the Responses API")
def _(at):
    play(call("bash", command="echo $((6 * 7))0"), call("bash", command=DONE))
    expect(agent(at, LitellmResponseModel).run("Do it.")["exit_status"] == "Submitted")
    expect("420" in heard()[1]["prompt"])


@check(PACKAGE, "commands in text")
def _(at):
    play("THOUGHT: so.\n\n```mswea_bash_command\necho $((6 * 7))0\n```",
         f"THOUGHT: so.\n\n```mswea_bash_command\n{DONE}\n```")
    expect(agent(at, LitellmTextbasedModel, "mini_textbased.yaml").run("Do it.")["exit_status"] == "Submitted")
    expect("420" in heard()[1]["prompt"])


@check(PACKAGE, "mini, the program")
def _(at):
    play(call("bash", command="echo $((6 * 7))0 > made"), call("bash", command=DONE))
    config = builtin_config_dir / "mini.yaml"
    run(["mini", "-y", "--exit-immediately", "-m", f"openai/{at.model}", "-t", "Do it.", "-o", "out.json", "-c", str(config),
         "-c", f"model.model_kwargs.api_base={at.url}", "-c", "model.cost_tracking=ignore_errors"],
        OPENAI_API_KEY=at.key, MSWEA_CONFIGURED="true", MSWEA_SILENT_STARTUP="1")
    expect(pathlib.Path("made").read_text(encoding="utf-8").strip() == "420", os.listdir("."))


@check(PACKAGE, "a conversation that is too long ends at once")
def _(at):
    expect_raises(litellm.ContextWindowExceededError, lambda: agent(at, LitellmModel).run(TOO_LONG))


main()
