"""The demonstration with models/code: it continues a file of a long package under both policies.

The package is this project's own Python source: every clone has it, and the model has never read it.
"""
import dataclasses
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tools.needle import bpe  # noqa: E402  pylint: disable=wrong-import-position

MODEL = ROOT / "models" / "code"
FOLDERS = ("tools", "tests")
POLICIES = ("wave", "full")  # what wave has read, full finds in the cache
TAIL_TOKENS = 256  # of the file itself, behind the cut: both policies are fed them one by one
NEW_TOKENS = 64    # that each policy writes on its own; fewer than TAIL_TOKENS
FUNCTION_LINES = 40  # within so many the cut moves back to the head of a function
# A cut at the beginning of a line that is not empty leaves the tokens of both sides as they are.
LINES = re.compile(r"(?<=\n)(?=[ \t]*\S)")


@dataclasses.dataclass(frozen=True)
class Text:
    """A package up to a line of one of its files, and what follows there."""
    context: str
    tail: str
    context_tokens: int  # with the one that begins a text
    tail_tokens: int
    file: str            # the one that is cut
    lines: int           # of it in the context


def package():
    """Yields (path, text) of the package's ASCII files, which the encoder covers, in order."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if text.isascii():
                yield path.relative_to(ROOT), text


def make_text(tokens):
    """Returns the beginning of the package, at most `tokens` long; the last ones are its tail.

    Raises ValueError when the package is shorter.
    """
    encoder = bpe.Encoder(MODEL)
    parts, sizes, where = [], [], []
    total = 1  # the one that begins a text
    for name, text in package():
        line = 0
        for part in LINES.split(f"# file: {name}\n{text}\n"):
            size = len(encoder.encode(part))
            if total + size > tokens:
                return _cut(parts, sizes, where)
            parts.append(part)
            sizes.append(size)
            where.append((str(name), max(0, line - 1)))
            line += part.count("\n")
            total += size
    raise ValueError(f"the Python source in {' and '.join(FOLDERS)} has {total:,} tokens, and "
                     f"{tokens:,} are wanted: --tokens {total} is possible")


def _cut(parts, sizes, where):
    """Divides the lines behind the head of a function, if there is one near enough."""
    first, tail = len(parts), 0
    while tail < TAIL_TOKENS:
        first -= 1
        tail += sizes[first]
    for i in range(first, max(1, first - FUNCTION_LINES), -1):
        head = parts[i - 1].strip()
        if head.startswith("def ") and head.endswith(":"):
            first, tail = i, sum(sizes[i:])
            break
    return Text("".join(parts[:first]), "".join(parts[first:]), 1 + sum(sizes[:first]), tail,
                *where[first])


def continue_with(server, context, policy):
    """Reads the context, then finds it in the cache and goes on from there.

    Returns both answers, or None when a request failed.
    """
    # The first reading of each policy finds nothing; the second one what wave has read.
    salt = ["--cache-salt", "demo"] if policy == "full" else []
    read = server.generate(context, policy, 1, [*salt, "--quiet"], shown=False)
    if read is None:
        return None
    print(f"\n{policy}:", flush=True)
    written = server.generate(context, policy, NEW_TOKENS, ["--ignore-eos", "--quiet"])
    print(flush=True)
    return None if written is None else (read, written)


def same_beginning(one, other):
    """Returns how many tokens two answers have in common before the first that differs."""
    for i, (a, b) in enumerate(zip(one["token_ids"], other["token_ids"])):
        if a != b:
            return i
    return min(len(one["token_ids"]), len(other["token_ids"]))


def report(answers, scores):
    print("\npolicy  tokens read  first token  again (tokens cached)  ms/token  KV read  perplexity")
    perplexity = {one["policy"]: one["perplexity"] for one in scores["policies"]}
    for policy, (read, written) in answers.items():
        print(f"{policy:<7} {read['prompt_tokens']:>11,} {read['ttft_s']:>10.2f} s "
              f"{written['ttft_s']:>6.2f} s {'(' + format(written['cached_tokens'], ',') + ')':>14} "
              f"{written['ms_per_token']:>9.1f} "
              f"{100 * written['kv_read_ratio']:>7.1f}% {perplexity[policy]:>11.4f}")
    same = same_beginning(*(written for _, written in answers.values()))
    agreement = scores["agreements"][0]
    print(f"\nOn their own, both write the same {same} of {NEW_TOKENS} tokens"
          + (" first; one that differs leads elsewhere." if same < NEW_TOKENS else "."))
    print(f"Fed the {scores['scored']} tokens that follow in the file, one by one, they would take "
          f"the same token {100 * agreement['same_top1_share']:.1f} % of\nthe time, and a token's "
          f"log-probability changes by {agreement['mean_logprob_difference']:.4f} on average.")


def run(server, tokens):
    """Returns the exit code: 0 if everything was answered."""
    print(f"taking {tokens:,} tokens of this project's Python source", flush=True)
    try:
        text = make_text(tokens)
    except ValueError as error:
        sys.exit(f"demo: {error}")
    with server:
        server.wait_until_ready()
        print(f"\n{text.file}, cut behind its line {text.lines}, and the files before it: "
              f"{text.context_tokens:,} tokens;\nits last lines:\n")
        print("".join(text.context.splitlines(keepends=True)[-6:]), end="", flush=True)
        answers = {}
        for policy in POLICIES:
            answers[policy] = continue_with(server, text.context, policy)
            if answers[policy] is None:
                print(f"demo: the request under {policy} failed", file=sys.stderr)
                return 1
        scores = server.score(text.context + text.tail, text.context_tokens)
        if scores is None:
            print("demo: scoring failed", file=sys.stderr)
            return 1
    report(answers, scores)
    return 0
