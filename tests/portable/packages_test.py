#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each package is installed, serves a program on the simulated device, is moved where it may be, and leaves
nothing behind. Run by scripts/test.sh, which has made the packages and the program:

    packages_test.py --packages build/packages --program PROBE --driver build/dev/tests/sim/lib

A package format whose tool is not installed is skipped, and named.
"""

import argparse
import glob
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

OPTIONS = argparse.Namespace()


def run(*command, **environment):
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith(("CUPOOL_", "LD_", "PYTHON", "PIP_REQUIRE", "VIRTUAL_ENV"))}
    done = subprocess.run(command, env={**clean, "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                                        "PIP_ROOT_USER_ACTION": "ignore", **environment},
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def package(pattern):
    found = [path for path in glob.glob(os.path.join(OPTIONS.packages, pattern))
             if platform.machine() in path or {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()] in path]
    if len(found) != 1:
        raise AssertionError(f"{pattern}: {found} in {OPTIONS.packages}")
    return found[0]


def left_in(folder):
    """Files that carry cupool's name, but for a package manager's own notes."""
    found = glob.glob(os.path.join(folder, "**", "*cupool*"), recursive=True)
    return [path for path in found if "/var/lib/" not in path]


class Packages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def place(self, *names):
        return os.path.join(self.folder, *names)

    def serves(self, *command):
        """Whether the command runs a program whose allocations cupool serves."""
        report = self.place("report.json")
        out = run(*command, "run", "--stats", "json", "--stats-file", report, "--set", "CUPOOL_POOL_START=first",
                  "--", OPTIONS.program, LD_LIBRARY_PATH=OPTIONS.driver)
        self.assertIn("wrong_bytes=0", out)
        with open(report, encoding="utf-8") as file:
            counters = json.load(file)["devices"][0]["counters"]
        self.assertGreater(counters["malloc_calls_total"], 0)
        os.unlink(report)

    def test_archive_runs_from_anywhere(self):
        with tarfile.open(package("*.tar.gz")) as tar:
            tar.extractall(self.place("first"))
        (top,) = os.listdir(self.place("first"))
        for name in ("share/man/man1/cupool.1", "share/bash-completion/completions/cupool",
                     "share/zsh/site-functions/_cupool", "share/fish/vendor_completions.d/cupool.fish",
                     "share/cupool/profiles/mpi.env", "include/cupool/cupool.h"):
            self.assertGreater(os.path.getsize(self.place("first", top, name)), 0)
        self.serves(self.place("first", top, "bin", "cupool"))
        os.rename(self.place("first"), self.place("a b"))
        self.serves(self.place("a b", top, "bin", "cupool"))

    def test_wheel_is_installed_moved_and_uninstalled(self):
        run(sys.executable, "-m", "venv", self.place("first"))
        python = self.place("first", "bin", "python")
        run(python, "-m", "pip", "install", "--quiet", "--no-index", package("*.whl"))
        self.serves(self.place("first", "bin", "cupool"))
        os.rename(self.place("first"), self.place("second"))
        python = self.place("second", "bin", "python")
        self.serves(self.place("second", "bin", "cupool"))
        self.serves(python, "-m", "cupool")
        self.assertIn(run(python, "-c", "import cupool; print(cupool.__version__)").strip(),
                      run(python, "-m", "cupool", "--version"))
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "cupool")
        self.assertEqual(left_in(self.place("second")), [])

    def test_debian_package(self):
        if shutil.which("dpkg") is None:
            self.skipTest("no dpkg")
        for name in ("info", "updates", "triggers"):
            os.makedirs(self.place("var", "lib", "dpkg", name))
        open(self.place("var", "lib", "dpkg", "status"), "w", encoding="utf-8").close()
        dpkg = ("dpkg", f"--root={self.folder}", "--force-not-root", "--force-depends", "--log=/dev/null")
        run(*dpkg, "--install", package("*.deb"))
        self.serves(self.place("usr", "bin", "cupool"))
        run(*dpkg, "--purge", "cupool")
        self.assertEqual(left_in(self.folder), [])

    def test_rpm_package(self):
        if shutil.which("rpm") is None:
            self.skipTest("no rpm")
        if os.geteuid() != 0:
            self.skipTest("rpm installs into a folder for root alone")
        rpm = ("rpm", "--root", self.folder)
        run(*rpm, "--initdb")
        # The folder has no glibc, which the package asks for.
        run(*rpm, "--nodeps", "--install", package("*.rpm"))
        self.serves(self.place("usr", "bin", "cupool"))
        run(*rpm, "--erase", "cupool")
        self.assertEqual(left_in(self.folder), [])

    def test_list_of_contents_names_every_file(self):
        with open(package("*.spdx.json"), encoding="utf-8") as file:
            document = json.load(file)
        listed = {entry["fileName"]: entry["checksums"][1]["checksumValue"] for entry in document["files"]}
        with tarfile.open(package("*.tar.gz")) as tar:
            packed = {"./" + entry.name.partition("/")[2]: hashlib.sha256(tar.extractfile(entry).read()).hexdigest()
                      for entry in tar if entry.isfile()}
        self.assertEqual(listed, packed)
        self.assertIn("spdlog", [entry["name"] for entry in document["packages"]])

    def test_checksums(self):
        path = os.path.join(OPTIONS.packages, "SHA256SUMS")
        with open(path, encoding="utf-8") as file:
            sums = dict(reversed(line.split()) for line in file)
        for pattern in ("*.whl", "*.tar.gz", "*.deb", "*.rpm", "*.spdx.json"):
            with open(package(pattern), "rb") as file:
                self.assertEqual(sums[os.path.basename(file.name)], hashlib.sha256(file.read()).hexdigest())


RECIPES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../packaging/recipes")


class Recipes(unittest.TestCase):
    """They name files that the archive has, and can be read."""

    def test_named_files_are_in_the_archive(self):
        with tarfile.open(package("*.tar.gz")) as tar:
            packed = {name.partition("/")[2] for name in tar.getnames()}
        folders = {name.partition("/")[0] for name in packed}
        for name in ("Dockerfile", "cupool.def", "kubernetes.yaml", "cupool.lua"):
            with open(os.path.join(RECIPES, name), encoding="utf-8") as file:
                text = file.read()
            self.assertIn("libcupool.so", text)
            for path in re.findall(r"/opt/cupool/((?:bin|lib|share)[\w./-]*)", text):
                self.assertTrue(path in packed or path in folders, f"{name}: {path}")

    def test_module_file_sets_what_it_says(self):
        lua = shutil.which("lua") or shutil.which("lua5.4") or shutil.which("lua5.3")
        if lua is None:
            self.skipTest("no lua")
        lmod = ("function myModuleVersion() return '0.1.0' end function pathJoin(a, b) return a .. '/' .. b end "
                "function whatis() end function help() end "
                "function setenv(n, v) print(n, v) end function prepend_path(n, v) print(n, v) end ")
        out = run(lua, "-e", lmod, os.path.join(RECIPES, "cupool.lua"))
        self.assertIn("CUPOOL_LIBRARY\t/opt/cupool/0.1.0/lib/libcupool.so", out)
        self.assertIn("PATH\t/opt/cupool/0.1.0/bin", out)

    def test_pod_is_yaml(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("no yaml")
        with open(os.path.join(RECIPES, "kubernetes.yaml"), encoding="utf-8") as file:
            pod = yaml.safe_load(file)
        self.assertEqual(pod["kind"], "Pod")
        mounted = pod["spec"]["containers"][0]["volumeMounts"][0]["mountPath"]
        self.assertTrue(pod["spec"]["containers"][0]["env"][0]["value"].startswith(mounted))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option in ("packages", "program", "driver"):
        parser.add_argument(f"--{option}", required=True, type=os.path.abspath)
    parser.parse_args(namespace=OPTIONS)
    unittest.main(argv=sys.argv[:1])
