"""A cluster for tests: `sextant dev`, whose program SEXTANT names."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
#: Only a bound, for slow machines.
PATIENCE = 60


def program():
    named = os.environ.get("SEXTANT", str(ROOT / "target" / "debug" / "sextant"))
    if not pathlib.Path(named).exists():
        raise unittest.SkipTest(f"{named} is not built")
    return named


class Cluster:
    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix="sextant-python-")
        command = [program(), "dev", "--json", "--data", f"{self.directory}/data"]
        command += ["--resp", "0", "--grpc", "0", "--http", "0", "--memtable", "1", "--sstable", "1"]
        self.log = open(f"{self.directory}/log", "w")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line:
            self.stop()
            raise RuntimeError("sextant dev did not start")
        self.nodes = json.loads(line)["pnodes"]

    def grpc(self):
        return [node["grpc"] for node in self.nodes]

    def resp(self):
        host, port = self.nodes[0]["resp"].rsplit(":", 1)
        return host, int(port)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)
