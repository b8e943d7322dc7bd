"""Backups in S3 as others wrote it: `sextant backup` against moto's server."""

import logging
import os
import pathlib
import re
import subprocess
import tempfile
import unittest
import urllib.request

from moto.server import ThreadedMotoServer

import sextant
from tests.cluster import PATIENCE, Cluster, program

REPOSITORY = "s3://backups/of/main"
RECORDS = 500
#: It tells each request.
logging.getLogger("werkzeug").setLevel(logging.ERROR)

#: So much of what cannot be compressed makes an SSTable that is sent in parts.
LARGE, LARGE_BYTES = 24, 1024 * 1024


class BackupS3(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        cls.addClassCleanup(server.stop)
        cls.endpoint = "http://%s:%s" % server.get_host_and_port()
        urllib.request.urlopen(urllib.request.Request(f"{cls.endpoint}/backups", method="PUT"), timeout=PATIENCE).close()

    def cluster(self):
        cluster = Cluster()
        self.addCleanup(cluster.stop)
        return cluster

    def run_backup(self, *arguments):
        variables = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        variables |= {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        command = [program(), "backup", *arguments]
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE)

    def backup(self, *arguments):
        ran = self.run_backup(*arguments)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout

    def test_a_backup_is_made_listed_verified_pruned_and_restored_into_another_cluster(self):
        first = self.cluster()
        with sextant.Client(*first.grpc()) as client:
            for n in range(RECORDS):
                client.put(f"key-{n}", f"value {n}".encode())
            for n in range(LARGE):
                client.put(f"large-{n}", os.urandom(LARGE_BYTES))
        server = ["--server", first.grpc()[0]]
        made = self.backup("create", "--to", REPOSITORY, "--name", "one", *server)
        files = int(re.search(r"(\d+) SSTables, (\d+) of them copied", made)[1])
        self.assertGreater(files, 0)
        again = self.backup("create", "--to", REPOSITORY, "--name", "two", *server)
        self.assertIn(f"{files} SSTables, 0 of them copied", again)
        taken = self.run_backup("create", "--to", REPOSITORY, "--name", "two", *server)
        self.assertIn('there is a backup "two" already', taken.stderr)
        self.assertEqual([line.split("\t")[0] for line in self.backup("list", REPOSITORY).splitlines()], ["one", "two"])
        self.assertIn(f"{files} files are good", self.backup("verify", REPOSITORY))
        self.assertIn("removed: 1 backups, 0 files", self.backup("prune", REPOSITORY, "--keep", "1"))

        second = self.cluster()
        server = ["--server", second.grpc()[0]]
        with tempfile.TemporaryDirectory() as room:
            self.backup("restore", "--from", REPOSITORY, "--work-dir", room, *server)
            self.assertEqual(list(pathlib.Path(room).iterdir()), [])
        compared = self.backup("verify", REPOSITORY, "--against-cluster", *server)
        self.assertIn(f"{RECORDS + LARGE} records are equal, 0 differ, the cluster has 0 more", compared)

    def test_a_bucket_that_is_not_there_is_named_as_such(self):
        ran = self.run_backup("list", "s3://elsewhere")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("there is no such bucket (NoSuchBucket", ran.stderr)
        self.assertEqual(len(ran.stderr.splitlines()), 1, ran.stderr)


if __name__ == "__main__":
    unittest.main()
