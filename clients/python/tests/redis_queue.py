"""huey, a queue of jobs with locks, against a cluster: it pushes and pops lists, waits for them, and needs no scripts for that."""

import unittest

from huey import RedisHuey
from huey.exceptions import TaskLockedException

from tests.cluster import PATIENCE, Cluster

JOBS = 20


class Queue(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cluster = Cluster()
        cls.addClassCleanup(cluster.stop)
        host, port = cluster.resp()
        cls.huey = RedisHuey("jobs", url=f"redis://{host}:{port}/0")

    def test_jobs_are_done_in_turn_and_their_results_kept(self):
        add = self.huey.task()(lambda a, b: a + b)
        results = [add(n, 1) for n in range(JOBS)]
        self.assertEqual(self.huey.pending_count(), JOBS)
        for _ in range(JOBS):
            self.huey.execute(self.huey.dequeue())
        done = [result.get(blocking=True, timeout=PATIENCE) for result in results]
        self.assertEqual(done, [n + 1 for n in range(JOBS)])
        self.assertEqual(self.huey.pending_count(), 0)

    def test_a_lock_is_held_by_one(self):
        with self.huey.lock_task("one"):
            with self.assertRaises(TaskLockedException):
                with self.huey.lock_task("one"):
                    self.fail("locked twice")
        with self.huey.lock_task("one"):
            pass


if __name__ == "__main__":
    unittest.main()
