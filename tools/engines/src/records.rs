//! The records: rising keys of 16 bytes, every second of which exists; values of which half compresses.

pub struct Records {
    values: Vec<Vec<u8>>,
    value_bytes: usize,
}

impl Records {
    pub fn new(count: usize, value_bytes: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(7);
        let values = (0..count).map(|_| {
            let mut value = vec![b'.'; value_bytes];
            random.fill(&mut value[..value_bytes / 2]);
            value
        });
        Self { values: values.collect(), value_bytes }
    }

    pub fn count(&self) -> usize {
        self.values.len()
    }

    /// Keys and values.
    pub fn bytes(&self) -> usize {
        self.count() * (16 + self.value_bytes)
    }

    pub fn key(&self, n: usize) -> [u8; 16] {
        place(2 * n)
    }

    /// Keys to read, in no order: such as exist, or between them.
    pub fn keys(&self, count: usize, exist: bool, seed: u64) -> Vec<[u8; 16]> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..count).map(|_| place(2 * random.usize(..self.count()) + usize::from(!exist))).collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = ([u8; 16], &[u8])> {
        self.values.iter().enumerate().map(|(n, value)| (self.key(n), value.as_slice()))
    }
}

fn place(n: usize) -> [u8; 16] {
    let mut key = *b"user000000000000";
    key[4..].copy_from_slice(format!("{n:012}").as_bytes());
    key
}
