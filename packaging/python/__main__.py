# SPDX-License-Identifier: Apache-2.0
"""`python -m cupool` is the command `cupool`, where that is not on PATH."""
import os
import sys

from cupool import command

path = command()
os.execv(path, [path] + sys.argv[1:])
