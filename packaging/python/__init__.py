# SPDX-License-Identifier: Apache-2.0
"""The installed files of cupool. The package itself holds no code that programs need: `cupool run` and
`LD_PRELOAD` work without Python.
"""

__version__ = "@VERSION@"


def command():
    """Path of the command `cupool` that was installed with this package."""
    import os
    import sysconfig

    folders = []
    try:
        from importlib.metadata import files

        folders = [os.path.dirname(str(file.locate())) for file in files("cupool") or ()
                   if file.name == "cupool" and file.parent.name in ("bin", "Scripts")]
    except ImportError:  # before Python 3.8
        pass
    folders.append(sysconfig.get_path("scripts"))
    for folder in folders:
        path = os.path.normpath(os.path.join(folder, "cupool"))
        if os.access(path, os.X_OK):
            return path
    raise FileNotFoundError("cupool is not where pip installs commands: " + ", ".join(folders))
