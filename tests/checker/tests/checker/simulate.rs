//! Histories of an atomic register: every operation takes effect at a random moment between its call and its return, those
//! of unknown outcome at any time after their call, or never.

use std::collections::HashMap;

use sextant_checker::{Action, History, Op, UNKNOWN};

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub clients: u64,
    pub operations: u32,
    pub keys: u32,
    pub unknown_percent: u32,
    /// Whether inserts, deletes and compare-and-sets are in it, or only puts and gets.
    pub conditional: bool,
}

/// A legal history that can be added to.
pub struct Simulation {
    pub history: History,
    /// After all calls and returns.
    pub end: u64,
    /// Text and version of each key's record; the last version ever.
    registers: HashMap<String, Register>,
    values: u32,
    line: u32,
}

#[derive(Clone, Default)]
pub struct Register {
    pub value: Option<String>,
    pub version: u64,
}

#[derive(Clone, Copy)]
enum Kind {
    Get,
    Put,
    Insert,
    Delete {
        told: bool,
    },
    /// Expects what is there, or something else.
    Cas {
        guessed: bool,
    },
}

struct Planned {
    client: u64,
    key: u32,
    kind: Kind,
    call: u64,
    ret: u64,
    /// `None`: it never takes effect.
    point: Option<u64>,
}

const KINDS: [Kind; 10] = [
    Kind::Get,
    Kind::Get,
    Kind::Get,
    Kind::Put,
    Kind::Put,
    Kind::Insert,
    Kind::Delete { told: true },
    Kind::Delete { told: false },
    Kind::Cas { guessed: true },
    Kind::Cas { guessed: false },
];

pub fn simulate(plan: &Plan) -> Simulation {
    let mut rng = fastrand::Rng::with_seed(plan.seed);
    let mut free: Vec<(u64, u64)> = (0..plan.clients).map(|client| (rng.u64(0..100), client)).collect();
    let mut next_client = plan.clients;
    let mut planned: Vec<Planned> = Vec::new();
    for _ in 0..plan.operations {
        let at = (0..free.len()).min_by_key(|i| free[*i]).expect("there are clients");
        let (time, client) = free[at];
        let call = time + rng.u64(1..50);
        let took = rng.u64(1..200);
        let kind = KINDS[rng.usize(0..if plan.conditional { KINDS.len() } else { 5 })];
        let unknown = rng.u32(0..100) < plan.unknown_percent;
        let point = match unknown {
            false => Some(rng.u64(call..=call + took)),
            true => rng.bool().then(|| call + rng.u64(0..2000)),
        };
        let ret = if unknown { UNKNOWN } else { call + took };
        planned.push(Planned { client, key: rng.u32(0..plan.keys), kind, call, ret, point });
        // Whoever does not know what became of its operation goes on under another name.
        next_client += u64::from(unknown);
        free[at] = (call + took, if unknown { next_client } else { client });
    }
    let mut order: Vec<usize> = (0..planned.len()).collect();
    let mut ties: Vec<u64> = (0..planned.len()).map(|_| rng.u64(..)).collect();
    order.sort_by_key(|i| (planned[*i].point.unwrap_or(u64::MAX), std::mem::take(&mut ties[*i])));
    let mut simulation = Simulation {
        history: History::default(),
        end: planned.iter().map(|p| p.call + 3000).max().unwrap_or(0),
        registers: HashMap::new(),
        values: 0,
        line: 0,
    };
    for i in order {
        simulation.execute(&planned[i], &mut rng);
    }
    simulation
}

impl Simulation {
    fn execute(&mut self, planned: &Planned, rng: &mut fastrand::Rng) {
        let key = format!("k{}", planned.key);
        let before = self.registers.entry(key.clone()).or_default().clone();
        let exists = before.value.is_some();
        let known = planned.ret != UNKNOWN;
        let fresh = self.fresh_value();
        let old = self.history.intern(before.value.as_deref());
        let new = self.history.intern(Some(&fresh));
        // The new value, if there is one.
        let (action, effect) = match planned.kind {
            Kind::Get => (Action::Get { out: old }, None),
            Kind::Put => (Action::Put { value: new }, Some(Some(fresh))),
            Kind::Insert => {
                let action = Action::Insert { value: new, applied: known.then_some(!exists) };
                (action, (!exists).then_some(Some(fresh)))
            }
            Kind::Delete { told } => {
                (Action::Delete { existed: (told && known).then_some(exists) }, Some(None))
            }
            Kind::Cas { guessed } => {
                let expected = if guessed {
                    old
                } else {
                    self.history.intern(Some(&format!("v{}", rng.u32(1..self.values + 1))))
                };
                let applied = expected == old;
                let deletes = rng.u32(0..4) == 0;
                let action = Action::Cas {
                    expected,
                    new: if deletes { sextant_checker::ABSENT } else { new },
                    applied: known.then_some(applied),
                };
                (action, applied.then_some((!deletes).then_some(fresh)))
            }
        };
        let register = self.registers.get_mut(&key).expect("made above");
        let mut version = (exists && before.version > 0).then_some(before.version);
        if let Some(value) = effect
            && planned.point.is_some()
        {
            register.value = value;
            register.version += 1;
            version = Some(register.version);
        }
        let version = version.filter(|_| known);
        self.push(&key, planned.client, action, planned.call, planned.ret, version);
    }

    pub fn fresh_value(&mut self) -> String {
        self.values += 1;
        format!("v{}", self.values)
    }

    pub fn push(
        &mut self,
        key: &str,
        client: u64,
        action: Action,
        call: u64,
        ret: u64,
        version: Option<u64>,
    ) {
        self.line += 1;
        self.history.push(key, Op { client, action, call, ret, version, line: self.line });
    }

    /// An operation after everything else.
    pub fn then(&mut self, key: &str, action: Action, version: Option<u64>) {
        let call = self.end + 1;
        self.end += 10;
        self.push(key, 1_000_000, action, call, self.end, version);
    }

    /// A version that is newer than all of the key's.
    pub fn next_version(&mut self, key: &str) -> u64 {
        let register = self.registers.entry(key.to_owned()).or_default();
        register.version += 1;
        register.version
    }
}
