#!/usr/bin/env python3
"""Writes tests/golden/tokenizer: three small tokenizers and what Hugging Face tokenizers makes of 5,000
strings with each.

    llama/, qwen/, mistral/
                      model folders with tokenizer.json and tokenizer_config.json
    encodings.jsonl   one array a line: [flags, text, ids with llama, with qwen, with mistral]
    chats.json        chat templates, and conversations with what each template makes of them

Flags: "p" if special tokens in the text count. Ids are written in base 64, two digits each, most
significant first, in the alphabet DIGITS; the post-processor is left out.

Needs `tokenizers` and `transformers`; the same versions give the same files.
"""
import argparse
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import tokenizer_chats as chats
import tokenizer_corpus as corpus

SEED = 20
NUM_STRINGS = 5000
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
LLAMA_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                 r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# Of Mistral's tokenizers since Nemo (tekken): words end where a capital letter begins another.
MISTRAL_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def training_texts(rng: random.Random):
    lines = corpus.SENTENCES + [line.encode().decode("unicode_escape") for line in corpus.CODE]
    for _ in range(400):
        yield rng.choice([" ", "\n", "  ", "\n\n"]).join(rng.sample(lines, 4))
        yield " ".join(str(rng.randrange(10 ** rng.randint(1, 6))) for _ in range(8))


def train(pattern: str, normalizer, vocab_size: int, rng: random.Random, specials=()) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False,
                                  special_tokens=list(specials),
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(training_texts(rng), trainer)
    return tokenizer


def make_llama(rng: random.Random) -> dict:
    tokenizer = train(LLAMA_PATTERN, None, 1500, rng)
    names = ["begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id"]
    names += [f"reserved_special_token_{i}" for i in range(8)]
    tokenizer.add_special_tokens([AddedToken(f"<|{n}|>", special=True, normalized=False) for n in names])
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
            special_tokens=[("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))])])
    spec = json.loads(tokenizer.to_str())
    # As in Llama 3: whole words of the vocabulary that no merges lead to, found by ignore_merges;
    # merges in the older form.
    spec["model"]["ignore_merges"] = True
    spec["model"]["merges"] = [" ".join(m) for i, m in enumerate(spec["model"]["merges"]) if i % 9 != 8]
    return spec


def make_qwen(rng: random.Random) -> dict:
    tokenizer = train(QWEN_PATTERN, normalizers.NFC(), 1300, rng)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken(t, normalized=False)
                          for t in ("<tool_call>", "</tool_call>", "<think>", "</think>")])
    tokenizer.add_tokens([AddedToken("<|tail|>", rstrip=True, normalized=False),
                          AddedToken("wordy", single_word=True, normalized=True),
                          AddedToken("Cafe\u0301Bar", normalized=True)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return json.loads(tokenizer.to_str())


def make_mistral(rng: random.Random) -> dict:
    """As what is made of tekken.json: special tokens have the first ids, and pieces are looked up whole."""
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
             "[/TOOL_RESULTS]", "[TOOL_CALLS]", "<pad>", "[PREFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]
    tokenizer = train(MISTRAL_PATTERN, None, 1400, rng,
                      [AddedToken(name, special=True, normalized=False) for name in names])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    spec = json.loads(tokenizer.to_str())
    spec["model"]["ignore_merges"] = True
    spec["model"]["merges"] = [merge for i, merge in enumerate(spec["model"]["merges"]) if i % 11 != 10]
    return spec


class Strings:
    """Draws strings of many kinds."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.code = [line.encode().decode("unicode_escape") for line in corpus.CODE]
        self.kinds = [self.prose, self.prose, self.source, self.scripts, self.scripts, self.blanks,
                      self.marks, self.emoji, self.numbers, self.controls, self.quotes, self.mixed]

    def part_of(self, line: str) -> str:
        begin = self.rng.randrange(len(line))
        return line[begin:begin + self.rng.randint(4, 30)]

    def draw(self, items: list, low: int, high: int) -> str:
        return "".join(self.rng.choice(items) for _ in range(self.rng.randint(low, high)))

    def prose(self): return self.part_of(self.rng.choice(corpus.SENTENCES))
    def source(self): return self.part_of(self.rng.choice(self.code))
    def blanks(self): return self.draw(corpus.WHITE_SPACE + ["a", "7", "."], 1, 8)
    def emoji(self): return self.draw(corpus.EMOJI + [" ", "a", "!"], 1, 4)
    def quotes(self): return self.draw(corpus.CONTRACTIONS + [" ", "a"], 1, 4)
    def numbers(self): return self.draw(list("0123456789") * 3 + list(".,-+eE %\u0663\u216b\u00bd\u09ea"), 1, 20)
    def controls(self): return self.draw([chr(c) for c in range(32)] + [chr(c) for c in range(0x7f, 0xa1)] + ["x"], 1, 6)
    def marks(self): return self.draw(corpus.COMPOSED + corpus.COMBINING + list("aeo q"), 1, 6)

    def scripts(self):
        codes = [self.rng.choice(corpus.BLOCKS) + self.rng.randrange(128) for _ in range(self.rng.randint(1, 5))]
        return "".join(chr(c) for c in codes if not 0xd800 <= c < 0xe000)

    def mixed(self):
        parts = [self.rng.choice(self.kinds[:-1])()[:8] for _ in range(3)]
        return self.draw(corpus.WHITE_SPACE, 0, 1).join(parts)

    def specials(self):
        parts = [self.rng.choice(corpus.SPECIALS), self.draw(corpus.WHITE_SPACE, 0, 2), self.prose()[:6],
                 self.rng.choice(corpus.SPECIALS), self.draw(["", " ", "x", "\n"], 0, 1)]
        self.rng.shuffle(parts)
        return "".join(parts)

    def all(self):
        texts = ["", " ", "\n", "\0", "a" * 300, " " * 300, "\n" * 200, "ab" * 150, "9" * 200, "!?" * 100,
                 "\u0301" * 100, "é" * 100, "日本" * 60, "😀" * 50, " a" * 100, "\r\n" * 60]
        yield from (("", text) for text in texts)
        for i in range(200):
            text = self.specials()
            yield "", text
            yield "p", text
        for _ in range(NUM_STRINGS - len(texts) - 400):
            yield "", self.rng.choice(self.kinds)()


def to_digits(ids: list[int]) -> str:
    return "".join(DIGITS[i // 64] + DIGITS[i % 64] for i in ids)


def encode(tokenizer: Tokenizer, text: str, flags: str) -> str:
    tokenizer.encode_special_tokens = "p" not in flags
    return to_digits(tokenizer.encode(text, add_special_tokens=False).ids)


def make_chats(output: pathlib.Path) -> dict:
    """[template, add_generation_prompt, enable_thinking, [[role, content]..], ids] for each case."""
    roles = {"s": "system", "u": "user", "a": "assistant"}
    conversations = [[[roles[m[0]], m[2:]] for m in messages] for messages in chats.CONVERSATIONS]
    cases = []
    for name, (tokenizer_name, template) in chats.TEMPLATES.items():
        folder = output / tokenizer_name
        tokens = {k: v for k, v in json.loads((folder / "tokenizer_config.json").read_text()).items() if v}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"), chat_template=template, **tokens)
        for i, messages in enumerate(conversations):
            settings = {"add_generation_prompt": i % 4 != 3, "enable_thinking": i % 2 == 0}
            ids = tokenizer.apply_chat_template(
                [{"role": role, "content": content} for role, content in messages],
                tokenize=True, return_dict=False, **settings)
            cases.append([name, *settings.values(), messages, to_digits(ids)])
    return {"templates": chats.TEMPLATES, "cases": cases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--output", type=pathlib.Path, default=root / "tests/golden/tokenizer")
    output = parser.parse_args().output
    rng = random.Random(SEED)
    tokenizers = []
    configs = [("llama", make_llama(rng), "<|begin_of_text|>", "<|eot_id|>"),
               ("qwen", make_qwen(rng), None, "<|im_end|>"),
               ("mistral", make_mistral(random.Random(SEED)), "<s>", "</s>")]
    for name, spec, bos, eos in configs:
        folder = output / name
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
        (folder / "tokenizer.json").write_text(text + "\n")
        config = {"bos_token": bos, "eos_token": eos}
        (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
        tokenizers.append(Tokenizer.from_str(text))
        assert tokenizers[-1].get_vocab_size() <= 64 * 64
    with open(output / "encodings.jsonl", "w") as file:
        for flags, text in Strings(rng).all():
            row = [flags, text] + [encode(tokenizer, text, flags) for tokenizer in tokenizers]
            file.write(json.dumps(row, ensure_ascii=True, separators=(",", ":")) + "\n")
    with open(output / "chats.json", "w") as file:
        json.dump(make_chats(output), file, indent=None, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
