"""lm-evaluation-harness, with a task of our own made by the needle generator, against what the server itself says."""
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy
import retroinfer
import transformers
from server import ROOT
from table import case, expect

MODEL = ROOT / "models/needle"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
TASK = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: {kind}
"""
GENERATION = """\
doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 16
  do_sample: false
  policy: POLICY
metric_list:
  - metric: exact_match
filter_list:
  - name: plain
    filter:
      - function: take_first
"""
CHOICE = """\
doc_to_text: "{{prompt}}"
doc_to_choice: "{{choices}}"
doc_to_target: 0
target_delimiter: ""
metric_list:
  - metric: acc
"""
ROLLING = """\
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: byte_perplexity
"""


def needles(length, questions):
    lines = subprocess.run(
        [sys.executable, "-m", "tools.needle.generate", "--task", "multi_key", "--length", str(length), "--questions",
         str(questions), "--seed", "5"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def write_tasks(folder):
    """Generation over long documents, under each policy; choices and a whole text of shorter ones, since prompts that are
    measured are computed each time."""
    def write(name, kind, rows, form):
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, kind=kind, data=data) + form, encoding="utf-8")

    long, short = needles(12000, 4), needles(2500, 6)
    for policy in ("full", "wave"):
        write(f"needle_{policy}", "generate_until", [{"prompt": row["prompt"], "answer": " " + row["answer"]} for row in long],
              GENERATION.replace("POLICY", policy))
    answers = [" " + row["answer"] for row in short]
    write("needle_choice", "multiple_choice",
          [{"prompt": row["prompt"], "choices": (answers + answers)[index:index + 3]} for index, row in enumerate(short)],
          CHOICE)
    write("needle_text", "loglikelihood_rolling", [{"text": short[0]["document"]}], ROLLING)


class Harness:
    def __init__(self, server, folder):
        self._server = server
        self._folder = folder

    def run(self, tasks, batch_size=1, **arguments):
        """Returns the results, and the samples by task."""
        out = self._folder / f"{tasks[0]}-{batch_size}"
        given = {"model": "needle", "base_url": f"{self._server.url}/v1/completions", "tokenizer": MODEL,
                 "tokenizer_backend": "huggingface", "max_length": 65536, "max_retries": 1, **arguments}
        done = subprocess.run(
            [pathlib.Path(sys.executable).parent / "lm-eval", "run", "--model", "local-completions", "--model_args",
             ",".join(f"{key}={value}" for key, value in given.items()), "--tasks", ",".join(tasks), "--batch_size",
             str(batch_size), "--include_path", self._folder, "--output_path", out, "--log_samples"], cwd=self._folder, text=True, capture_output=True,
            env={**os.environ, **OFFLINE, "HF_HOME": str(self._folder / "hf"), "OPENAI_API_KEY": self._server.key})
        expect(done.returncode == 0, done.stderr[-150:])
        results, = out.glob("*/results_*.json")
        samples = {}
        for task in tasks:
            path, = out.glob(f"*/samples_{task}_*.jsonl")
            samples[task] = sorted(map(json.loads, path.read_text(encoding="utf-8").splitlines()),
                                   key=lambda sample: sample["doc_id"])
        return json.loads(results.read_text(encoding="utf-8"))["results"], samples


def total(tokens):
    """The sum of log-probabilities, in the harness's order, of numbers as JSON has them: each the shortest that names
    the same 32-bit float."""
    return sum(float(str(numpy.float32(token.logprob))) for token in tokens)


def likelihoods(sample):
    """What was asked, and what the harness took from the answer: log-likelihood, and whether greedy."""
    asked = [sample["arguments"][f"gen_args_{index}"] for index in range(len(sample["arguments"]))]
    return [(one["arg_0"], one.get("arg_1", ""), float(response[0][0]), str(response[0][1]) == "True")
            for one, response in zip(asked, sample["resps"])]


def cases(server):
    name = f"lm-eval {importlib.metadata.version('lm-eval')}"
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    with tempfile.TemporaryDirectory(prefix="retroinfer-lm-eval-") as folder, \
            retroinfer.Client(server.address, api_key=server.key) as client:
        write_tasks(pathlib.Path(folder))
        harness = Harness(server, pathlib.Path(folder))
        found = {}

        @case(name, "local-completions, four at once: generation over 12,000 tokens under each policy; as over gRPC")
        def _():
            found["results"], found["samples"] = harness.run(
                ["needle_full", "needle_wave", "needle_choice"], add_bos_token=True, num_concurrent=4)
            shown = []
            for policy in ("full", "wave"):
                samples = found["samples"][f"needle_{policy}"]
                for sample in samples:
                    own = client.generate(sample["doc"]["prompt"], policy=policy, temperature=0, max_tokens=16, stop="\n")
                    expect(sample["resps"] == [[own.text]], f"{sample['resps']}, and over gRPC {own.text!r}")
                right = found["results"][f"needle_{policy}"]["exact_match,plain"]
                own = sum(sample["resps"][0][0] == sample["doc"]["answer"] for sample in samples) / len(samples)
                expect(right == own, f"{right} and {own}")
                shown.append(f"{policy} {right:.0%}")
            return f"{len(samples)} questions: {', '.join(shown)} right"

        def compare(samples, add_bos_token):
            """With what Score says of the same tokens: to the bit by prefill; nearly, and on the same side, by steps."""
            count, worst = 0, 0.0
            for prompt, continuation, likelihood, is_greedy in sum(map(likelihoods, samples), []):
                whole = tokenizer(prompt + continuation, add_special_tokens=add_bos_token).input_ids
                context = tokenizer(prompt, add_special_tokens=add_bos_token).input_ids
                expect(whole[:len(context)] == context, "the seam is inside a token")
                measured = client.score(token_ids=whole, prompt_logprobs=0).prompt.tokens[len(context):]
                expect(total(measured) == likelihood, f"{likelihood}, and over gRPC {total(measured)}")
                expect(all(token.is_greedy for token in measured) == is_greedy, "greedy differs")
                steps, = client.score(token_ids=context, continuations=[whole[len(context):]], policy="full").continuations
                expect(steps.is_greedy == is_greedy, "greedy differs from decode steps")
                worst = max(worst, abs(steps.logprob / likelihood - 1) if likelihood < -1 else abs(steps.logprob - likelihood))
                count += 1
            return f"{count} of {count} equal to the bit; decode steps differ by at most {worst:.1%}"

        @case(name, "log-likelihoods of choices (token ids, `echo`, `logprobs`), four at once; as `Score` over gRPC")
        def _():
            expect(found["results"]["needle_choice"]["acc,none"] == 1, "an answer was not the likeliest")
            return compare(found["samples"]["needle_choice"], True)

        @case(name, "the same in batches of four prompts, and of a whole text; as `Score` and as `retroinfer score`")
        def _():
            results, samples = harness.run(["needle_choice", "needle_text"], batch_size=4)
            shown = compare(samples["needle_choice"], False)
            sample, = samples["needle_text"]
            likelihood = float(sample["resps"][0][0])
            text = sample["doc"]["text"]
            measured = client.score(text, prompt_logprobs=0).prompt.tokens[1:]
            expect(total(measured) == likelihood, f"{likelihood}, and over gRPC {total(measured)}")
            file = pathlib.Path(folder) / "text"
            file.write_text(text, encoding="utf-8")
            own = json.loads(server.command("score", str(file), "--policy", "full", "--json", "--quiet"))["policies"][0]
            expect(own["tokens"] == len(measured))
            expect(abs(own["mean_logprob"] - likelihood / len(measured)) < 0.005, f"{own['mean_logprob']}")
            byte_perplexity = results["needle_text"]["byte_perplexity,none"]
            expect(abs(numpy.exp(-likelihood / len(text.encode())) - byte_perplexity) < 1e-9)
            return f"{shown}; the text has {likelihood / len(measured):.4f} a token, `retroinfer score` says {own['mean_logprob']:.4f}"
