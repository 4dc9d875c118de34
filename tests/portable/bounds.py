#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a released file may ask of the machine that it comes to, and what it may show there.

Of every file: no undefined symbol of a version after GLIBC_2.17, and none without a version; only
libraries of glibc; no search path; an executable stack nowhere; no debug information, but the name
of the file that has it; at most 2 MiB. A library exports exactly the symbols listed, a program none.

The versions that count are those of *undefined* symbols: the library defines a newer dlsym itself.

Exit status: 0 within the bounds, 1 beyond them.
"""

import argparse
import os
import re
import struct
import sys

NEWEST = (2, 17)
MOST_BYTES = 2 * 1024 * 1024
LIBRARIES = re.compile(r"(libc|libm|libdl|libpthread|librt)\.so\.\d+|ld-linux.*\.so\.\d+")
MACHINES = {"x86_64": 62, "aarch64": 183}

PT_DYNAMIC, PT_GNU_STACK, PF_X = 2, 0x6474E551, 1
DT_NEEDED, DT_RPATH, DT_TEXTREL, DT_RUNPATH, DT_FLAGS_1 = 1, 15, 22, 29, 0x6FFFFFFB
DF_1_PIE = 0x08000000
SHT_DYNAMIC, SHT_DYNSYM, SHT_GNU_VERDEF, SHT_GNU_VERNEED, SHT_GNU_VERSYM = (
    6, 11, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF)
STB_WEAK = 2


class Elf:
    """A 64-bit little-endian ELF file with section headers."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path}: no 64-bit little-endian ELF file")
        (self.machine, phoff, shoff, phsize, phcount, shsize, shcount, names) = struct.unpack_from(
            "<2xH12xQQ6xHHHHH", self.data, 16)
        self.segments = [struct.unpack_from("<II", self.data, phoff + i * phsize) for i in range(phcount)]
        raw = [struct.unpack_from("<IIQQQQIIQQ", self.data, shoff + i * shsize) for i in range(shcount)]
        self.sections = []
        for name, kind, _, _, offset, size, link, info, _, _ in raw:
            self.sections.append({"name": self._text(raw[names][4] + name), "kind": kind,
                                  "offset": offset, "size": size, "link": link, "info": info})

    def _text(self, offset):
        return self.data[offset:self.data.index(b"\0", offset)].decode()

    def _section(self, kind):
        found = [section for section in self.sections if section["kind"] == kind]
        return found[0] if found else None

    def _string(self, section, offset):
        return self._text(self.sections[section["link"]]["offset"] + offset)

    def dynamic(self):
        """(tag, value) pairs; the values of names are text."""
        section = self._section(SHT_DYNAMIC)
        for at in range(section["offset"], section["offset"] + section["size"], 16):
            tag, value = struct.unpack_from("<QQ", self.data, at)
            if tag == 0:
                return
            named = tag in (DT_NEEDED, DT_RPATH, DT_RUNPATH)
            yield tag, self._string(section, value) if named else value

    def _versions(self):
        """Names of versions by their index."""
        names = {}
        needed = self._section(SHT_GNU_VERNEED)
        at = needed["offset"] if needed else 0
        for _ in range(needed["info"] if needed else 0):
            _, count, _, first, following = struct.unpack_from("<HHIII", self.data, at)
            entry = at + first
            for _ in range(count):
                _, _, index, name, further = struct.unpack_from("<IHHII", self.data, entry)
                names[index] = self._string(needed, name)
                entry += further
            at += following
        defined = self._section(SHT_GNU_VERDEF)
        at = defined["offset"] if defined else 0
        for _ in range(defined["info"] if defined else 0):
            _, _, index, _, _, first, following = struct.unpack_from("<HHHHIII", self.data, at)
            names[index] = self._string(defined, struct.unpack_from("<I", self.data, at + first)[0])
            at += following
        return names

    def symbols(self):
        """(name, version or None, defined, weak) of each dynamic symbol that is global."""
        section, versions = self._section(SHT_DYNSYM), self._versions()
        indices = self._section(SHT_GNU_VERSYM)
        for i in range(1, section["size"] // 24):
            name, info, _, index, _, _ = struct.unpack_from("<IBBHQQ", self.data,
                                                            section["offset"] + 24 * i)
            version = 1
            if indices:
                version = struct.unpack_from("<H", self.data, indices["offset"] + 2 * i)[0] & 0x7FFF
            if info >> 4 != 0:
                yield (self._string(section, name), versions.get(version) if version > 1 else None,
                       index != 0, info >> 4 == STB_WEAK)


def version_faults(elf):
    for name, version, defined, weak in elf.symbols():
        if defined:
            continue
        match = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version or "")
        if match is None and not (weak and version is None):
            yield f"{name} has the version {version}"
        elif match is not None and (int(match[1]), int(match[2])) > NEWEST:
            yield f"{name} needs {version}"


def dynamic_faults(elf):
    for tag, value in elf.dynamic():
        if tag == DT_NEEDED and LIBRARIES.fullmatch(value) is None:
            yield f"needs {value}"
        elif tag in (DT_RPATH, DT_RUNPATH):
            yield f"has the search path {value}"
        elif tag == DT_TEXTREL:
            yield "has its code changed when it is loaded"
    for kind, flags in elf.segments:
        if kind == PT_GNU_STACK and flags & PF_X:
            yield "has an executable stack"


def export_faults(elf, listed):
    """A program exports nothing: of it, `listed` is empty."""
    exported = {name for name, _, defined, _ in elf.symbols() if defined}
    # A version is a symbol, too, if the linker makes it one.
    exported -= {version for _, version, _, _ in elf.symbols()}
    for name in sorted(exported - listed):
        yield f"exports {name}"
    for name in sorted(listed - exported):
        yield f"does not export {name}"


def size_faults(elf, most):
    if len(elf.data) > most:
        yield f"has {len(elf.data)} bytes, more than {most}"
    names = [section["name"] for section in elf.sections]
    for name in names:
        if name.startswith(".debug") or name == ".symtab":
            yield f"has the section {name}"
    if ".gnu_debuglink" not in names:
        yield "does not name the file of its debug information"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--machine", choices=sorted(MACHINES), help="that the files are for")
    parser.add_argument("--exports", required=True, help="exports.txt: what libraries export")
    options = parser.parse_args()
    with open(options.exports, encoding="utf-8") as file:
        listed = set(file.read().split())
    failed = False
    for path in options.files:
        elf = Elf(path)
        faults = [*version_faults(elf), *dynamic_faults(elf), *size_faults(elf, MOST_BYTES)]
        is_library = not any(t == DT_FLAGS_1 and v & DF_1_PIE for t, v in elf.dynamic()) and ".so" in path
        faults += export_faults(elf, listed if is_library else set())
        if options.machine and elf.machine != MACHINES[options.machine]:
            faults.append(f"is for machine {elf.machine}")
        newest = max((tuple(map(int, v[6:].split("."))) for _, v, d, _ in elf.symbols()
                      if not d and v and v.startswith("GLIBC_") and v[6].isdigit()), default=())
        print(f"{path}: {os.path.getsize(path)} bytes, needs GLIBC_{'.'.join(map(str, newest))}"
              + (f", {len(faults)} faults" if faults else ""))
        for fault in faults:
            print(f"  {fault}")
        failed = failed or bool(faults)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
