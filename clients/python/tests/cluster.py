"""A cluster for tests: `sextant dev`, whose program SEXTANT names."""

import json
import os
import pathlib
import re
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
        self.ready = json.loads(line)
        self.nodes = self.ready["pnodes"]

    def grpc(self):
        return [node["grpc"] for node in self.nodes]

    def resp(self):
        host, port = self.nodes[0]["resp"].rsplit(":", 1)
        return host, int(port)

    def beside(self):
        """Another p-node of this cluster, which listens on a Unix socket; its process, and the socket's path."""
        named = re.search(r'^id = "(.+)"$', pathlib.Path(self.directory, "data/cluster.toml").read_text(), re.MULTILINE)
        servers = lambda tier: ", ".join(f'{{ id = {s["id"]}, addr = "{s["addr"]}" }}' for s in self.ready[tier])
        path = f"{self.directory}/s"
        config = pathlib.Path(self.directory, "beside.toml")
        config.write_text(
            f'id = 9\ngrpc = "127.0.0.1:0"\nadmin = "127.0.0.1:0"\ngrpc_unix = "{path}"\n'
            f'[cluster]\nid = "{named[1]}"\npartitions = 2\n'
            f'memtable = [{servers("memtable")}]\nsstable = [{servers("sstable")}]\n'
        )
        command = [program(), "pnode", "--config", config]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self.log), path

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
