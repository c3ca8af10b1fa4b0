"""The shape of the functions of a Rust file: how long they are, and how deep their blocks lie.

A block is what braces enclose and is executed: no literal of a struct, no pattern, no macro's braces. Closures, arms and
`else` count like any other. The body of the function itself is depth 0."""

import re

LITERAL = re.compile(r"(?:^|[^\w])(?:[A-Z]\w*|Self)(?:::\w+)*(?:::<[^>]*>)?$")
CONTROL = re.compile(r"\b(?:if|while|match|for|impl|else|loop|in)\b[^{};]*$")
TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|b?r(?P<marks>\#*)".*?"(?P=marks)|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^\\'\n])'""", re.S)


def blank(text):
    """The text with comments and literals blanked; every line stays where it is."""
    return TOKEN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def functions(text):
    """Yields (name, first line, count of lines, depth of its deepest block)."""
    text = blank(text)
    for match in re.finditer(r"\bfn\s+(\w+)", text):
        start = _body(text, match.end())
        if start is None:
            continue
        end, depth = _walk(text, start)
        first, last = (text.count("\n", 0, position) + 1 for position in (match.start(), end))
        yield match[1], first, last - first + 1, depth


def _body(text, position):
    """Where the body begins; None for a declaration."""
    depth = 0
    while position < len(text):
        letter = text[position]
        depth += letter in "(["
        depth -= letter in ")]"
        if depth == 0 and letter in "{;":
            return position if letter == "{" else None
        position += 1
    return None


def _is_block(text, position):
    before = text[max(0, position - 200):position].rstrip()
    if before.endswith("!"):
        return False
    return not LITERAL.search(before) or bool(CONTROL.search(before.split("\n")[-1]))


def _walk(text, position):
    """The end of the block that begins at `position`, and the depth of the deepest block in it."""
    stack, deepest = [], 0
    while position < len(text):
        if text[position] == "{":
            stack.append(_is_block(text, position))
            deepest = max(deepest, sum(stack))
        elif text[position] == "}":
            stack.pop()
            if not stack:
                break
        position += 1
    return position, deepest - 1
