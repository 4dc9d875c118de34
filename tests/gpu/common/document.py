# SPDX-License-Identifier: Apache-2.0
"""Generated parts of a Markdown file, each between two marks that carry its name, Markdown tables, and the
machines that results come from.
"""
import os
import re

HEAD = """# Evidence

Generated from runs on GPUs; nothing here is written by hand. [tests/gpu](../tests/gpu/README.md) says how to
repeat them. Of other people's code only names, versions and commits are in this repository.
"""


def marks(name):
    return f"<!-- {name}: generated -->\n", f"<!-- {name}: end -->\n"


def with_part(text, name, part):
    """The text with that part put in place of the one of that name, or at the end."""
    begin, end = marks(name)
    whole = begin + part.strip("\n") + "\n" + end
    if begin in text and end in text:
        return text[:text.index(begin)] + whole + text[text.index(end) + len(end):]
    return text.rstrip("\n") + "\n\n" + whole


def write_part(path, name, part):
    text = HEAD
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(with_part(text, name, without_folders(part)))


def without_folders(text):
    """Absolute paths, and those that leave a folder, by their last part: where the files lay on one machine
    tells nobody anything."""
    return re.sub(r"(?<![\w./:])((\.\./)+[\w.+@-]+|/[\w.+@-]+)(/[\w.+@-]+)*/(?=[\w.])", "", text)


def kernel(platform):
    """The kernel's version, of what Python says of the platform: "Linux 6.18.44"."""
    found = re.match(r"(\w+)-(\d+(\.\d+)*)", platform)
    return f"{found[1]} {found[2]}" if found else platform


def cell(value):
    return str(value).replace("|", "\\|").replace("\n", " ")


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def number(value):
    return f"{value:,}"


def machines(sessions):
    """A line for each run that the results come from."""
    return [f"- {session['date']}: {session['gpu']}; {kernel(session['kernel'])}; {session['versions']}; library "
            f"{session['library']}; `{session['command']}`" for session in sessions]
