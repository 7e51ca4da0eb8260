"""Long answers behind a long context, written under each setting, then read under full attention.

What a model has written under a sparse policy may wander off or fall into a loop, which no measure
of given text shows. So each answer is read by exact attention: how surprising its tokens are, and
how many of its 8-grams it has had before, by stretches of 1,024 tokens. End tokens are held back
until the answer is as long as was asked for.
"""

import argparse
import dataclasses
import json
import pathlib
from collections.abc import Iterator

from .client import Client, Setting
from .job import Job

STRETCH = 1024
GRAM = 8
MODES = {"greedy": ["--temperature", "0"],
         "0.7": ["--temperature", "0.7", "--top-p", "1", "--top-k", "0"]}
ASK = ("Write a long and detailed text about what is above, as a book for beginners: explain each "
       "part in turn, with examples, and do not stop early.")
KEPT = 400  # characters of an answer's beginning and end that a line has


@dataclasses.dataclass
class LongAnswer(Job):
    """One answer to one document."""
    text: str
    context: int
    tokens: int
    mode: str
    seed: int

    def measure(self, server, client: Client, setting: Setting) -> dict:
        """Returns the measures of an answer by stretch."""
        if server is None:
            raise ValueError("long answers need a server of their own: --bin-dir in place of --url")
        prompt = self.made(client, self._prompt)
        ids = client.tokens(prompt)
        options = ["--policy", setting.policy, "--max-tokens", str(self.tokens), "--min-tokens",
                   str(self.tokens), "--seed", str(self.seed), "--reuse", "exact", "--chat",
                   *MODES[self.mode]]
        if setting.retrieval_ratio is not None:
            options += ["--retrieval-ratio", str(setting.retrieval_ratio)]
        ran = server.generate(prompt, options)
        if ran.returncode != 0:
            raise OSError(f"retroinfer generate: {ran.stderr}")
        answer = json.loads(ran.stdout)
        if answer["prompt_tokens"] != len(ids):
            raise ValueError(f"retroinfer generate read {answer['prompt_tokens']} tokens where the "
                             f"HTTP API has {len(ids)}")
        written = answer["token_ids"]
        logprobs = client.read(ids + written).logprobs[len(ids):]
        return {"stretches": stretches(written, logprobs), "prompt_tokens": len(ids),
                "kv_read": answer["kv_read_ratio"], "ms_per_token": answer["ms_per_token"],
                "begin": answer["text"][:KEPT], "end": answer["text"][-KEPT:]}

    def _prompt(self, client):
        low, high = 0, len(self.text)
        while high - low > 64:  # characters: a prompt need not be full
            middle = (low + high + 1) // 2
            fits = client.count(self._asked(middle)) <= self.context
            low, high = (middle, high) if fits else (low, middle)
        return self._asked(low)

    def _asked(self, characters):
        return f"{self.text[:characters]}\n\n{ASK}"


def stretches(ids: list[int], logprobs: list[float]) -> list[dict]:
    """Returns tokens, sum of log-probabilities and repeated 8-grams of each stretch.

    An 8-gram is repeated where the answer has had it before; it counts where it ends.
    """
    found, seen = [], set()
    for begin in range(0, len(ids), STRETCH):
        end = min(len(ids), begin + STRETCH)
        grams = repeated = 0
        for at in range(max(begin, GRAM - 1), end):
            gram = tuple(ids[at - GRAM + 1:at + 1])
            grams += 1
            repeated += gram in seen
            seen.add(gram)
        found.append({"tokens": end - begin, "logprob": sum(logprobs[begin:end]), "grams": grams,
                      "repeated": repeated, "distinct": len(set(ids[begin:end]))})
    return found


def texts(folder: pathlib.Path, most: int, characters: int) -> list[tuple[str, str]]:
    """Returns up to `most` texts that are long enough, one of each kind before a second one."""
    kinds: dict[str, list[pathlib.Path]] = {}
    for path in sorted(folder.glob("*.txt")):
        if path.stat().st_size >= characters:
            kinds.setdefault(path.stem.split("_")[0], []).append(path)
    order = [paths[n] for n in range(most) for paths in kinds.values() if n < len(paths)]
    if not order:
        raise ValueError(f"{folder} has no .txt of {characters:,} characters: run python3 -m "
                         f"tools.lab.corpora {folder}")
    return [(path.stem, path.read_text(encoding="utf-8")) for path in order[:most]]


def jobs(arguments: argparse.Namespace) -> Iterator[LongAnswer]:
    """Yields answers: of all documents in one mode before the other."""
    for length in arguments.length:
        context = length - arguments.answer_tokens
        for mode in arguments.mode or MODES:
            for name, text in texts(arguments.texts, arguments.documents, 3 * context):
                key = ["long", context, arguments.answer_tokens, mode, name, arguments.seed]
                yield LongAnswer(key, f"{name}, {mode}", text, context, arguments.answer_tokens,
                                 mode, arguments.seed)
