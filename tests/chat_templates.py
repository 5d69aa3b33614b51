"""Chat templates in the manner of the families' own: each shows the constructs that its family relies on."""

# ruff: noqa: E501

from __future__ import annotations

FAMILIES: dict[str, str] = {
    "llama 3": """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|im_start|>system\n" ~ "Today: " + date_string + "\n\n" }}
{%- if tools is not none %}{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}{%- endif %}
{{- system_message }}{{- "<|im_end|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|im_start|>' + message['role'] + '\n'+ message['content'] | trim + '<|im_end|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one at a time") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}
    {%- elif message.role == "tool" %}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}""",
    "mistral": """{%- if messages[0]["role"] == "system" %}{%- set system_message = messages[0]["content"] %}
{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}{%- if not (message.role == "tool" or message.tool_calls is defined) %}
{%- if (message["role"] == "user") != (ns.index % 2 == 0) %}{{- raise_exception("roles must alternate") }}{%- endif %}
{%- set ns.index = ns.index + 1 %}{%- endif %}{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}{%- if message["role"] == "user" %}
{%- if tools is not none and (message == user_messages[-1]) %}{{- "[TOOLS][" }}
{%- for tool in tools %}{%- set tool = tool.function %}{{- '{"type": "function", "function": {' }}
{%- for key, val in tool.items() if key != "return" %}{%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}
{{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}{%- endfor %}{%- endif %}
{%- if loop.last and system_message is defined %}{{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
{%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
{%- elif message.tool_calls is defined and message.tool_calls is not none %}
{%- for tool_call in message.tool_calls %}{%- set out = tool_call.function|tojson %}{{- out[:-1] }}{{- "}" }}{%- endfor %}
{%- elif message["role"] == "assistant" %}{{- " " + message["content"]|trim + eos_token|default("") }}{%- endif %}
{%- endfor %}""",
    "qwen 3": """{%- if tools %}{{- '<|im_start|>system\n' }}{{- "# Tools\n<tools>" }}
{%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}{{- "\n</tools><|im_end|>\n" }}{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}
{%- if ns.multi_step_tool and message.role == "user" and message.content is string and not
(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
{%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}{%- endif %}{%- endfor %}
{%- for message in messages %}{%- set content = message.content if message.content is string else '' %}
{%- if message.role == "assistant" %}{%- set reasoning_content = '' %}
{%- if '</think>' in content %}{%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1] %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}
{%- if loop.index0 > ns.last_query_index %}
{{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content }}
{%- else %}{{- '<|im_start|>' + message.role + '\n' + content }}{%- endif %}
{%- if message.tool_calls %}{%- for tool_call in message.tool_calls %}{%- if tool_call.function %}
{%- set tool_call = tool_call.function %}{%- endif %}{{- '<tool_call>\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
{%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
{{- '}\n</tool_call>' }}{%- endfor %}{%- endif %}{{- '<|im_end|>\n' }}
{%- elif message.role == "tool" %}{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}
{%- endif %}{{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
{%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
{%- else %}{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}""",
    "gemma 3": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}{%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}{%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set first_user_prefix = "" -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<|im_start|>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>model\n' }}{%- endif -%}""",
    "granite": """{%- macro shown(value, depth=0) -%}
{%- if value is mapping -%}{%- for k, v in value | dictsort -%}{{ "  " * depth }}{{ k }}:
{{ shown(v, depth + 1) }}{%- endfor -%}
{%- elif value is sequence and value is not string -%}{%- for v in value -%}{{ shown(v, depth + 1) }}{%- endfor -%}
{%- else -%}{{ value }}
{% endif -%}
{%- endmacro -%}
{%- set strings = messages | map(attribute='role') | unique | sort | join(', ') -%}{{ strings | upper }}
{%- if documents -%}{%- for document in documents -%}{{ document['title'] | default('none') ~ ': ' ~ document['text'] }}
{% endfor -%}{%- endif -%}
{%- if tools -%}{{ shown(tools) }}{%- endif -%}
{%- for message in messages recursive -%}
{%- if message.role == 'tool' -%}{%- continue -%}{%- endif -%}
{%- generation -%}<|im_start|>{{ message.role }}{{ loop.cycle('a', 'b') }}|{{ (message.content or '')[:40] }}{%- endgeneration -%}
{%- if loop.index > 50 -%}{%- break -%}{%- endif -%}
{%- endfor -%}
{{- {'b': [1, 2.5, none, true], 'a': 'é<'} | tojson(ensure_ascii=true, sort_keys=true, indent=1) }}
{{- messages | rejectattr('role', 'in', ['tool', 'user']) | list | length }}""",
    "phi 4": """{% for message in messages %}
{%- if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}{{ '<|im_start|>' + message['role'] + message['content'] + '[tools]' + message['tools'] + '[/tools]<|im_end|>' }}
{%- elif message['role'] in ['user', 'system'] and message['content'] %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
{%- elif (message['role'] == 'assistant') and (message.get('tool_calls', none) is none) %}{{ '<|im_start|>assistant\n' + message['content'] + '<|im_end|>\n' }}
{%- elif message.tool_calls %}{% for call in message.tool_calls %}{{ call['function'].arguments.items() | list | tojson }}{% endfor %}
{%- endif %}{% endfor %}
{%- if tools is iterable and tools is not string and tools | count > 0 %}{{ tools[0]['function']['name'].upper() | lower | replace('w', 'W', 1) }}{% endif %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "olmo 2": """{{ bos_token }}{% for message in messages %}
{%- if message['role'] == 'system' %}{{ '<|im_start|>system\n' + message['content'] + '\n' }}
{%- elif message['role'] == 'user' %}{{ '<|im_start|>user\n' + message['content'] + '\n' }}
{%- elif message['role'] == 'assistant' and message['content'] is string %}
{%- if not loop.last %}{{ '<|im_start|>assistant\n' + message['content'] + (eos_token | default('')) + '\n' }}{% else %}{{ '<|im_start|>assistant\n' + message['content'] + (eos_token | default('')) }}{% endif %}
{%- elif message['role'] == 'tool' %}{%- set text %}({{ loop.revindex0 }} left: {{ message.content }}){% endset %}{{ text | trim | title }}
{%- endif %}
{%- if loop.last and add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}{% endfor %}""",
    "smollm3": """{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}
{%- set reasoning_mode = "/think" if enable_thinking else "/no_think" -%}
{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}{%- set reasoning_mode = "/no_think" -%}
  {%- elif "/think" in system_message -%}{%- set reasoning_mode = "/think" -%}{%- endif -%}
  {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{{- "<|im_start|>system\nReasoning: " ~ reasoning_mode ~ "\n\n" -}}
{%- if custom_instructions -%}{{- custom_instructions + "\n\n" -}}{%- else -%}{{- "You are helpful." + (" Think." if reasoning_mode == "/think" else "") -}}{%- endif -%}
{%- if xml_tools or python_tools or tools -%}
  {%- set ns = namespace(xml_tool_string="<tools>\n", count=0) -%}
  {%- for tool in (xml_tools or tools)[:] -%}
    {%- set ns.xml_tool_string = ns.xml_tool_string ~ (tool | string) ~ "\n" -%}{%- set ns.count = ns.count + 1 -%}
  {%- endfor -%}
  {{- ns.xml_tool_string + "</tools>" ~ ns.count -}}
{%- endif -%}
{{- "<|im_end|>\n" -}}
{%- for message in messages -%}
  {%- set content = message.content if message.content is string else "" -%}
  {%- if message.role == "user" -%}{{ "<|im_start|>" + message.role + "\n" + content + "<|im_end|>\n" }}
  {%- elif message.role == "assistant" -%}
    {%- generation -%}
    {%- if reasoning_mode == "/think" -%}{{ "<|im_start|>assistant\n" + content.lstrip("\n") + "<|im_end|>\n" }}
    {%- else -%}{{ "<|im_start|>assistant\n" + "<think>\n\n</think>\n" + content.lstrip("\n") + "<|im_end|>\n" }}{%- endif -%}
    {%- endgeneration -%}
  {%- elif message.role == "tool" -%}{{ "<|im_start|>user\n" + content + "<|im_end|>\n" }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<|im_start|>assistant\n" if reasoning_mode == "/think" else "<|im_start|>assistant\n<think>\n\n</think>\n" }}{%- endif -%}""",
    "hermes": """{%- macro python_type(spec) %}
{%- set names = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
{%- if names[spec.type] is defined %}{{- names[spec.type] }}
{%- elif spec.type == "array" %}{{- "list[" + python_type(spec['items']) + "]" }}
{%- elif spec.type == "object" %}{%- if spec.additionalProperties is defined %}{{- "dict[str, " + python_type(spec.additionalProperties) + ']' }}{%- else %}{{- "dict" }}{%- endif %}
{%- elif spec.type is iterable %}{{- "Union[" }}{%- for t in spec.type %}{{- python_type({"type": t}) }}{%- if not loop.last %}{{- "," }}{%- endif %}{%- endfor %}{{- "]" }}
{%- else %}{{- "Any" }}{%- endif %}
{%- endmacro %}
{{- bos_token }}
{%- if tools %}{{- '<|im_start|>system\nFunctions: <tools> ' }}
{%- for tool in tools %}{%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
{{- '{"name": "' + tool.name + '", "description": "' + tool.name + '(' }}
{%- for name, fields in tool.parameters.properties | items %}{{- name + ": " + python_type(fields) }}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}
{{- ")" }}{%- if tool.return is defined %}{{- " -> " + python_type(tool.return) }}{%- endif %}
{{- " - " + tool.description + "\n\n" }}
{%- for name, fields in tool.parameters.properties | items %}{%- if loop.first %}{{- "    Args:\n" }}{%- endif %}{{- "        " + name + "(" + python_type(fields) + "): " + (fields.description | default("") | trim) }}{%- endfor %}
{{- '", "parameters": ' }}
{%- if tool.parameters.properties | length == 0 %}{{- "{}" }}{%- else %}{{- tool.parameters | tojson }}{%- endif %}{{- "}" }}{%- if not loop.last %}{{- "\n" }}{%- endif %}
{%- endfor %}{{- " </tools><|im_end|>\n" }}{%- endif %}
{%- for message in messages %}
{%- if message.role == "user" or message.role == "system" or (message.role == "assistant" and message.tool_calls is not defined) %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
{%- elif message.role == "assistant" %}{{- '<|im_start|>' + message.role }}
{%- for tool_call in message.tool_calls %}{{- '\n<tool_call>\n' }}{%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
{{- '{"name": "%s", "arguments": %s}' | format(tool_call.name, tool_call.arguments | tojson) }}{{- '\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}
{%- elif message.role == "tool" %}{%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<|im_start|>tool\n' }}{%- endif %}
{{- '<tool_response>\n' + message.content }}{%- if not loop.last %}{{- '\n</tool_response>\n' }}{%- else %}{{- '\n</tool_response>' }}{%- endif %}
{%- if not loop.last and loop.nextitem.role != "tool" %}{{- '<|im_end|>' }}{%- elif loop.last %}{{- '<|im_end|>' }}{%- endif %}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}""",
}
