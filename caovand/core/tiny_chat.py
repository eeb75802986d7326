"""The answers and chat template of the tiny models that caovan makes.

These models only encode which token follows which: each piece of the text occurs once and leads to
the next, the last one leads to the end of the answer, and any other token leads to the first.
"""

from __future__ import annotations

import re

TEXT = (
    "Hello! I am a tiny demo model: each word leads to exactly one next, so this is all that my"
    " weights can say; for real answers set [model] path."
)
PIECES = tuple(re.findall(r" ?[A-Za-z]+| ?[^A-Za-z\s]", TEXT))

START, END = "<|im_start|>", "<|im_end|>"
CALL, END_OF_CALL = "<tool_call>", "</tool_call>"
TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nYou may call these functions:\n<tools>"
    "{%- for tool in tools %}\n{{ tool | tojson }}{%- endfor %}\n</tools>\n"
    "For a call answer with <tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
    "{%- endif %}"
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n"
    "{%- if message.content is string %}{{ message.content }}"
    "{%- elif message.content %}{%- for part in message.content %}{{ part.text }}{%- endfor %}"
    "{%- endif %}"
    "{%- for call in message.tool_calls or [] %}<tool_call>\n"
    "{{ call.function | tojson }}\n</tool_call>{%- endfor %}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
