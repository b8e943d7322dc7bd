#!/usr/bin/env python3
"""Writes sextant/_proto from the protobuf files; `--check` only says whether it is what they say.

Needs grpcio-tools of the version below, so that the same files give the same code.
"""

import importlib.metadata
import importlib.resources
import pathlib
import re
import sys
import tempfile

VERSION = "1.73.1"
FILES = ["types", "rows", "kv"]
HERE = pathlib.Path(__file__).resolve().parent
SOURCES = HERE.parent.parent / "crates" / "proto" / "proto"
PACKAGE = "sextant/_proto"


def generate(into):
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as directory:
        # Under the package's path: so that imports are the package's, and names of files are nobody else's.
        inputs = pathlib.Path(directory) / PACKAGE
        inputs.mkdir(parents=True)
        for name in FILES:
            text = (SOURCES / f"{name}.proto").read_text()
            text = re.sub(r'^import "', f'import "{PACKAGE}/', text, flags=re.MULTILINE)
            (inputs / f"{name}.proto").write_text(text)
        well_known = importlib.resources.files("grpc_tools") / "_proto"
        arguments = ["protoc", f"-I{directory}", f"-I{well_known}", f"--python_out={into}", f"--grpc_python_out={into}"]
        if protoc.main(arguments + [f"{PACKAGE}/{name}.proto" for name in FILES]) != 0:
            sys.exit("generate.py: protoc failed")
    # Only kv.proto is called by clients.
    for name in FILES[:-1]:
        (pathlib.Path(into) / PACKAGE / f"{name}_pb2_grpc.py").unlink()


def main():
    installed = importlib.metadata.version("grpcio-tools")
    if installed != VERSION:
        sys.exit(f"generate.py: grpcio-tools {VERSION} is needed, {installed} is installed")
    if sys.argv[1:] != ["--check"]:
        generate(HERE)
        return
    with tempfile.TemporaryDirectory() as fresh:
        generate(fresh)
        for path in sorted((pathlib.Path(fresh) / PACKAGE).iterdir()):
            checked_in = HERE / PACKAGE / path.name
            if not checked_in.exists() or checked_in.read_bytes() != path.read_bytes():
                sys.exit(f"generate.py: {path.name}: the protobuf files have changed since: run clients/python/generate.py")


if __name__ == "__main__":
    main()
