"""Trains the tokenizer: byte-level BPE in the form of Llama 3's, over the generated language.

    python3 -m tools.needle.train_tokenizer models/needle

Digits stay single tokens because training splits them one by one; the file that is written has
Llama 3's own expression. Punctuation never merges with a line break, because no training text
has one after it: sentences and questions can then be encoded apart and joined.
"""

import argparse
import json
import pathlib
import random
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from . import keys, patterns, prompt, tasks, words

LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SINGLE_DIGITS = LLAMA3_REGEX.replace(r"\p{N}{1,3}", r"\p{N}")
SPECIAL_TOKENS = (prompt.BEGIN_OF_TEXT, prompt.END_OF_TEXT, "<|pad|>", "<|start_header_id|>",
                  "<|end_header_id|>", "<|eot_id|>")
MAX_VOCABULARY = 2048

# The document is the system message; a user message is a question about it.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '\\n\\nQuestion: ' + message['content'] + '\\nAnswer:' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}"
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}")


def corpus(seed: int = 7):
    """Yields text in which every word of the lists is about as frequent as the others."""
    rng = random.Random(seed)
    everything = [word for name in dir(words) if name.isupper() for word in getattr(words, name)]
    for _ in range(400):
        rng.shuffle(everything)
        yield " " + " ".join(everything)
    for _ in range(4000):
        yield " " + patterns.filler(rng)
        key, other = (f" {rng.choice(words.ADJECTIVES)} {rng.choice(words.NOUNS)}" for _ in "ab")
        for kind, draw in keys.DRAW_VALUE.items():
            yield patterns.fact(kind, key, draw(rng)).split(" is ")[0]
            yield " " + patterns.ask_one(kind, key)
            yield " " + patterns.ask_all(kind, key, 4)
        yield " " + patterns.assignment(key, other)
        yield " " + patterns.ask_chain("1", 5)
        yield " " + patterns.ask_common(5)
        yield " " + patterns.ask_frequent(3)
        yield from ("The", "There", "When", "Question:", "Answer:", "\n\n", " List:", " Text:")


def train(vocabulary: int, texts: Iterable[str], expression: str) -> Tokenizer:
    """Trains the merges and returns the tokenizer in its final form.

    `expression` splits the texts while merges are learned; what is returned splits by Llama 3's.
    """
    tokenizer = Tokenizer(models.BPE(ignore_merges=False))
    tokenizer.pre_tokenizer = _pre_tokenizer(expression)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(SPECIAL_TOKENS), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = _pre_tokenizer(LLAMA3_REGEX)
    tokenizer.add_special_tokens(
        [AddedToken(content, special=True, normalized=False) for content in SPECIAL_TOKENS])
    tokenizer.post_processor = _add_begin_of_text(tokenizer)
    return tokenizer


def _pre_tokenizer(expression: str):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(expression), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _add_begin_of_text(tokenizer: Tokenizer):
    from tokenizers import processors
    begin = prompt.BEGIN_OF_TEXT
    return processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A {begin}:1 $B:1",
            special_tokens=[(begin, tokenizer.token_to_id(begin))])])


def write_folder(tokenizer: Tokenizer, folder: pathlib.Path, positions: int,
                 chat_template: str | None) -> None:
    """Writes tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": prompt.BEGIN_OF_TEXT,
        "eos_token": prompt.END_OF_TEXT,
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": positions,
    }
    if chat_template is not None:
        config["chat_template"] = chat_template
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="model folder to write into")
    parser.add_argument("--vocabulary", type=int, default=MAX_VOCABULARY,
                        help="number of tokens, special ones included (default: %(default)s)")
    arguments = parser.parse_args()
    least = 256 + len(SPECIAL_TOKENS)
    if not least <= arguments.vocabulary <= MAX_VOCABULARY:
        parser.error(f"--vocabulary must be between {least} and {MAX_VOCABULARY}")
    tokenizer = train(arguments.vocabulary, corpus(), SINGLE_DIGITS)
    write_folder(tokenizer, arguments.folder, tasks.MAX_LENGTH, CHAT_TEMPLATE)
    print(f"{arguments.folder}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
