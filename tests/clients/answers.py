"""Reads what an answer says, whichever of the APIs it is of, streamed or whole: its text and its calls."""
import json


def _events(text):
    blocks = (block.split("\n") for block in text.split("\n\n"))
    data = ["\n".join(line[6:] for line in block if line.startswith("data: ")) for block in blocks]
    return [json.loads(one) for one in data if one and one != "[DONE]"]


def _call(name, arguments):
    return {"name": name, "arguments": json.loads(arguments or "{}") if isinstance(arguments, str) else arguments}


def _of_chat(answer):
    message = answer["choices"][0]["message"]
    calls = [_call(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]
    return message.get("content") or "", calls


def _of_chat_events(events):
    text, calls = "", {}
    for delta in (choice["delta"] for event in events for choice in event["choices"] if choice["index"] == 0):
        text += delta.get("content") or ""
        for call in delta.get("tool_calls") or []:
            known = calls.setdefault(call["index"], {"name": "", "arguments": ""})
            for field in known:
                known[field] += call["function"].get(field) or ""
    return text, [_call(**calls[index]) for index in sorted(calls)]


def _of_responses(answer):
    text = "".join(part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"])
    return text, [_call(item["name"], item["arguments"]) for item in answer["output"] if item["type"] == "function_call"]


def _of_messages(answer):
    text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
    return text, [_call(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"]


def _of_messages_events(events):
    blocks = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = {**event["content_block"], "json": ""}
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            if delta["type"] == "text_delta":
                block["text"] += delta["text"]
            elif delta["type"] == "input_json_delta":
                block["json"] += delta["partial_json"]
    for block in blocks.values():
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"] or "{}")
    return _of_messages({"content": list(blocks.values())})


def read(path, text):
    """The text and the calls, as {"name", "arguments"}, of the first choice. Raises KeyError and the like where the
    answer has not the form of its API."""
    path = path.split("?")[0]
    streamed = not text.lstrip().startswith("{")
    answer = _events(text) if streamed else json.loads(text)
    if path == "/v1/chat/completions":
        return _of_chat_events(answer) if streamed else _of_chat(answer)
    if path == "/v1/responses":
        return _of_responses(answer[-1]["response"] if streamed else answer)
    if path == "/v1/messages":
        return _of_messages_events(answer) if streamed else _of_messages(answer)
    if streamed:
        return "".join(choice["text"] for event in answer for choice in event["choices"]), []
    return answer["choices"][0]["text"], []
