//! A store whose operations wait until the test lets them go.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::Stream;
use parking_lot::Mutex;
use sextant_common::database::Database;
use sextant_common::ids::Seq;
use sextant_common::marks::Marks;
use sextant_common::operation::{Lane, OpOutcome, Operation, Put, Record, Told, WriteOutcome};
use sextant_common::{Error, ErrorKind, Result};
use sextant_resp::{
    ElementPage, ElementRange, Look, Named, Position, SetCondition, SetDone, Store, Walk, one_by_one,
};
use tokio::sync::{oneshot, watch};

#[derive(Clone)]
pub struct GatedStore(Arc<State>);

struct State {
    gates: Mutex<HashMap<String, oneshot::Sender<Result<()>>>>,
    /// What was started, in order.
    started: watch::Sender<Vec<String>>,
    /// Which keys were looked at, in order.
    looked: Mutex<Vec<String>>,
    /// How many sets came together, each time.
    batches: Mutex<Vec<usize>>,
}

impl GatedStore {
    pub fn new() -> Self {
        let started = watch::Sender::new(Vec::new());
        Self(Arc::new(State {
            gates: Mutex::default(),
            started,
            looked: Mutex::default(),
            batches: Mutex::default(),
        }))
    }

    /// Waits until so many operations have been started, and names them all.
    pub async fn started(&self, count: usize) -> Vec<String> {
        let mut started = self.0.started.subscribe();
        let all = tokio::time::timeout(super::DEADLINE, started.wait_for(|all| all.len() >= count)).await;
        all.unwrap_or_else(|_| panic!("{:?}", self.0.started.borrow())).unwrap().clone()
    }

    /// Which keys were looked at without waiting, in order.
    pub fn looked(&self) -> Vec<String> {
        self.0.looked.lock().clone()
    }

    /// How many sets without a condition were handed over together, each time.
    pub fn batches(&self) -> Vec<usize> {
        self.0.batches.lock().clone()
    }

    pub fn finish(&self, operation: &str) {
        let gate = self.0.gates.lock().remove(operation);
        let _ = gate.unwrap_or_else(|| panic!("{operation} was not started")).send(Ok(()));
    }

    pub fn fail(&self, operation: &str, kind: ErrorKind) {
        let gate = self.0.gates.lock().remove(operation);
        let _ = gate
            .unwrap_or_else(|| panic!("{operation} was not started"))
            .send(Err(Error::new(kind, "told to")));
    }

    async fn pass(&self, operation: String) -> Result<()> {
        let (gate, opened) = oneshot::channel();
        self.0.gates.lock().insert(operation.clone(), gate);
        self.0.started.send_modify(|all| all.push(operation));
        opened.await.unwrap_or_else(|_| Err(Error::internal("the test is over")))
    }
}

fn names(keys: &[Bytes]) -> String {
    keys.iter().map(|k| String::from_utf8_lossy(k)).collect::<Vec<_>>().join(" ")
}

fn record(value: Bytes) -> Record {
    Record::marked(value, Seq(1), Marks::NONE)
}

impl Store for GatedStore {
    /// The key that was looked at.
    type Missed = Option<Bytes>;

    /// (It has one only.)
    fn database(&self, _: Database) -> Self {
        self.clone()
    }

    fn open(&self, _: bool) -> impl Future<Output = Result<bool>> + Send + 'static {
        std::future::ready(Ok(true))
    }

    async fn databases(&self) -> Result<Vec<Database>> {
        Ok(vec![Database::FIRST])
    }

    fn look(&self, key: &[u8]) -> Look<Option<Bytes>> {
        let key = Bytes::copy_from_slice(key);
        self.0.looked.lock().push(names(std::slice::from_ref(&key)));
        // Keys that start with "hot" are at hand, those that start with "hotlong" with long values.
        match &key[..] {
            [b'h', b'o', b't', b'l', b'o', b'n', b'g', ..] => {
                Look::Known(Ok(Some(record(Bytes::from(vec![b'v'; 600 * 1024])))))
            }
            [b'h', b'o', b't', ..] => Look::Known(Ok(Some(record(key)))),
            _ => Look::Missed(Some(key)),
        }
    }

    async fn get(&self, key: Bytes, missed: Option<Bytes>) -> Result<Option<Record>> {
        assert!(missed.is_none_or(|looked_at| looked_at == key));
        self.pass(format!("get {}", names(std::slice::from_ref(&key)))).await?;
        Ok(Some(record(key)))
    }

    async fn multi_get(&self, keys: Vec<Bytes>, first: Option<Bytes>) -> Result<Vec<Option<Record>>> {
        assert!(first.is_none_or(|looked_at| looked_at == keys[0]));
        self.pass(format!("mget {}", names(&keys))).await?;
        Ok(keys.into_iter().map(|key| Some(record(key))).collect())
    }

    async fn set(&self, put: Put, _: SetCondition, _: Lane) -> Result<bool> {
        self.pass(format!("set {}", names(&[put.key, put.value]))).await?;
        Ok(true)
    }

    fn set_each(&self, puts: Vec<Put>, lane: Lane) -> impl Stream<Item = SetDone> + Send + 'static {
        self.0.batches.lock().push(puts.len());
        one_by_one(self, puts, lane)
    }

    async fn multi_set(&self, pairs: Vec<(Bytes, Bytes)>, _: Lane) -> Result<()> {
        let keys: Vec<Bytes> = pairs.into_iter().map(|(k, _)| k).collect();
        self.pass(format!("mset {}", names(&keys))).await
    }

    async fn delete(&self, keys: Vec<Bytes>, _: Lane) -> Result<u64> {
        self.pass(format!("del {}", names(&keys))).await?;
        Ok(keys.len() as u64)
    }

    async fn exists(&self, keys: Vec<Bytes>, first: Option<Bytes>) -> Result<u64> {
        assert!(first.is_none_or(|looked_at| looked_at == keys[0]));
        self.pass(format!("exists {}", names(&keys))).await?;
        Ok(keys.len() as u64)
    }

    async fn elements(&self, keys: Vec<Bytes>) -> Result<Vec<Option<Record>>> {
        self.pass("elements".into()).await?;
        Ok(keys.iter().map(|_| None).collect())
    }

    async fn element_page(&self, _: ElementRange) -> Result<ElementPage> {
        self.pass("element page".into()).await?;
        Ok(ElementPage::default())
    }

    async fn walk(&self, _: Walk) -> Result<(Vec<Named>, Option<Position>)> {
        // (The server looks at all that it has received before a test hears of it, and lets it go.)
        tokio::task::yield_now().await;
        self.pass("walk".into()).await?;
        Ok((vec![], None))
    }

    async fn any_key(&self, _: u64) -> Result<Option<Bytes>> {
        self.pass("any key".into()).await?;
        Ok(None)
    }

    fn are_together<'k>(&self, _: impl IntoIterator<Item = &'k [u8]>) -> bool {
        true
    }

    async fn execute(&self, ops: Vec<Operation>, _: Lane) -> Result<WriteOutcome> {
        let keys: Vec<Bytes> = ops.iter().map(|op| op.key.clone()).collect();
        self.pass(format!("change {}", names(&keys))).await?;
        let told = OpOutcome { applied: true, told: Told::Value("1".into()), ..OpOutcome::default() };
        Ok(WriteOutcome { applied: true, results: vec![told; ops.len()] })
    }

    fn now_ms(&self) -> u64 {
        0
    }

    fn info(&self) -> Vec<(&'static str, Vec<(String, String)>)> {
        vec![]
    }
}
