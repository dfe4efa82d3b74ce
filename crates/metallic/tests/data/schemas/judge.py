"""Has PyPI's `jsonschema` judge answers: METALLIC_TEST_ANSWERS=FILE names a file for the tests to write them to; then
`python3 judge.py FILE`. Installs nothing; formats are checked as far as the packages for them are there.

Numbers are read as decimals: divided as doubles, 300.91 is no multiple of 0.01. Patterns that Python cannot read are counted."""

import json
import re
import sys
from decimal import Decimal

import jsonschema


def read(text):
    return json.loads(text, parse_float=Decimal)


def main(path):
    schemas, answers, cut, unread, wrong = set(), 0, 0, 0, []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            case = read(line)
            schema, text = case["schema"], case["text"]
            if case["reason"] != "Stop":
                cut += 1
                continue
            schemas.add(json.dumps(schema, sort_keys=True, default=str))
            answers += 1
            try:
                judge = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
                judge(schema, format_checker=judge.FORMAT_CHECKER).validate(read(text))
            except re.error:
                unread += 1
            except Exception as error:  # whatever the judge trips over is worth a look
                wrong.append(f"{schema} gave {text}: {type(error).__name__}: {str(error).splitlines()[0]}")
    print(*wrong, sep="\n")
    print(f"{answers} answers by {len(schemas)} schemas, {len(wrong)} wrong, {unread} not to be judged; {cut} more were cut short")
    return 1 if wrong else 0


sys.exit(main(sys.argv[1]))
