"""A client of the server's HTTP API, with the standard library alone."""

import dataclasses
import http.client
import json
import urllib.error
import urllib.request

POLICIES = ("full", "wave", "streaming")


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a request asks of attention; `name` is how it was written."""
    name: str
    policy: str
    retrieval_ratio: float | None = None

    @staticmethod
    def parse(text: str) -> "Setting":
        """Reads full, wave, streaming, or wave:RATIO."""
        policy, _, ratio = text.partition(":")
        if policy not in POLICIES or (ratio and policy != "wave"):
            raise ValueError(f"{text}: needs {', '.join(POLICIES)} or wave:RATIO")
        share = float(ratio) if ratio else None
        if share is not None and not 0 <= share <= 1:
            raise ValueError(f"{text}: a ratio is between 0 and 1")
        return Setting(text, policy, share)

    def fields(self) -> dict:
        """Returns what a request says of it."""
        found: dict = {"policy": self.policy}
        if self.retrieval_ratio is not None:
            found["retrieval_ratio"] = self.retrieval_ratio
        return found


@dataclasses.dataclass(frozen=True)
class Scored:
    """What the server says of given tokens: log-probabilities, and whether greedy takes each."""
    texts: list[str]
    logprobs: list[float | None]
    greedy: list[bool | None]
    usage: dict

    def behind(self, lead: str) -> "Scored":
        """Returns the tokens whose text begins behind `lead`, with which the text begins."""
        at, first = 0, 0
        while first < len(self.texts) and at < len(lead):
            at += len(self.texts[first])
            first += 1
        return Scored(self.texts[first:], self.logprobs[first:], self.greedy[first:], self.usage)


class Client:
    """Asks a server. Every call raises OSError with the server's words when it fails."""

    def __init__(self, address: str, timeout_s: float = 600):
        self._address = address.rstrip("/")
        self._timeout_s = timeout_s

    def tokens(self, text: str) -> list[int]:
        """Returns the ids of a conversation of one user's message, ready for an answer."""
        return self._post("/tokenize", {"messages": _user(text)})["tokens"]

    def count(self, text: str) -> int:
        """Returns how many those are."""
        return self._post("/tokenize", {"messages": _user(text), "return_tokens": False})["count"]

    def chat(self, text: str, setting: Setting, most: int) -> tuple[str, dict]:
        """Returns a greedy answer of at most `most` tokens, and the usage."""
        found = self._post("/v1/chat/completions", {
            "messages": _user(text), "max_tokens": most, "temperature": 0, "reuse": "exact",
            **setting.fields()})
        return found["choices"][0]["message"]["content"] or "", found["usage"]

    def score(self, text: str, continuation: str, setting: Setting) -> Scored:
        """Measures an answer, token by token, in decode steps under a setting."""
        found = self._post("/score", {"messages": _user(text), "continuations": [continuation],
                                      **setting.fields()})
        return _scored(found["continuations"][0], found["usage"])

    def score_ids(self, prompt: list[int], continuation: list[int], setting: Setting) -> Scored:
        """The same of token ids."""
        found = self._post("/score", {"prompt": prompt, "continuations": [continuation],
                                      **setting.fields()})
        return _scored(found["continuations"][0], found["usage"])

    def read(self, ids: list[int]) -> Scored:
        """Measures all tokens of a prompt by exact prefill."""
        found = self._post("/score", {"prompt": ids, "prompt_logprobs": 0, "policy": "full"})
        return _scored(found["prompt"], found["usage"])

    def model(self) -> tuple[str, int]:
        """Returns the model's name and its longest context."""
        name = self._get("/v1/models")["data"][0]["id"]
        found = self._post("/tokenize", {"prompt": "a", "return_tokens": False})
        return name, found["max_model_len"]

    def _get(self, path):
        return self._ask(urllib.request.Request(self._address + path))

    def _post(self, path, body):
        return self._ask(urllib.request.Request(
            self._address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}))

    def _ask(self, request):
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            words = error.read().decode(errors="replace")
            raise OSError(f"{request.full_url} answered {error.code}: {words}") from error
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"{request.full_url}: {error!r}") from error


def _user(text):
    return [{"role": "user", "content": text}]


def _scored(found, usage):
    return Scored(found["tokens"], found["token_logprobs"], found["is_greedy"], usage)
