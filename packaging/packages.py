#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes what is given out of the installed files of one architecture: archive, wheel, .deb, .rpm, and a list
of contents (SPDX 2.3). The same files give the same bytes: times are those of the commit.

Read by scripts/package.sh, which has built the files. Needs CPack, and rpmbuild for the .rpm.

    packages.py --arch x86_64 --version 0.1.0 --files build/portable/x86_64 --zig build/zig/.../ziglang
                --zig-version 0.17.1 --out build/packages
"""

import argparse
import base64
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile

ARCHITECTURES = {"x86_64": ("amd64", "x86_64"), "aarch64": ("arm64", "aarch64")}
SUMMARY = "Serves the cudaMalloc and cudaFree of unmodified CUDA programs from stream-ordered pools"
HERE = os.path.dirname(os.path.abspath(__file__))
# What is linked into the files: name in the list, Debian's package or zig's folder, licence.
LINKED = (
    ("spdlog", "libspdlog-dev", "MIT"),
    ("fmt", "libfmt-dev", "MIT"),
    ("nlohmann-json", "nlohmann-json3-dev", "MIT"),
    ("CLI11", "libcli11-dev", "BSD-3-Clause"),
    ("libc++", "libcxx", "Apache-2.0 WITH LLVM-exception"),
    ("libc++abi", "libcxxabi", "Apache-2.0 WITH LLVM-exception"),
    ("libunwind", "libunwind", "Apache-2.0 WITH LLVM-exception"),
)


def contents(folder):
    """(path in the folder, bytes, whether it is executable), in order."""
    found = []
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                found.append((os.path.relpath(path, folder), file.read(), os.access(path, os.X_OK)))
    return sorted(found)


def licence_of(package, zig):
    """The text that has to come with a part that is linked in."""
    for path in (f"/usr/share/doc/{package}/copyright", f"{zig}/lib/{package}/LICENSE.TXT"):
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                return file.read()
    sys.exit(f"no licence of {package}: packages are made on Debian or Ubuntu, with zig's own folder")


def version_of(package, zig_version):
    if package in ("libcxx", "libcxxabi", "libunwind"):
        return f"zig-{zig_version}"
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], stdout=subprocess.PIPE,
                           check=True, text=True)
    return asked.stdout


def licences(zig):
    parts = ["Parts of other projects are linked into the command and the library.\n"]
    for name, package, _ in LINKED:
        parts.append(f"{'=' * 78}\n{name}\n{'=' * 78}\n{licence_of(package, zig)}")
    return "\n".join(parts).encode()


def archive(path, top, files, epoch):
    """A .tar.gz whose files all lie in the folder `top`."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data, executable in files:
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), epoch, 0o755 if executable else 0o644
            entry.uname = entry.gname = "root"
            tar.addfile(entry, io.BytesIO(data))
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, epoch) as zipped:
        zipped.write(packed.getvalue())


def wheel(out, version, arch, files, readme, epoch):
    """A wheel with the command among its scripts and the rest in its data: pip puts them into bin, lib and
    share of the environment, where the command finds the library beside itself."""
    tags = [f"py3-none-manylinux_2_17_{arch}", f"py3-none-manylinux2014_{arch}"]
    info, data = f"cupool-{version}.dist-info", f"cupool-{version}.data"
    entries = []
    for name, content, executable in files:
        place = f"{data}/scripts/{name[4:]}" if name.startswith("bin/") else f"{data}/data/{name}"
        entries.append((place, content, executable))
    for name in ("__init__.py", "__main__.py"):
        with open(os.path.join(HERE, "python", name), "rb") as file:
            entries.append((f"cupool/{name}", file.read().replace(b"@VERSION@", version.encode()), False))
    metadata = (f"Metadata-Version: 2.1\nName: cupool\nVersion: {version}\nSummary: {SUMMARY}\n"
                "License: Apache-2.0\nRequires-Python: >=3.6\nClassifier: Operating System :: POSIX :: Linux\n"
                "Description-Content-Type: text/markdown\n\n" + readme)
    entries.append((f"{info}/METADATA", metadata.encode(), False))
    entries.append((f"{info}/WHEEL", ("Wheel-Version: 1.0\nGenerator: cupool\nRoot-Is-Purelib: false\n"
                                      + "".join(f"Tag: {tag}\n" for tag in tags)).encode(), False))
    for name, content, _ in files:
        if "LICENSE" in name:
            entries.append((f"{info}/{os.path.basename(name)}", content, False))
    record = ""
    for name, content, _ in entries:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    entries.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), False))
    path = os.path.join(out, f"cupool-{version}-py3-none-manylinux_2_17_{arch}.manylinux2014_{arch}.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content, executable in entries:
            entry = zipfile.ZipInfo(name, time.gmtime(epoch)[:6])
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, content)


def bill_of_materials(path, version, arch, files, zig_version, epoch):
    """What the packages hold and what is linked in, as SPDX 2.3."""
    sums = sorted(hashlib.sha1(content).hexdigest() for _, content, _ in files)
    packages = [{"SPDXID": "SPDXRef-cupool", "name": "cupool", "versionInfo": version,
                 "downloadLocation": "NOASSERTION", "filesAnalyzed": True,
                 "packageVerificationCode": {"packageVerificationCodeValue":
                                             hashlib.sha1("".join(sums).encode()).hexdigest()},
                 "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
                 "licenseInfoFromFiles": ["NOASSERTION"],
                 "copyrightText": "NOASSERTION"}]
    relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                  "relatedSpdxElement": "SPDXRef-cupool"}]
    for name, package, licence in LINKED:
        identifier = "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name.replace("+", "x"))
        packages.append({"SPDXID": identifier, "name": name,
                         "versionInfo": version_of(package, zig_version),
                         "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
                         "licenseConcluded": licence, "licenseDeclared": licence,
                         "copyrightText": "NOASSERTION"})
        relations.append({"spdxElementId": "SPDXRef-cupool", "relationshipType": "STATIC_LINK",
                          "relatedSpdxElement": identifier})
    listed = []
    for number, (name, content, _) in enumerate(files):
        listed.append({"SPDXID": f"SPDXRef-file-{number}", "fileName": f"./{name}",
                       "checksums": [{"algorithm": kind, "checksumValue": hashlib.new(kind, content).hexdigest()}
                                     for kind in ("SHA1", "SHA256")],
                       "licenseConcluded": "NOASSERTION", "licenseInfoInFiles": ["NOASSERTION"],
                       "copyrightText": "NOASSERTION"})
        relations.append({"spdxElementId": "SPDXRef-cupool", "relationshipType": "CONTAINS",
                          "relatedSpdxElement": f"SPDXRef-file-{number}"})
    everything = hashlib.sha256(b"".join(content for _, content, _ in files)).hexdigest()
    document = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
                "name": f"cupool-{version}-linux-{arch}",
                "documentNamespace": f"https://spdx.org/spdxdocs/cupool-{version}-{arch}-{everything[:32]}",
                "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
                                 "creators": ["Tool: cupool packaging/packages.py"]},
                "packages": packages, "files": listed, "relationships": relations}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")


def system_packages(out, version, arch, files):
    """.deb and .rpm, by CPack, from a root of their own."""
    debian, redhat = ARCHITECTURES[arch]
    for generator, library, name in (("DEB", "lib", f"cupool_{version}_{debian}"),
                                     ("RPM", "lib64", f"cupool-{version}-1.{redhat}")):
        root = os.path.join(out, "root")
        shutil.rmtree(root, ignore_errors=True)
        for path, content, executable in files:
            place = re.sub(r"^lib/", f"{library}/", path)
            place = re.sub(r"^share/cupool/(.*LICENSE.*)", r"share/doc/cupool/\1", place)
            place = os.path.join(root, "usr", place)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "wb") as file:
                file.write(content)
            os.chmod(place, 0o755 if executable else 0o644)
        settings = {"GENERATOR": generator, "INSTALLED_DIRECTORIES": f"{root};/", "PACKAGE_FILE_NAME": name,
                    "PACKAGE_VERSION": version, "PACKAGE_DESCRIPTION_SUMMARY": SUMMARY,
                    "DEBIAN_PACKAGE_ARCHITECTURE": debian, "RPM_PACKAGE_ARCHITECTURE": redhat}
        run = subprocess.run(["cpack", "--config", os.path.join(HERE, "cpack.cmake"), "-B", out,
                              *(word for key, value in settings.items() for word in ("-D", f"CPACK_{key}={value}"))],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        shutil.rmtree(root)
        shutil.rmtree(os.path.join(out, "_CPack_Packages"), ignore_errors=True)
        if run.returncode != 0:
            sys.exit(run.stdout.decode())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("arch", "version", "files", "zig", "zig-version", "out"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    out = os.path.abspath(options.out)
    os.makedirs(out, exist_ok=True)
    files = contents(options.files)
    files.append(("share/cupool/LICENSE.third-party", licences(options.zig), False))
    files.sort()
    with open(os.path.join(HERE, "..", "README.md"), encoding="utf-8") as file:
        readme = file.read()
    top = f"cupool-{options.version}-linux-{options.arch}"
    bill_of_materials(os.path.join(out, f"{top}.spdx.json"), options.version, options.arch, files,
                      options.zig_version, epoch)
    archive(os.path.join(out, f"{top}.tar.gz"), top, files, epoch)
    wheel(out, options.version, options.arch, files, readme, epoch)
    system_packages(out, options.version, options.arch, files)


if __name__ == "__main__":
    main()
