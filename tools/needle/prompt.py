"""The prompt form, in one place: what the model was trained on, and what every caller must send.

    <document>\\n\\nQuestion: <question>\\nAnswer:

The tokenizer puts <|begin_of_text|> in front. The model answers with a space, the answer and
<|end_of_text|>, which ends the generation.
"""

BEGIN_OF_TEXT = "<|begin_of_text|>"
END_OF_TEXT = "<|end_of_text|>"
_BEFORE_QUESTION = "\n\nQuestion: "
_BEFORE_ANSWER = "\nAnswer:"


def question_text(question: str) -> str:
    """Returns what follows a document: the question and the cue to answer."""
    return f"{_BEFORE_QUESTION}{question}{_BEFORE_ANSWER}"


def prompt_text(document: str, question: str) -> str:
    """Returns the whole prompt, without <|begin_of_text|>."""
    return document + question_text(question)


def completion_text(answer: str) -> str:
    """Returns what the model is to write after the prompt, without <|end_of_text|>."""
    return f" {answer}"
