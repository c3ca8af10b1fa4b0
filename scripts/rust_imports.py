"""The imports between the files of one crate, read from its sources.

`graph(root)` follows `mod` from the root file and resolves each path that starts at `crate`, `self`,
`super` or a module in scope to the file that defines the item, through `pub use`. Files of tests
(`#[cfg(test)] mod ...;`) and inline test modules are left out. Macros are not expanded."""

import pathlib
import re

TEST_GATE = r"#\[cfg\((?:test|any\(test[^\]]*|all\(test[^\]]*)\)\]"


def strip(text):
    """The text without comments, literals and inline test modules; the count of lines changes."""
    text = re.sub(r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.|[^\'\\])\'',
                  lambda match: "" if match[0].startswith("/") else '""', text, flags=re.S)
    text = re.sub(r"\bpub\(in [^)]*\)", "pub", text)  # The path of a visibility imports nothing.
    while True:
        found = re.search(TEST_GATE + r"\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?(mod\s+\w+|impl|fn\s+\w+|use)\b", text)
        if not found:
            return text
        end = _end_of_item(text, found.end())
        text = text[:found.start()] + text[end:]


def _end_of_item(text, position):
    """Behind the `;` or the closing brace of the item at `position`."""
    depth = 0
    while position < len(text):
        letter = text[position]
        if letter == "{":
            depth += 1
        elif letter == "}":
            depth -= 1
            if depth == 0:
                return position + 1
        elif letter == ";" and depth == 0:
            return position + 1
        position += 1
    return position


class Module:
    def __init__(self, file, parent, name):
        self.file, self.parent, self.name = file, parent, name
        self.children, self.uses, self.globs, self.resolved = {}, {}, [], {}

    def root(self):
        return self if self.parent is None else self.parent.root()


def _load(file, parent, name, folder, modules):
    module = Module(file, parent, name)
    module.text = strip(file.read_text())
    modules.append(module)
    declaration = r"((?:#\[[^\]]*\]\s*)*)(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;"
    for attributes, child in re.findall(declaration, module.text):
        path = re.search(r"#\[path\s*=", attributes)
        candidates = [folder / f"{child}.rs", folder / child / "mod.rs"]
        found = next((candidate for candidate in candidates if candidate.exists()), None)
        if path or found is None:
            continue
        module.children[child] = _load(found, module, child, folder / child, modules)
    return module


def _split(tree):
    """The branches of a use tree, as (segments, name)."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        path, _, alias = tree.partition(" as ")
        segments = [segment.strip() for segment in path.split("::")]
        last = segments[-1]
        if last == "self":
            segments = segments[:-1]
        return [(segments, alias.strip() or segments[-1] if segments else "")]
    head = [segment.strip() for segment in tree[:brace].split("::") if segment.strip()]
    inside, depth, start, branches = tree[brace + 1:tree.rindex("}")], 0, 0, []
    for index, letter in enumerate(inside + ","):
        depth += letter == "{"
        depth -= letter == "}"
        if letter == "," and depth == 0:
            if inside[start:index].strip():
                branches += _split(inside[start:index])
            start = index + 1
    return [(head + segments, name if segments else head[-1]) for segments, name in branches]


def _base(module, first):
    if first == "crate":
        return module.root()
    if first == "self":
        return module
    if first == "super":
        return module.parent
    return None


def resolve(module, segments):
    """The module whose file defines what `segments` name, or None for what is not of this crate."""
    known = module.root().resolved
    key = (id(module), tuple(segments))
    if key not in known:
        known[key] = None  # What leads back to itself names nothing of this crate.
        known[key] = _resolve(module, segments)
    return known[key]


def _resolve(module, segments):
    base = _base(module, segments[0])
    rest = segments[1:] if base is not None else segments
    if base is None:
        if segments[0] in module.children:
            base = module
        elif segments[0] in module.uses and module.uses[segments[0]][0] != segments[0]:
            return resolve(module, module.uses[segments[0]] + segments[1:])
        else:
            return None
    while rest:
        name = rest[0]
        if name == "super":
            base = base.parent
        elif name in base.children:
            base = base.children[name]
        elif name in base.uses:
            return resolve(base, base.uses[name] + rest[1:]) or base
        else:
            for glob in base.globs:
                target = resolve(base, glob)
                if target is not None and (name in target.children or name in target.uses or _defines(target, name)):
                    return resolve(target, ["self"] + rest) or target
            return base
        rest = rest[1:]
    return base


def _defines(module, name):
    return re.search(rf"\b(?:struct|enum|trait|fn|type|const|static|union|mod)\s+{name}\b", module.text) is not None


def graph(root):
    """{file: set of files it imports} of the crate whose root file is `root`."""
    modules = []
    _load(root, None, "crate", root.parent, modules)
    for module in modules:
        for tree in re.findall(r"\buse\s+([^;]+);", module.text):
            for segments, name in _split(tree):
                if name == "*":
                    module.globs.append(segments[:-1])
                elif segments:
                    module.uses[name] = segments
    edges = {module.file: set() for module in modules}
    for module in modules:
        body = re.sub(r"\bpub(?:\([^)]*\))?\s+use\s+[^;]+;|\bmod\s+\w+\s*;", "", module.text)
        used = re.sub(r"\buse\s+[^;]+;", "", body)
        own = {name for tree in re.findall(r"\buse\s+([^;]+);", body) for _, name in _split(tree)}
        # A re-export imports nothing unless the file also uses the name.
        paths = [path for name, path in module.uses.items() if name in own or re.search(rf"\b{name}\b", used)]
        paths += [segments for tree in re.findall(r"\buse\s+([^;]+);", body) for segments, name in _split(tree) if name == "*"]
        paths += [re.split(r"\s*::\s*", path) for path in
                  re.findall(r"(?<![\w:])(?:crate|self|super|[a-z_]\w*)(?:\s*::\s*\w+)+", used)]
        for path in paths:
            target = resolve(module, [segment for segment in path if segment != "*"])
            if target is not None and target is not module:
                edges[module.file].add(target.file)
    return edges


def circles(edges):
    """The strongly connected components of more than one file, largest first."""
    index, low, stack, on_stack, found, counter = {}, {}, [], set(), [], [0]

    def visit(node):
        index[node] = low[node] = counter[0]
        counter[0] += 1
        stack.append(node)
        on_stack.add(node)
        for other in edges[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on_stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while True:
                other = stack.pop()
                on_stack.discard(other)
                component.append(other)
                if other is node or other == node:
                    break
            if len(component) > 1:
                found.append(sorted(component))

    for node in edges:
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)
