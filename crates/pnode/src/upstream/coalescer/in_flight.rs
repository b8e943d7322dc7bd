//! What is in flight on a stream. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use super::Limits;

/// What is in flight: callers by consecutive ids, and the messages that they travelled in.
pub(super) struct InFlight<T> {
    /// Id of the first slot.
    base: u64,
    slots: VecDeque<Option<T>>,
    /// In the order of sending: (first id, requests not answered yet, sent at).
    messages: VecDeque<Message>,
    /// Of all messages that are not answered completely.
    bytes: usize,
}

struct Message {
    first_id: u64,
    end_id: u64,
    left: usize,
    bytes: usize,
    sent_ns: u64,
}

impl<T> InFlight<T> {
    pub fn new(next_id: u64) -> Self {
        Self { base: next_id, slots: VecDeque::new(), messages: VecDeque::new(), bytes: 0 }
    }

    pub fn next_id(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    pub fn push(&mut self, caller: T) {
        self.slots.push_back(Some(caller));
    }

    /// Who waits for this one, if it is not answered.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let at = usize::try_from(id.checked_sub(self.base)?).ok()?;
        self.slots.get_mut(at)?.as_mut()
    }

    /// Everything pushed since `first_id` travels in one message.
    pub fn message_sent(&mut self, first_id: u64, bytes: usize, sent_ns: u64) {
        let end_id = self.next_id();
        let left = (end_id - first_id) as usize;
        self.messages.push_back(Message { first_id, end_id, left, bytes, sent_ns });
        self.bytes += bytes;
    }

    pub fn take(&mut self, id: u64) -> Option<T> {
        let at = usize::try_from(id.checked_sub(self.base)?).ok()?;
        let caller = self.slots.get_mut(at)?.take()?;
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.base += 1;
        }
        let at = self.messages.partition_point(|m| m.end_id <= id);
        if let Some(message) = self.messages.get_mut(at) {
            message.left -= 1;
            if message.left == 0 {
                self.bytes -= message.bytes;
                self.messages.remove(at);
            }
        }
        Some(caller)
    }

    /// Takes whoever is left of a message.
    pub fn finish_message(&mut self, first_id: u64) -> Vec<T> {
        let at = self.messages.partition_point(|m| m.first_id < first_id);
        match self.messages.get(at) {
            Some(m) if m.first_id == first_id => {
                (m.first_id..m.end_id).filter_map(|id| self.take(id)).collect()
            }
            _ => Vec::new(),
        }
    }

    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.base = self.next_id();
        self.messages.clear();
        self.bytes = 0;
        std::mem::take(&mut self.slots).into_iter().flatten()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub fn oldest_sent_ns(&self) -> Option<u64> {
        self.messages.front().map(|m| m.sent_ns)
    }

    pub fn may_send(&self, limits: Limits, now_ns: u64) -> bool {
        let slow = self.messages.partition_point(|m| after(m.sent_ns, limits.slow_after) <= now_ns);
        self.messages.len() - slow < limits.messages
            && self.messages.len() < limits.messages_max
            && self.bytes < limits.bytes_in_flight
    }

    /// When time alone changes what may be done: a message becomes slow, or the stream is stalled.
    pub fn next_change(&self, limits: Limits, may_send: bool, now_ns: u64) -> Option<Duration> {
        let stalled = after(self.oldest_sent_ns()?, limits.stalled_after);
        let slow = self.messages.iter().map(|m| after(m.sent_ns, limits.slow_after)).find(|at| *at > now_ns);
        let at = if may_send { stalled } else { slow.map_or(stalled, |slow| slow.min(stalled)) };
        Some(Duration::from_nanos(at.saturating_sub(now_ns)))
    }
}

pub(super) fn after(sent_ns: u64, time: Duration) -> u64 {
    sent_ns.saturating_add(time.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain map: whatever is sent, answered in any order, finished or drained, nobody is lost or answered twice.
        #[test]
        fn in_flight_agrees_with_a_map(ops in prop::collection::vec((0u8..4, any::<prop::sample::Index>(), 1usize..5), 0..100)) {
            let mut in_flight = InFlight::new(1);
            let mut model: std::collections::BTreeMap<u64, u64> = std::collections::BTreeMap::new();
            let mut messages: Vec<(u64, u64)> = Vec::new();
            let taken = Mutex::new(0);
            for (op, index, n) in ops {
                match op {
                    0 => {
                        let first = in_flight.next_id();
                        for id in first..first + n as u64 {
                            in_flight.push(id);
                            model.insert(id, id);
                        }
                        in_flight.message_sent(first, n, 0);
                        messages.push((first, first + n as u64));
                    }
                    1 if in_flight.next_id() > 1 => {
                        let id = 1 + index.index(in_flight.next_id() as usize - 1) as u64;
                        prop_assert_eq!(in_flight.take(id), model.remove(&id));
                        *taken.lock() += 1;
                    }
                    2 if !messages.is_empty() => {
                        let (first, end) = *index.get(&messages);
                        let expected: Vec<u64> = (first..end).filter_map(|id| model.remove(&id)).collect();
                        prop_assert_eq!(in_flight.finish_message(first), expected);
                    }
                    3 if n == 4 => {
                        let drained: Vec<u64> = in_flight.drain().collect();
                        prop_assert_eq!(drained, std::mem::take(&mut model).into_values().collect::<Vec<_>>());
                    }
                    _ => {}
                }
                let open = messages.iter().filter(|(f, e)| model.range(*f..*e).next().is_some()).count();
                prop_assert_eq!(in_flight.messages.len(), open);
                let unanswered = messages.iter().filter(|(f, e)| model.range(*f..*e).next().is_some());
                prop_assert_eq!(in_flight.bytes, unanswered.map(|(f, e)| (e - f) as usize).sum::<usize>());
            }
        }
    }
}
