#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the functions of each class of src/: public, private, and friends.

Nobody can remember a class with a hundred functions. The check counts the functions that a class
declares itself, each overload separately. Constructors, destructors, operators and deleted functions do
not count; protected functions and friends count as private. It fails for a class with more than 15
public or 15 private functions that is not in the list of exceptions below. It also fails for an
exception that is no longer needed.
Usage: check_class_sizes.py [--all | --self-test] [SRC]; --all prints all classes.
"""
import pathlib
import re
import sys
import tempfile

LIMIT = 15
# Class: (most public, most private), and the reason.
EXCEPTIONS = {
    "Allocator": (18, 0, "seventeen accessors of its parts, and one of all blocks"),
    "Context": (21, 0, "eleven accessors of its parts; the others are its life and its gate"),
    "Device": (16, 2, "ten accessors of its parts; the others choose and trim its memory"),
    "DeviceStats": (16, 1, "a counter, a gauge and their kin, each written and read"),
}
TOKEN = re.compile(r'[A-Za-z_]\w*|::|->|\[\[|\]\]|[{}();:,<>=~&*\[\]+\-!/%^|?.]|\d[\w.\']*')


def code_of(text):
    """The text without comments, strings, characters and preprocessor lines."""
    text = re.sub(r'R"(\w*)\(.*?\)\1"', '""', text, flags=re.S)
    text = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'',
                  " ", text, flags=re.S)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", " ", text, flags=re.M)


def end_of_braces(tokens, begin):
    """The place behind the brace that closes the one at `begin`."""
    depth = 0
    for place in range(begin, len(tokens)):
        depth += {"{": 1, "}": -1}.get(tokens[place], 0)
        if depth == 0:
            return place + 1
    return len(tokens)


def is_function(words, name):
    """Whether a member's words, up to its body or end, declare a function that counts."""
    if words[:1] == ["template"]:
        depth = 0
        for place, word in enumerate(words[1:], 1):
            depth += {"<": 1, ">": -1}.get(word, 0)
            if depth == 0:
                words = words[place + 1:]
                break
    if "(" not in words or words[0] in ("using", "typedef", "static_assert", "friend", "enum"):
        return False
    if "operator" in words or words[-2:] == ["=", "delete"] or words[-2:] == ["=", "default"]:
        return False
    place = words.index("(")
    if place and words[place - 1] == "alignas":
        return is_function(words[words.index(")") + 1:] or [""], name)
    if "=" in words[:place] or "~" in words[:place] or place == 0:
        return False
    called = words[place - 1]
    pointer = words[place + 1] == "*"
    return not pointer and called != name and re.fullmatch(r"[A-Za-z_]\w*", called) is not None


def classes_in(tokens):
    """Yields (name, public, private) of each class and struct, inner ones too."""
    place = 0
    while place < len(tokens):
        if tokens[place] in ("class", "struct") and (place == 0 or tokens[place - 1] not in ("enum", "<", ",")):
            ahead = place + 1
            if tokens[ahead] == "alignas":
                ahead = tokens.index(")", ahead) + 1
            while ahead < len(tokens) and tokens[ahead] not in "{;()=":
                ahead += 1
            if ahead < len(tokens) and tokens[ahead] == "{":
                yield from class_at(tokens, place, ahead)
                place = end_of_braces(tokens, ahead)
                continue
        place += 1


def class_at(tokens, begin, brace):
    """Yields the class whose body opens at `brace`, and those in it."""
    head = tokens[begin + 1:brace]
    if "alignas" in head:
        head = head[head.index(")") + 1:]
    head = [word for word in head if re.fullmatch(r"[A-Za-z_]\w*", word)] or ["(unnamed)"]
    name = head[0]
    public = tokens[begin] == "struct"
    counts = {True: 0, False: 0}
    words, place, end = [], brace + 1, end_of_braces(tokens, brace) - 1
    parentheses = 0
    while place < end:
        token = tokens[place]
        if not words and token in ("public", "private", "protected") and tokens[place + 1] == ":":
            public = token == "public"
            place += 2
            continue
        if not words and token in ("class", "struct"):
            ahead = place
            while tokens[ahead] not in "{;(=":
                ahead += 1
            if tokens[ahead] == "{":
                yield from class_at(tokens, place, ahead)
                place = end_of_braces(tokens, ahead)
                words = ["(inner)"]
                continue
        parentheses += {"(": 1, ")": -1}.get(token, 0)
        if token == "{" and parentheses == 0:
            place = end_of_braces(tokens, place)
            # A brace of an initialiser continues the declaration; the brace of a function's body ends it.
            if tokens[place] not in (";", ","):
                counts[public] += is_function(words, name)
                words = []
            continue
        if token == ";" and parentheses == 0:
            if words[:1] == ["friend"]:
                counts[False] += "(" in words or "class" in words
            elif words:
                counts[public] += is_function(words, name)
            words = []
        else:
            words.append(token)
        place += 1
    yield name, counts[True], counts[False]


def sizes(src):
    """All classes under src as (public, private, name, file)."""
    found = []
    for path in sorted(src.rglob("*")):
        if path.suffix in (".h", ".cpp"):
            tokens = TOKEN.findall(code_of(path.read_text()))
            found += [(public, private, name, path.relative_to(src).as_posix())
                      for name, public, private in classes_in(tokens)]
    return sorted(found, reverse=True)


def check(src):
    """The errors under src."""
    errors, needed = [], set()
    for public, private, name, path in sizes(src):
        most_public, most_private = EXCEPTIONS.get(name, (LIMIT, LIMIT, ""))[:2]
        if public > LIMIT or private > LIMIT:
            needed.add(name)
        if public > most_public or private > most_private:
            errors.append(f"{path}: {name} has {public} public and {private} private functions "
                          f"(at most {most_public} and {most_private})")
    errors += [f"check_class_sizes.py: {name} needs no exception" for name in EXCEPTIONS if name not in needed]
    return errors


def self_test():
    """The counts of sample classes are right."""
    text = '''// Text.
class Small { public: Small(); ~Small(); int a() const { return b(); } template <typename F> void c(const F& f);
  static int d(int x = 1); using E = int(); enum class G { h, i }; struct Inner { int j(); int k = 0; };
  bool operator==(const Small&) const; Small(const Small&) = delete; std::vector<int (*)(int)> l;
  explicit Small(int x) : b_{x}, m_(x) {} [[gnu::noinline]] void n();
 private: friend class Other; friend void o(Small&); int b() const; void (*p_)(); int b_{0}; std::atomic<int> q_{0};
  alignas(128) int m_ = f(1); };
class alignas(64) Final final : public Small<int> { void r(); };
'''
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "a.h").write_text(text)
        found = {name: (public, private) for public, private, name, _ in sizes(pathlib.Path(folder))}
    expected = {"Small": (4, 3), "Inner": (1, 0), "Final": (0, 1)}
    if found != expected:
        print(f"self-test: {found} instead of {expected}", file=sys.stderr)
        return 1
    return 0


def main(arguments):
    options = {argument for argument in arguments if argument.startswith("--")}
    paths = [argument for argument in arguments if not argument.startswith("--")]
    src = pathlib.Path(paths[0]) if paths else pathlib.Path(__file__).resolve().parent.parent / "src"
    if "--self-test" in options:
        return self_test()
    if "--all" in options:
        for public, private, name, path in sizes(src):
            print(f"{public:4} public {private:4} private  {name:24} {path}")
        return 0
    errors = check(src)
    print(*errors, sep="\n", end="\n" if errors else "", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
