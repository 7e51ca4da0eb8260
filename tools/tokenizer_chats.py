"""Chat templates and conversations for make_tokenizer_golden.py.

The templates are short forms of what the model families use: the same output for plain messages,
without tools.
"""

LLAMA3 = (  # line ends as they are, as in the files of Llama 3
    "{% for message in messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.first %}{{ bos_token }}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")

LLAMA31 = r"""{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" + system + "<|eot_id|>" }}
{%- for m in messages %}
    {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

CHATML = r"""
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""

QWEN2 = r"""
{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\nYou are Qwen, a test of a template.<|im_end|>\n' }}
{%- endif %}""" + CHATML

QWEN3 = r"""
{%- set ns = namespace(open=true, last_query_index=messages|length - 1) %}
{%- for m in messages[::-1] %}
    {%- if ns.open and m.role == "user"
           and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}
        {%- set ns.open = false %}
        {%- set ns.last_query_index = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- set content = m.content %}
    {%- set thought = '' %}
    {%- if m.role == "assistant" and '</think>' in content %}
        {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {%- if m.role == "assistant" and loop.index0 > ns.last_query_index and (loop.last or thought) %}
        {{- '<|im_start|>assistant' }}
        {{- '\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\n' + content }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

THINKING = QWEN3.replace(r"{{- '<|im_start|>assistant\n' }}", r"{{- '<|im_start|>assistant\n<think>\n' }}").replace(
    "enable_thinking", "unused")

MISTRAL = r"""{{- bos_token }}
{%- for m in messages %}
    {%- if m['role'] == 'user' %}{{- '[INST]' + m['content'] + '[/INST]' }}
    {%- elif m['role'] == 'system' %}{{- '[SYSTEM_PROMPT]' + m['content'] + '[/SYSTEM_PROMPT]' }}
    {%- else %}{{- m['content'] + eos_token }}
    {%- endif %}
{%- endfor %}"""

GRANITE = r"""{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "You are a test of a template." %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>
' }}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>
' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}"""

PHI3 = (
    "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}"
    "{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}"
    "{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}"
    "{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}")

PHI4 = (
    "{% for message in messages %}{% if (message['role'] in ['system', 'user', 'assistant']) %}"
    "{{'<|im_start|>' + message['role'] + '<|im_sep|>' + message['content'] + '<|im_end|>'}}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}")

SEED_OSS = r"""{%- set budget = thinking_budget if thinking_budget is defined else -1 %}
{%- for message in messages %}
    {{- bos_token + message.role + '
' }}
    {%- if message.role == 'assistant' and '</think>' in message.content %}
        {{- message.content.split('</think>') | last | trim }}
    {%- else %}{{- message.content | trim }}
    {%- endif %}
    {{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{- bos_token + 'assistant
' + ('<think>' if budget == 0 else '') }}{%- endif %}"""

SMOLLM3 = r"""{%- set mode = '/think' if enable_thinking | default(true) else '/no_think' %}
{%- set first = messages[0].content if messages and messages[0].role == 'system' else '' %}
{{- '<|im_start|>system
## Metadata

Reasoning Mode: ' + mode + '

' + first | replace('/', '') + '<|im_end|>
' }}
{%- for message in messages if message.role != 'system' %}
    {{- '<|im_start|>' ~ message.role ~ '
' ~ (message.content if message.content is string else '') ~ '<|im_end|>
' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant
' + ('' if mode == '/think' else '<think>

</think>
') }}
{%- endif %}"""

# name -> (tokenizer, template)
TEMPLATES = {
    "llama3": ("llama", LLAMA3), "llama31": ("llama", LLAMA31), "chatml": ("qwen", CHATML),
    "qwen2": ("qwen", QWEN2), "qwen3": ("qwen", QWEN3), "thinking": ("qwen", THINKING), "mistral": ("mistral", MISTRAL), "granite": ("mistral", GRANITE),
    "phi3": ("mistral", PHI3), "phi4": ("mistral", PHI4), "seed_oss": ("mistral", SEED_OSS),
    "smollm3": ("mistral", SMOLLM3),
}

# Each message is the first letter of its role, a colon and the content.
CONVERSATIONS = [
    ["u:Hello, who are you?"],
    ["s:You are terse.", "u:Why?"],
    ["u:"],
    ["s:", "u:  spaced out \n"],
    ["u:\n\nIt begins with line ends.\n\n"],
    ["u:\u00a0\u2003\x1cwhite\x1f\u3000", "a: yes \t", "u:Cafe\u0301 e\u0301"],
    ["s:First.", "u:One", "a:Two", "u:Three", "a:Four", "u:Five?"],
    ["u:One", "s:A system message later.", "u:Two"],
    ["u:Say it", "a:I say it"],
    ["u:A", "a:B", "a:C"],
    ["a:Nobody asked."],
    ["s:Only this."],
    ["u:Sum?", "a:<think>\nOne and one.\n</think>\n\nTwo.", "u:And three?"],
    ["u:Sum?", "a:<think>\n\nOne and one.\n\n</think>\n\n\nTwo."],
    ["u:Sum?", "a:no begin</think>Two.", "a:<think>x</think>\ny</think>z"],
    ["u:Sum?", "a:a <think>b <think> c\n</think>", "u:<tool_response>5</tool_response>", "a:six"],
    ["u:<tool_response>5</tool_response>", "a:<think>q</think>six"],
    ["u:don't 日本語 👨‍👩‍👧‍👦 12345", "a:ok"],
]
