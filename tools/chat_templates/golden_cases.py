"""Small templates with every construct, for make_golden.py: section -> list of templates.

Each is rendered with VARIABLES by jinja2, and what comes out is what the worker's interpreter must write;
"error" where jinja2 fails.
"""
VARIABLES = {
    "name": "World", "empty": "", "nothing": None, "yes": True, "no": False, "n": 7, "big": 18446744073709551615,
    "x": 2.5, "items": [3, 1, 2], "words": ["b", "A", "c"], "text": "  Hello, <b>World</b> & 'all' \"here\"\n",
    "lines": "one\n\ntwo\nthree\n", "umlaut": "äÖß 日本", "d": {"b": 1, "a": [True, None, 1.5], "C": {"k": "v"}},
    "people": [{"name": "Ann", "age": 30, "tags": {"k": 1}}, {"name": "bob", "age": 20}, {"name": "Cy", "age": 30}],
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi \n"},
                 {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes"}],
}

CASES = {
    "lexer": [
        "a{{ 1 }}b", "a {{- 1 -}} b", "a \n {{- 1 -}} \n b", "a\n  {% if yes %}\n  b\n  {% endif %}\nc\n",
        "a\n  {%+ if yes %}\n  b\n  {%+ endif +%}\nc\n\n", "a {# comment #} b\n  {# line #}\nc {#- trimmed -#} d",
        "{% raw %} {{ x }} {% y %} {% endraw %}z", "a\n  {%- raw -%} \n {{ x }} {%- endraw %}\nz", "{{ '}}' }}{{ '%}' }}{{ \"{#\" }}",
        "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ {'a': {'b': 1}}}}", "a\r\nb\rc{% if yes %}\r\nd{% endif %}\r\n",
        "{{ 1_000 }} {{ 1.5e3 }} {{ 2e-2 }} {{ 0.1 }} {{ 100000000000000000.0 }}", "{{ 'a' 'b' \"c\" }}",
        "{", "{{ '{' }}{ {", "{%- if yes -%} x {%- endif -%}", "  {{ 1 }}\n  {{ 2 }}", "{{", "{% if", "{{ 'a }}", "{# x",
        "{{ a ! b }}", "{{ (1 }}", "{{ 1) }}", "{% raw %}x", "\n\n{% if yes %}\n\na{% endif %}\n\n", "   {% if yes %}a{% endif %}   {% if yes %}b{% endif %}\n",
        "x{% if yes %}   {% endif %}y", "{{ umlaut }}é{% set ü = 1 %}{{ ü }}",
    ],
    "string_literal": [
        r"{{ 'a\nb\tc\\d\'e\"f' }}", r"{{ '\x41\u00e9\U0001f600\101\0' | length }}", r"{{ '\x41\u00e9\U0001f600\101' }}",
        r"{{ '\d\q\%' }}", "{{ 'a\\\nb' }}", r"{{ '\x4' }}", r"{{ '\u12' }}", "{{ 'line\nbreak' }}", r"{{ '\a\b\f\v' | length }}",
    ],
    "expression_parser": [
        "{{ 1 + 2 * 3 - 4 / 2 }}", "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }}", "{{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 2 ** -1 }}",
        "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ 'a' != 'b' }} {{ 3 >= 3 > 2 <= 2 }}", "{{ not yes and no or yes }} {{ not (yes and no) }}",
        "{{ 'a' if yes }}{{ 'b' if no }}{{ 'c' if no else 'd' if no else 'e' }}", "{{ 1 in items }} {{ 9 not in items }} {{ 'or' in name }} {{ 'b' in d }} {{ not 1 in items }}",
        "{{ 'a' ~ 1 ~ none ~ yes ~ 2.0 }}", "{{ 1 ~ 2 + 3 }}", "{{ (1,) }} {{ () }} {{ (1, 2) }} {{ 1, 2 }}", "{{ [1, 'a', [2]] }} {{ [1, 2,] }} {{ {} }} {{ {'a': 1, 2: 'b',} }}",
        "{{ items[0] }} {{ items[-1] }} {{ items[9] }} {{ items.1 }} {{ name[1] }} {{ d['b'] }} {{ d.b }} {{ d.C.k }} {{ d.zzz }}",
        "{{ items[1:] }} {{ items[:-1] }} {{ items[::-1] }} {{ items[::2] }} {{ name[1:3] }} {{ name[::-1] }} {{ name[-3:] }} {{ umlaut[1:3] }} {{ umlaut[::2] }}",
        "{{ items[5:1] }} {{ name[10:] }} {{ items[-9:2] }} {{ name[:] }} {{ items[2:0:-1] }}", "{{ -n|abs }} {{ (-n)|abs }} {{ +n }} {{ --n }}",
        "{{ n is odd }} {{ n is not even }} {{ n is divisibleby 7 }} {{ n is divisibleby(3) }} {{ name is string and n is number }}", "{{ n is in [7] }} {{ 'x' is eq 'x' }}",
        "{{ missing is defined }} {{ missing is not defined }} {{ d.q is undefined }} {{ missing.x }}", "{{ yes and 'v' }} {{ no or 'w' }} {{ none or 0 or [] }}",
        "{{ name.upper().lower() }} {{ 'x'.join(words) }} {{ name.split('o')[0] }}", "{{ 1 +}}", "{{ * }}", "{{ a b }}", "{{ }}", "{{ d. }}", "{{ x is }}", "{{ f(a=1, 2) }}",
        "{{ dict(a=1, **{'b': 2}) }} {{ range(*[1, 4])|list }}", "{{ '%s' % 1 + 'a' }}", "{{ true }} {{ True }} {{ none }} {{ None }} {{ false }}", "{{ x is float is string }}",
        "{{ 'a' if missing else 'b' }} {{ 1 if 2 > 1 else 0 }}", "{{ [1,2]|length == 2 and 'ab'|length > 1 }}", "{{ items|length - 1 }} {{ 'a' + 'b'|upper }} {{ ('a' + 'b')|upper }}",
    ],
    "operators": [
        "{{ 'a' + 'b' }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ 'ab' * 3 }} {{ 2 * [1] }} {{ 'a' * -1 }}", "{{ 1 / 2 }} {{ 4 / 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2.0 ** 0.5 }}",
        "{{ yes + 1 }} {{ yes == 1 }} {{ 1.0 == 1 }} {{ '1' == 1 }} {{ none == no }} {{ [1, 2] == [1, 2] }} {{ (1,) == [1] }} {{ {'a': 1} == {'a': 1.0} }}",
        "{{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ (1,) < (1, 0) }} {{ 'Z' < 'a' }}", "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ none + 1 }}", "{{ missing + 'a' }}", "{{ 'a' + missing }}",
        "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 1.0 % 0 }}", "{{ 'a' < 1 }}", "{{ {} < {} }}", "{{ [] in [[]] }} {{ {} == {} }} {{ 1 in {1: 2} }}", "{{ 1 in 'abc' }}", "{{ 'a' in missing }}",
        "{{ 'a' in n }}", "{{ missing == missing }} {{ missing == none }} {{ missing != 1 }}", "{{ {[1]: 2} }}", "{{ {(1, 2): 3}[(1, 2)] }}", "{{ big + 1 }} {{ big * 2 }} {{ -big }}", "{{ 10 ** 20 }}",
        "{{ -'a' }}", "{{ 5 % 3.5 }} {{ -0.0 }} {{ 1e16 }} {{ 1e-5 }} {{ 123456789.123 }} {{ 1e300 * 10 }}", "{{ range(3) == range(3) }} {{ 2 in range(3) }}",
    ],
    "access": [
        "{% for c in 'aé' %}[{{ c }}]{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for x in n %}{% endfor %}", "{% for x in missing %}a{% else %}b{% endfor %}", "{{ none.x }}", "{{ none['x'] }}",
        "{{ missing.a.b }}", "{{ missing['a'] }}", "{{ d.items }}" "x" if False else "{{ d.get('b') }}{{ d['get'] is defined }}", "{{ name.zzz is defined }}{{ n.real is defined or true }}", "{{ items['a'] is defined }}",
        "{{ d.keys()[0] is defined }} {{ d.keys()|list }} {{ d.keys()|length }} {{ d.items() }} {{ d.values() }} {{ d.keys() }}", "{{ items[1.5] is defined }}", "{{ items[missing] is defined }}", "{{ none|length }}", "{{ n|length }}",
        "{{ missing|length }} {{ d|length }} {{ umlaut|length }}", "{{ missing[1:] }}", "{{ items['a':] }}", "{{ items[::0] }}", "{{ d[1:] is defined }}", "{{ (1, 2, 3)[1:] }}", "{{ range(10)[2:5]|list }} {{ range(5)[-1] }}",
    ],
    "printing": [
        "{{ d }}", "{{ [1.0, 'a', none, yes, missing] }}", "{{ ['it\\'s', 'say \"x\"', 'both \\' \"'] }}", "{{ ['\\n\\t\\r\\\\', '\\x00\\x7f', 'é日\\u200b\\ue000'] }}", "{{ (1,) }} {{ () }}", "{{ {} }} {{ [] }}",
        "{{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e21 }} {{ 1.5e-7 }} {{ 100.0 }} {{ 12345678901234567.0 }} {{ 0.0001 }} {{ 0.00001 }}", "{{ -1.5 }} {{ -7 }} {{ big }}", "{{ d|tojson }}", "{{ d|tojson(indent=2) }}", "{{ d|tojson(indent=0) }}",
        "{{ [[], {}, [[1]], '<&>\\'\"é\\u2028\\x01\\x7f\\\\/']|tojson }}", "{{ 'é😀'|tojson(ensure_ascii=true) }}", "{{ {'b': 1, 'a': 2}|tojson(sort_keys=true, separators=(',', ':')) }}", "{{ {1: 'a', none: 'b', yes: 'c', 1.5: 'd'}|tojson }}",
        "{{ missing|tojson }}", "{{ (1, 'a')|tojson }} {{ big|tojson }} {{ 1e400|tojson }}", "{{ range(3)|tojson }}", "{{ [{}, []]|tojson(indent=4) }}", "{{ text|tojson }}", "{{ {(1,): 2}|tojson }}", "{{ 1.0|tojson }} {{ 'a'|tojson(indent='\t') }} {{ [1]|tojson(indent='--') }}",
    ],
    "text_filters": [
        "[{{ text|trim }}] [{{ 'xxaxx'|trim('x') }}] [{{ n|trim }}]", "{{ name|upper }} {{ umlaut|upper }} {{ umlaut|lower }} {{ 'hello wORLD-x (y'|title }} {{ 'hELLO'|capitalize }}", "{{ 'aaa'|replace('a', 'b') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'ab'|replace('', '-') }} {{ n|replace(7, 8) }}",
        "{{ words|join(', ') }} {{ items|join }} {{ people|join('/', attribute='name') }} {{ 'abc'|join('-') }} {{ [none, 1.5]|join('|') }}", "{{ n|string + 'x' }} {{ none|string }} {{ text|safe|trim }}", "{{ '<a href=\"x\">&\\'</a>'|e }} {{ '<'|escape }}",
        "{{ lines|indent }}|", "{{ lines|indent(2, true) }}|", "{{ lines|indent(2, blank=true) }}|", "{{ 'a\nb'|indent(first=true, width='> ') }}|", "{{ ''|indent(2, true) }}|", "{{ '%s-%s'|format(1, 'a') }} {{ '%(a)s'|format(a=1) }}",
        "{{ '12'|int }} {{ '12.7'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ 3.9|int }} {{ -3.9|int }} {{ yes|int }} {{ ' 5 '|int }} {{ none|int }} {{ '-8'|int + 1 }}", "{{ '1.5'|float }} {{ 'x'|float }} {{ 'x'|float(2.0) }} {{ 3|float }}",
        "{{ -5|abs }} {{ (-5)|abs }} {{ (-1.5)|abs }}", "{{ 42.55|round }} {{ 42.55|round(1) }} {{ 42.55|round(1, 'floor') }} {{ 42.1|round(0, 'ceil') }} {{ 2.5|round }} {{ 3.5|round }} {{ 7|round }}", "{{ 'a b  c'|wordcount }} [{{ 'ab'|center(7) }}]", "{{ missing|upper }}|{{ missing|trim }}|",
        "{{ 'a'|replace('a') }}", "{{ 'a'|upper(1) }}", "{{ 'a'|round }}", "{{ items|join(missing) }}", "{{ missing|int }}", "{{ 'abc'|nosuchfilter }}",
    ],
    "list_filters": [
        "{{ items|length }} {{ items|count }} {{ name|length }}", "{{ missing|default('x') }} {{ empty|default('x') }}| {{ empty|default('x', true) }} {{ none|d('y') }} {{ missing|d }}|", "{{ items|first }} {{ items|last }} {{ name|first }} {{ name|last }} {{ []|first }}| {{ ''|last }}|",
        "{{ items|list }} {{ name|list }} {{ d|list }}", "{{ items|reverse|list }} {{ name|reverse }}", "{{ d|items|list }} {{ missing|items|list }}", "{{ items|sort }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ items|sort(reverse=true) }} {{ people|sort(attribute='age')|map(attribute='name')|list }}",
        "{{ d|dictsort }} {{ d|dictsort(true) }} {{ {'a': 2, 'b': 1}|dictsort(by='value') }} {{ d|dictsort(reverse=true)|length }}", "{{ ['a', 'A', 'b', 'a']|unique|list }} {{ people|unique(attribute='age')|map(attribute='name')|list }}", "{{ items|min }} {{ items|max }} {{ words|min }} {{ words|max(case_sensitive=true) }} {{ []|max }}|",
        "{{ items|sum }} {{ people|sum(attribute='age') }} {{ items|sum(start=10) }}", "{{ range(7)|batch(3)|list }} {{ range(4)|batch(3, 'x')|list }}", "{{ words|map('upper')|list }} {{ people|map(attribute='tags.k', default=0)|list }} {{ items|map('string')|join('+') }}",
        "{{ items|select('odd')|list }} {{ items|reject('odd')|list }} {{ [0, 1, '', 'a']|select|list }} {{ items|select('>', 1)|list }}", "{{ people|selectattr('age', 'equalto', 30)|map(attribute='name')|list }} {{ people|rejectattr('tags')|map(attribute='name')|list }} {{ people|selectattr('tags', 'defined')|list|length }}",
        "{{ messages|selectattr('role', 'in', ['user', 'assistant'])|list|length }}", "{% if []|select %}always{% endif %}", "{% set g = items|map('string') %}{{ g|list }}{{ g|list }}", "{{ none|selectattr('x')|list }}", "{{ none|map('upper')|list }}", "{% set g = n|selectattr('x') %}ok", "{{ n|selectattr('x')|list }}",
        "{{ people|groupby('age')|map('first')|list }}", "{% for age, group in people|groupby('age') %}{{ age }}:{{ group|map(attribute='name')|join(',') }};{% endfor %}", "{{ items|map|list }}", "{{ items|map('nosuch')|list }}", "{{ d|first }} {{ d|attr('b') is defined }}", "{{ [3, 'a']|sort }}", "{{ items|batch(0)|list|length > 9 }}" if False else "{{ items|first }}",
    ],
    "predicates": [
        "{{ missing is defined }} {{ name is defined }} {{ nothing is none }} {{ missing is none }} {{ nothing is defined }}", "{{ name is string }} {{ d is mapping }} {{ items is mapping }} {{ items is sequence }} {{ name is sequence }} {{ d is sequence }} {{ n is sequence }} {{ (1,) is sequence }} {{ range(2) is sequence }} {{ missing is sequence }}",
        "{{ items is iterable }} {{ name is iterable }} {{ n is iterable }} {{ d is iterable }} {{ missing is iterable }} {{ none is iterable }}", "{{ n is number }} {{ x is number }} {{ yes is number }} {{ name is number }}", "{{ n is integer }} {{ yes is integer }} {{ x is integer }} {{ x is float }} {{ n is float }}",
        "{{ yes is boolean }} {{ n is boolean }} {{ yes is true }} {{ no is false }} {{ 1 is true }} {{ 0 is false }}", "{{ n is odd }} {{ n is even }} {{ 2.0 is even }} {{ n is divisibleby(7) }}", "{{ 1 is eq 1 }} {{ 1 is equalto(2) }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 1 is lessthan(2) }} {{ 1 is le 1 }} {{ 2 is gt 1 }} {{ 2 is greaterthan 1 }} {{ 2 is ge 3 }}",
        "{{ 1 is in [1] }} {{ 'a' is in 'abc' }} {{ 'a' is not in {} }}", "{{ none is sameas none }} {{ 1 is sameas true }}", "{{ 'AB' is upper }} {{ 'Ab' is upper }} {{ 'ab' is lower }}", "{{ range is callable }} {{ n is callable }} {{ name.upper is callable }}", "{{ 'upper' is filter }} {{ 'odd' is test }} {{ 'nosuch' is filter }}", "{{ 1 is nosuchtest }}", "{{ 'a' is odd }}", "{{ name is escaped }}",
    ],
    "string_methods": [
        "[{{ text.strip() }}] [{{ 'xxaxx'.strip('x') }}] [{{ ' a '.lstrip() }}] [{{ ' a '.rstrip() }}] [{{ '\\n\\nab\\n'.lstrip('\\n') }}]", "{{ 'a b  c'.split() }} {{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b c '.split(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a b'.split(maxsplit=1) }}",
        "{{ lines.splitlines() }} {{ 'a\\r\\nb'.splitlines(true) }}", "{{ name.startswith('Wo') }} {{ name.endswith('x') }} {{ name.startswith(('a', 'W')) }} {{ name.startswith('or', 1) }} {{ name.endswith('') }}", "{{ 'aXbX'.replace('X', '-') }} {{ 'aXbX'.replace('X', '-', 1) }}",
        "{{ 'hello world'.title() }} {{ \"they're\".title() }} {{ 'hELLO'.capitalize() }} {{ umlaut.upper() }} {{ umlaut.lower() }}", "{{ name.find('o') }} {{ name.find('z') }} {{ name.rfind('l') }} {{ name.index('r') }} {{ umlaut.find('日') }} {{ name.find('o', 2) }} {{ 'abab'.rfind('ab', 0, 3) }}", "{{ 'x'.index('y') }}", "{{ 'aaa'.count('a') }} {{ 'aaa'.count('aa') }} {{ 'ab'.count('') }}",
        "{{ ', '.join(words) }} {{ '-'.join('abc') }}", "{{ ','.join([1]) }}", "{{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ ''.isdigit() }} {{ 'AB'.isupper() }} {{ 'ab1'.islower() }}", "[{{ 'a'.ljust(3) }}] [{{ 'a'.rjust(3, '.') }}] [{{ 'ab'.center(5) }}] [{{ 'abc'.center(6, '*') }}]",
        "{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('=') }}", "{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.txt'.removesuffix('.txt') }}", "{{ 'a'.nosuch() }}", "{{ 'a'.split('') }}", "{{ 'a'.startswith(1) }}", "{{ 'a'.strip(1) }}",
    ],
    "methods": [
        "{{ d.get('b') }} {{ d.get('z') }} {{ d.get('z', 5) }} {{ d.get('z', default=1) if false else '' }}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{{ d.keys()|list }} {{ d.values()|list }}", "{{ items.index(1) }} {{ items.count(3) }} {{ (1, 1).count(1) }}", "{{ items.append(1) }}", "{{ d.update({'a': 1}) }}", "{{ d.pop('a') }}", "{{ items.append is defined }}",
        "{{ {'items': [1]}['items'] }} {{ {'keys': 1}['keys'] }}", "{{ d.copy() == d }} {{ items.copy() }}", "{{ items.index(99) }}", "{{ d.get([]) }}",
    ],
    "format": [
        "{{ '%s|%r|%d|%5d|%-5d|%05d|%.2f|%x|%%' % ('a', 'b', 3, 4, 5, 6, 1.005, 255) }}", "{{ '%s' % name }} {{ '%d' % 3.9 }} {{ '%(b)s %(C)s' % d }} {{ '%5s|%-5s|%.2s' % ('ab', 'cd', 'efg') }}", "{{ '%s %s' % 1 }}", "{{ '%s' % (1, 2) }}", "{{ '%d' % 'a' }}",
        "{{ '{} {}'.format(1, 'a') }} {{ '{1}{0}'.format(1, 2) }} {{ '{a}'.format(a=5) }} {{ '{{}}'.format() }}", "{{ '{:5}|{:>5}|{:<5}|{:^5}|{:05d}|{:.3f}|{:,}|{:*^7}'.format('a', 'b', 'c', 'd', 42, 3.14159, 1234567, 'm') }}", "{{ '{:5}|{:x}|{:,.2f}'.format(7, 255, 1234.5) }}", "{{ '{}'.format() }}",
    ],
    "globals": [
        "{{ range(3)|list }} {{ range(1, 4)|list }} {{ range(5, 0, -2)|list }} {{ range(0) }}" if False else "{{ range(3)|list }} {{ range(1, 4)|list }} {{ range(5, 0, -2)|list }} {{ range(0)|list }}", "{{ range(200000)|length }}", "{{ range(1, 2, 0) }}", "{% set ns = namespace(a=1, b='x') %}{% set ns.a = ns.a + 1 %}{% set ns.c = 3 %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns.zzz is defined }}",
        "{{ dict(a=1, b=2) }} {{ dict([('x', 1)]) }} {{ dict({'q': 1}, r=2) }}", "{% set j = joiner('; ') %}{% for i in items %}{{ j() }}{{ i }}{% endfor %}", "{{ raise_exception('no ' ~ name) }}", "{% set n.x = 1 %}", "{% set d.x = 1 %}", "{{ strftime_now('%%') }}{{ strftime_now('') }}", "{{ namespace(a=1).a }}",
    ],
    "loop": [
        "{% for i in items %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}", "{% for i in items %}[{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }}]{% endfor %}", "{% for i in items %}{{ loop.cycle('a', 'b') }}{% endfor %}",
        "{% for i in items %}{% for j in 'ab' %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "{{ loop is defined }}{% for i in items %}{{ loop.zzz is defined }}{% endfor %}",
    ],
    "renderer": [
        "{% if no %}a{% elif n == 7 %}b{% else %}c{% endif %}", "{% for i in items if i > 1 %}{{ i }}{{ loop.length }}{% else %}none{% endfor %}", "{% for i in [] %}x{% else %}none{% endfor %}", "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in items %}{% endfor %}",
        "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1 %}{% for i in items %}{% set a = i %}{{ a }}{% endfor %}{{ a }}", "{% for i in items %}{{ v is defined }}{% set v = 1 %}{% endfor %}{{ v is defined }}",
        "{% if yes %}{% set q = 5 %}{% endif %}{{ q }}", "{% set b %}x{{ n }}{% set inner = 1 %}{% endset %}[{{ b }}]{{ inner is defined }}", "{% set b | upper | replace('X', 'y') %}x{{ name }}{% endset %}{{ b }}", "{% filter upper %}a{{ name }}{% endfilter %}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
        "{% macro m(a, b=2, c=b) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(a=4, c=5) }}{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}x{{ n }}{% endcall %}",
        "{% macro m() %}[{{ caller(1, 2) }}]{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}", "{% macro f(k) %}{% if k > 0 %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "{% macro g() %}{{ outer }}{% endmacro %}{% set outer = 'late' %}{{ g() }}", "{% for i in items %}{% macro h() %}{{ i }}{% endmacro %}{{ h() }}{% endfor %}", "{% set r = m2 is defined %}{{ r }}",
        "{% generation %}{{ name }}{% set z = 1 %}{% endgeneration %}{{ z is defined }}", "{% set ns = namespace(found=false) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}", "{% if x %}", "{% for i in %}{% endfor %}", "{% endif %}", "{% nosuchtag %}", "{% break %}", "{% macro m(a=1, b) %}{% endmacro %}",
        "{% set true = 1 %}", "{{ m.name if false else '' }}{% macro mm() %}{% endmacro %}{{ mm.name }}", "{% for m in messages %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}|{% endfor %}", "{% for k, v in d|dictsort %}{{ k }}{% endfor %}", "{% for m in messages[::-1] %}{{ m.role }}{% endfor %}", "{% call name() %}{% endcall %}",
    ],
}
