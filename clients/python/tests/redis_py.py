"""redis-py against a cluster: what its users do most. Run by itself, with the version to be tried on the path."""

import unittest

import redis

from tests.cluster import PATIENCE, Cluster


class RedisPy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cluster = Cluster()
        cls.addClassCleanup(cluster.stop)
        host, port = cluster.resp()
        cls.at = {"host": host, "port": port, "socket_timeout": PATIENCE}
        cls.redis = redis.Redis(**cls.at)
        cls.addClassCleanup(cls.redis.close)
        cls.text = redis.Redis(**cls.at, decode_responses=True)
        cls.addClassCleanup(cls.text.close)

    def test_basic_commands(self):
        r = self.text
        self.assertTrue(r.ping())
        self.assertTrue(r.set("a", "1"))
        self.assertEqual((r.get("a"), r.get("absent")), ("1", None))
        self.assertEqual((r.incr("a"), r.incrby("a", 5), r.decr("a")), (2, 7, 6))
        self.assertIsNone(r.set("a", "x", nx=True))
        self.assertTrue(r.set("t", "x", ex=100))
        self.assertTrue(0 < r.ttl("t") <= 100)
        self.assertEqual(r.append("t", "yz"), 3)
        self.assertEqual(r.mget("a", "t", "none"), ["6", "xyz", None])
        self.assertEqual((r.exists("a", "t"), r.delete("a", "t"), r.exists("a")), (2, 2, 0))
        self.assertEqual(self.redis.set("bytes", b"\x00\xff"), True)
        self.assertEqual(self.redis.get("bytes"), b"\x00\xff")
        for i in range(20):
            r.set(f"scan:{i}", i)
        self.assertEqual(sorted(r.scan_iter("scan:*", count=7)), sorted(f"scan:{i}" for i in range(20)))

    def test_pipelines_are_transactions_by_default(self):
        pipeline = self.text.pipeline()
        pipeline.set("{p}a", "1").incr("{p}a").get("{p}a")
        self.assertEqual(pipeline.execute(), [True, 2, "2"])
        with self.text.pipeline(transaction=False) as plain:
            self.assertEqual(plain.set("q", "1").get("q").execute(), [True, "1"])
        with self.text.pipeline() as watched:
            watched.watch("{p}a")
            value = int(watched.get("{p}a"))
            watched.multi()
            watched.set("{p}a", value + 1)
            self.text.set("{p}a", "10")
            with self.assertRaises(redis.WatchError):
                watched.execute()
        self.assertEqual(self.text.get("{p}a"), "10")

    def test_clients_are_listed_and_killed(self):
        r, other = self.text, redis.Redis(**self.at, client_name="other")
        self.addCleanup(other.close)
        id = other.client_id()
        self.assertEqual([client["id"] for client in r.client_list() if client["name"] == "other"], [str(id)])
        self.assertEqual((other.client_info()["id"], r.client_info()["user"]), (id, "default"))
        self.assertEqual(r.client_kill_filter(_id=id), 1)
        self.assertNotIn(str(id), [client["id"] for client in r.client_list()])

    def test_errors_are_redis_errors(self):
        self.text.set("s", "text")
        with self.assertRaises(redis.ResponseError):
            self.text.incr("s")
        with self.assertRaises(redis.ResponseError):
            self.text.execute_command("NOSUCHCOMMAND")


if __name__ == "__main__":
    print(f"redis-py {redis.__version__}")
    unittest.main()
