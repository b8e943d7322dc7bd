"""The client against a cluster, and against a p-node that loses answers."""

import concurrent.futures
import pathlib
import socket
import subprocess
import tempfile
import threading
import time
import types
import unittest

import grpc

import sextant
from sextant._errors import KIND, failure_of
from sextant._proto import kv_pb2 as kv
from sextant._proto.kv_pb2_grpc import KvServicer, KvStub, add_KvServicer_to_server
from sextant._sessions import WINDOW, Sessions, span
from tests.cluster import PATIENCE, Cluster, program


PNODE = """
role = "pnode"
id = 1
grpc = "127.0.0.1:1"
[cluster]
id = "c"
partitions = 1
memtable = [{ id = 1, addr = "127.0.0.1:2" }]
sstable = [{ id = 1, addr = "127.0.0.1:3" }]
"""


class Between(KvServicer):
    """Between client and cluster: hands requests on, and does what a test has ordered with the answers."""

    def __init__(self, behind):
        self.channel = grpc.insecure_channel(behind)
        self.stub = KvStub(self.channel)
        self.orders = []
        self.seen = []
        self.metadata = []
        self.lock = threading.Lock()

    def _handed_on(self, method, request, context):
        with self.lock:
            order = self.orders.pop(0) if self.orders else None
            self.seen.append((method, request))
            self.metadata.append(dict(context.invocation_metadata()))
        if order and order.startswith("refuse "):
            context.set_trailing_metadata([(KIND, order.split()[1])])
            context.abort(grpc.StatusCode.UNAVAILABLE, "ordered")
        try:
            answer = getattr(self.stub, method)(request, timeout=PATIENCE)
        except grpc.RpcError as error:
            context.set_trailing_metadata(error.trailing_metadata())
            context.abort(error.code(), error.details())
        if order == "lose":
            # As if the connection had broken.
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
        return answer

    def Get(self, request, context):
        return self._handed_on("Get", request, context)

    def Put(self, request, context):
        return self._handed_on("Put", request, context)

    def Batch(self, request, context):
        return self._handed_on("Batch", request, context)

    def OpenSession(self, request, context):
        return self.stub.OpenSession(request, timeout=PATIENCE)

    def numbers(self):
        return [(r.request.session, r.request.number) for _, r in self.seen if hasattr(r, "request")]


class OfACluster(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.stop)
        cls.client = sextant.Client(*cls.cluster.grpc(), deadline=PATIENCE)
        cls.addClassCleanup(cls.client.close)

    def between(self, address="127.0.0.1:0", credentials=None):
        """A server in between, a port or socket of it."""
        service = Between(self.cluster.grpc()[0])
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        add_KvServicer_to_server(service, server)
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
        server.start()
        self.addCleanup(service.channel.close)
        self.addCleanup(lambda: server.stop(None).wait())
        return service, f"127.0.0.1:{port}"

    def connected(self, *addresses, **options):
        options.setdefault("deadline", PATIENCE)
        client = sextant.Client(*addresses, **options)
        self.addCleanup(client.close)
        return client

    def test_every_operation(self):
        c = self.client
        version = c.put("k", "1")
        self.assertEqual(c.get("k"), sextant.Record(b"k", b"1", version, None))
        self.assertIsNone(c.get("absent"))
        self.assertFalse(c.insert("k", "2").applied)
        self.assertTrue(c.insert("new", b"\x00\xff").applied)
        self.assertFalse(c.compare_and_set("k", "2", expected="0").applied)
        self.assertTrue(c.compare_and_set("k", "2", expected="1").applied)
        self.assertTrue(c.compare_and_set("fresh", "1", version=0).applied)
        self.assertTrue(c.compare_and_set("fresh", None, expected="1").applied)
        self.assertEqual([r and r.value for r in c.multi_get(["k", "fresh", "new"])], [b"2", None, b"\x00\xff"])
        self.assertEqual((c.increment("n"), c.increment("n", 41), c.increment("n", -2)), (1, 42, 40))
        self.assertEqual((c.append("a", "xy"), c.append("a", "z")), (2, 3))
        self.assertTrue(c.delete("k", check_exists=True).existed)
        self.assertFalse(c.delete("k", check_exists=True).existed)
        outcomes = c.batch([sextant.Operation.put("{t}1", "x"), sextant.Operation.increment("{t}2", 5)])
        self.assertEqual([outcome.applied for outcome in outcomes], [True, True])
        c.put("short", "lived", ttl=3600)
        self.assertGreater(c.get("short").expires_at, time.time() * 1000)

    def test_scans_go_both_ways_and_stop_where_they_should(self):
        c = self.client
        keys = [f"scan:{i:03}".encode() for i in range(50)]
        for key in keys:
            c.put(key, key)
        found = lambda **range_: [record.key for record in c.scan(**range_)]
        self.assertEqual(found(prefix="scan:"), keys)
        self.assertEqual(found(prefix="scan:", reverse=True), keys[::-1])
        self.assertEqual(found(prefix="scan:", limit=7), keys[:7])
        self.assertEqual(found(start="scan:010", end="scan:020"), keys[10:20])
        self.assertEqual(found(start="scan:010", end="scan:020", reverse=True, limit=3), keys[17:20][::-1])
        self.assertEqual(found(prefix="nothing here"), [])

    def test_a_write_whose_answer_is_lost_takes_effect_once(self):
        service, address = self.between()
        c = self.connected(address)
        self.assertEqual(c.increment("once"), 1)
        service.orders = ["lose", "lose", "refuse overloaded", "lose"]
        self.assertEqual(c.increment("once"), 2, "sent again, and answered as the first time")
        self.assertEqual(len(service.seen), 6)
        self.assertEqual(len(set(service.numbers()[1:])), 1, "under one session and number")
        self.assertEqual(self.client.increment("once", 0), 2)

    def test_a_lost_session_is_opened_again_unless_the_write_may_have_been_done(self):
        service, address = self.between()
        c = self.connected(address)
        c.put("s", "1")
        service.orders = ["refuse unknown-session"]
        c.put("s", "2")
        self.assertEqual(len({session for session, _ in service.numbers()}), 2)
        service.orders = ["lose", "refuse unknown-session"]
        with self.assertRaises(sextant.Error) as raised:
            c.put("s", "3")
        self.assertEqual((raised.exception.kind, raised.exception.perhaps_done), ("outcome-unknown", True))

    def test_whether_a_write_may_have_been_done_is_told(self):
        service, address = self.between()
        c = self.connected(address, deadline=1.0)
        c.put("told", "1")
        service.orders = ["lose"] * 1000
        with self.assertRaises(sextant.Error) as raised:
            c.put("told", "2")
        self.assertEqual((raised.exception.kind, raised.exception.perhaps_done), ("outcome-unknown", True))
        service.orders = ["refuse retry"] * 1000
        with self.assertRaises(sextant.Error) as raised:
            c.put("told", "3")
        self.assertEqual((raised.exception.kind, raised.exception.perhaps_done), ("retry", False))
        service.orders = []

    def test_another_p_node_is_asked(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            nobody = f"127.0.0.1:{free.getsockname()[1]}"
            c = self.connected(nobody, *self.cluster.grpc())
            c.put("failover", "1")
            self.assertEqual(c.get("failover").value, b"1")
            alone = self.connected(nobody, deadline=0.5)
            for call in [lambda: alone.get("x"), lambda: alone.put("x", "y")]:
                with self.assertRaises(sextant.Error) as raised:
                    call()
                self.assertEqual((raised.exception.kind, raised.exception.perhaps_done), ("unavailable", False))

    def test_errors_say_what_to_do(self):
        for kind, call in [
            ("invalid", lambda: self.client.get("")),
            ("unknown-table", lambda: self.client.get("k", table="nobody")),
            ("invalid", lambda: self.client.put("k", b"x" * (16 << 20))),
            ("invalid", lambda: self.client.batch([sextant.Operation.put(f"k{i}", "1") for i in range(20)])),
        ]:
            with self.assertRaises(sextant.Error) as raised:
                call()
            self.assertEqual((raised.exception.kind, raised.exception.perhaps_done), (kind, False))
        self.client.put("text", "not a number")
        with self.assertRaisesRegex(sextant.Error, "no integer"):
            self.client.increment("text")

    def test_who_the_client_is_is_said_with_each_call_also_over_a_unix_socket(self):
        with tempfile.TemporaryDirectory() as directory:
            address = f"unix:{directory}/s"
            service, _ = self.between(address)
            c = self.connected(address, user="alice", password="a:b")
            c.put("who", "1")
            self.assertEqual(c.get("who").value, b"1")
            said = {metadata.get("authorization") for metadata in service.metadata}
            self.assertEqual(said, {"Basic YWxpY2U6YTpi"})

    def test_a_p_node_beside_the_application_is_talked_to_over_its_socket(self):
        beside, path = self.cluster.beside()
        self.addCleanup(beside.wait)
        self.addCleanup(beside.terminate)
        c = self.connected(f"unix:{path}")
        c.put("beside", "1")
        self.assertEqual(c.get("beside").value, b"1")
        self.assertEqual(self.client.get("beside").value, b"1")

    def test_a_cluster_with_certificates_is_talked_to_by_tls_only(self):
        with tempfile.TemporaryDirectory() as directory:
            directory = pathlib.Path(directory)
            (directory / "pnode-1.toml").write_text(PNODE)
            issue = lambda *arguments: subprocess.run(
                [program(), "cert", *arguments, "--dir", directory], check=True, stdout=subprocess.DEVNULL
            )
            issue("init", "--cluster", "c")
            issue("server", directory / "pnode-1.toml")
            issue("user", "alice")
            pem = lambda name: (directory / name).read_bytes()
            shown = [(pem("pnode-1.key"), pem("pnode-1.pem"))]
            credentials = grpc.ssl_server_credentials(shown, pem("ca.pem"), require_client_auth=True)
            _, address = self.between(credentials=credentials)
            alice = {"certificate": directory / "user-alice.pem", "key": directory / "user-alice.key"}
            c = self.connected(address, ca=directory / "ca.pem", **alice)
            c.put("tls", "1")
            self.assertEqual(c.get("tls").value, b"1")
            for stranger in [{}, {"ca": directory / "ca.pem"}]:
                with self.assertRaises(sextant.Error) as raised:
                    self.connected(address, deadline=0.5, **stranger).get("tls")
                self.assertEqual(raised.exception.kind, "unavailable")

    def test_many_threads_share_a_client(self):
        def add():
            for _ in range(20):
                self.client.increment("threads")

        threads = [threading.Thread(target=add) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.client.increment("threads", 0), 160)


class BrokenCall(grpc.RpcError):
    """As gRPC raises it."""

    def __init__(self, code, *kinds):
        self._code = code
        self._kinds = kinds

    def code(self):
        return self._code

    def details(self):
        return "Stream removed"

    def trailing_metadata(self):
        return [(KIND, kind) for kind in self._kinds]


class Pages:
    """The answer to a scan."""

    def __init__(self, *pages):
        self._pages = iter(pages)

    def __iter__(self):
        return self._pages

    def cancel(self):
        pass


class WithoutACluster(unittest.TestCase):
    def test_what_cannot_be_meant_is_refused(self):
        for arguments, options in [
            ((), {}),
            (("a:1",), {"certificate": "c"}),
            (("a:1",), {"certificate": "c", "key": "k"}),
            (("a:1",), {"user": "u"}),
            (("a:1",), {"user": "u:v", "password": "p"}),
            (("a:1",), {"deadline": 0}),
        ]:
            with self.assertRaises(ValueError):
                sextant.Client(*arguments, **options)
        with self.assertRaises(FileNotFoundError):
            sextant.Client("a:1", ca="/nowhere/ca.pem")

    def client(self, **methods):
        """One that asks these instead of two p-nodes."""
        client = sextant.Client("127.0.0.1:1", deadline=PATIENCE)
        self.addCleanup(client.close)
        client._stubs = [types.SimpleNamespace(**methods)] * 2
        return client

    def test_keys_and_values_are_text_or_bytes(self):
        c = self.client()
        for key, value in [("k", 5), (5, "v"), ("k", None), (["k"], "v"), ("k", 1.5), ("k", [1, 2])]:
            for call in [c.put, c.insert, c.append, sextant.Operation.put, sextant.Operation.append]:
                with self.assertRaises(TypeError):
                    call(key, value)
        for call in [c.get, c.delete, c.increment, sextant.Operation.delete, sextant.Operation.increment]:
            with self.assertRaises(TypeError):
                call(5)
        for value in ["v", b"v", bytearray(b"v"), memoryview(b"v")]:
            self.assertEqual(sextant.Operation.put(value, value)._wire.value, b"v")

    def test_a_scan_says_which_records_are_objects(self):
        records = [kv.KvRecord(key=b"h", seq=1, kind=1), kv.KvRecord(key=b"s", value=b"v", seq=2)]
        answers = iter([Pages(kv.KvScanPage(records=records)), Pages()])
        c = self.client(Scan=lambda request, timeout, metadata: next(answers))
        found = [(record.key, record.value, record.kind) for record in c.scan()]
        self.assertEqual(found, [(b"h", b"", "hash"), (b"s", b"v", "string")])

    def test_a_scan_goes_on_where_a_page_says(self):
        page = lambda goes_on_at, *keys: kv.KvScanPage(goes_on_at=goes_on_at, records=[kv.KvRecord(key=key) for key in keys])
        for reverse, answers, bounds in [
            (
                False,
                [
                    Pages(page(b""), page(b"c")),
                    BrokenCall(grpc.StatusCode.DEADLINE_EXCEEDED),
                    Pages(page(b"f", b"c", b"d"), page(b"z", b"y")),
                    # Of an older p-node.
                    Pages(page(b"", b"g")),
                    Pages(),
                ],
                [(b"a", b"x"), (b"c", b"x"), (b"c", b"x"), (b"f", b"x"), (b"g\0", b"x")],
            ),
            (
                True,
                [
                    Pages(page(b""), page(b"p")),
                    BrokenCall(grpc.StatusCode.DEADLINE_EXCEEDED),
                    Pages(page(b"k", b"o", b"m"), page(b"b", b"c")),
                    Pages(page(b"", b"g")),
                    Pages(),
                ],
                [(b"a", b"x"), (b"a", b"p"), (b"a", b"p"), (b"a", b"k"), (b"a", b"g")],
            ),
        ]:
            asked, left = [], iter(answers)

            def scan(request, timeout, metadata):
                asked.append((request.start, request.end, request.limit))
                answer = next(left)
                if isinstance(answer, grpc.RpcError):
                    raise answer
                return answer

            found = [record.key for record in self.client(Scan=scan).scan("a", "x", reverse=reverse, limit=9)]
            self.assertEqual(found, [b"o", b"m", b"g"] if reverse else [b"c", b"d", b"g"])
            limits = [9, 9, 9, 7, 6]
            self.assertEqual(asked, [(*bound, limit) for bound, limit in zip(bounds, limits)])

    def test_what_no_server_takes_is_not_sent(self):
        with self.assertRaises(sextant.Error) as raised:
            self.client().put("k", bytes(25 << 20))
        self.assertEqual((raised.exception.kind, raised.exception.perhaps_done), ("invalid", False))

    def test_only_who_is_named_has_refused(self):
        exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
        self.assertFalse(failure_of(BrokenCall(exhausted, "overloaded")).perhaps_done)
        self.assertFalse(failure_of(BrokenCall(grpc.StatusCode.OUT_OF_RANGE)).perhaps_done)
        for code in [exhausted, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED]:
            lost = failure_of(BrokenCall(code))
            self.assertEqual((lost.kind, lost.perhaps_done, lost.blames_server), ("unavailable", True, True))

    def test_a_write_that_the_transport_broke_off_gets_no_other_number(self):
        failures = iter(
            [BrokenCall(grpc.StatusCode.RESOURCE_EXHAUSTED), BrokenCall(grpc.StatusCode.FAILED_PRECONDITION, "unknown-session")]
        )
        numbers = []

        def put(request, timeout, metadata):
            numbers.append((request.request.session, request.request.number))
            raise next(failures)

        opened = lambda request, timeout, metadata: kv.KvOpenSessionReply(session=7)
        with self.assertRaises(sextant.Error) as raised:
            self.client(Put=put, OpenSession=opened).put("k", "v")
        self.assertEqual((raised.exception.kind, raised.exception.perhaps_done), ("outcome-unknown", True))
        self.assertEqual(numbers, [(7, 1), (7, 1)])

    def test_nobody_waits_longer_for_a_session_than_the_deadline(self):
        sessions = Sessions()
        with sessions._opening:
            with self.assertRaises(sextant.Error) as raised:
                sessions.take(time.monotonic(), None)
        self.assertEqual((raised.exception.kind, raised.exception.perhaps_done), ("unavailable", False))
        self.assertEqual(sessions.take(time.monotonic() + PATIENCE, lambda: 7)[1], 1)

    def test_numbers_in_flight_stay_within_the_window(self):
        sessions, end = Sessions(), time.monotonic() + PATIENCE
        opened = iter([7, 8])
        first = sessions.take(end, lambda: next(opened))
        self.assertEqual((first[0].id, first[1]), (7, 1))
        others = [sessions.take(end, None) for _ in range(WINDOW - 1)]
        with self.assertRaises(sextant.Error):
            sessions.take(time.monotonic(), None)
        sessions.done(*others[0])
        self.assertEqual(sessions.acked_below(first[0]), 1, "the first is still in flight")
        sessions.done(*first)
        self.assertEqual(sessions.acked_below(first[0]), 3)
        self.assertEqual(sessions.take(end, None)[1], WINDOW + 1)
        sessions.forget(first[0])
        self.assertEqual(sessions.take(end, lambda: next(opened))[0].id, 8)

    def test_a_batch_takes_as_many_numbers_as_its_answer_needs_room(self):
        self.assertEqual([span(1), span(1, 1), span(512), span(513), span(100_000)], [1, 1, 1, 2, 196])
        self.assertEqual([span(100_000, 100_000), span(10**9)], [200, WINDOW])
        sessions, end = Sessions(), time.monotonic() + PATIENCE
        first = sessions.take(end, lambda: 7, span(100_000))
        with self.assertRaises(sextant.Error):
            sessions.take(time.monotonic(), None, span(100_000))
        self.assertEqual(sessions.take(end, None)[1], 197)
        # Who waits for many is not passed by those who want one.
        taken = []
        large = threading.Thread(target=lambda: taken.append(sessions.take(end, None, span(100_000))[1]))
        large.start()
        while not sessions._line:
            time.sleep(0.001)
        with self.assertRaises(sextant.Error):
            sessions.take(time.monotonic(), None)
        sessions.done(*first)
        large.join()
        self.assertEqual(taken, [198])


if __name__ == "__main__":
    unittest.main()
