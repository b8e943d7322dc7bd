//! Contradictions that show without a search (after Gibbons and Korach).
//!
//! A state that only one operation can have brought about lasts for one stretch of time: it begins before the first of the
//! operations that wrote or met it returned, and ends after the last of them was called. If that is a real interval, its
//! *zone*, the record was in that state all through it: nothing that another state needs, or that would end this one, fits
//! inside. In a history with many operations under way at once the search would try every order before it gave up.

use super::evidence::Evidence;
use super::prepare::{Item, Prepared};
use crate::history::{ABSENT, Value};
use crate::register::Step;

/// The operations that wrote or met a state.
struct Zone {
    state: Value,
    /// The first return among them, and the last call.
    first_ret: u64,
    last_call: u64,
    /// Whose they are.
    first: usize,
    last: usize,
}

impl Zone {
    /// The state lasts from a return to a later call.
    fn is_interval(&self) -> bool {
        self.first_ret < self.last_call
    }

    /// Something that began and ended in it.
    fn contains(&self, call: u64, ret: u64) -> bool {
        self.first_ret < call && ret < self.last_call
    }

    fn held_against(&self, items: &[Item], others: &[usize]) -> Evidence {
        Evidence::Held {
            from: items[self.first].source,
            to: items[self.last].source,
            against: others.iter().map(|i| items[*i].source).collect(),
        }
    }
}

pub(super) fn contradiction(prepared: &Prepared) -> Option<Evidence> {
    let items = &prepared.items;
    let mut zones = zones(prepared);
    if let Some(evidence) = used_after_it_was_replaced(items, &zones) {
        return Some(evidence);
    }
    let zone_of: Vec<Option<usize>> = {
        let mut of = vec![None; prepared.states];
        zones.sort_by_key(|zone| (zone.first_ret, zone.state));
        zones.iter().enumerate().for_each(|(at, zone)| of[zone.state as usize] = Some(at));
        of
    };
    let held: Vec<&Zone> = zones.iter().filter(|zone| zone.is_interval()).collect();
    // In the order of their beginnings: those that overlap are neighbours.
    if let Some(pair) = held.windows(2).find(|pair| pair[1].first_ret < pair[0].last_call) {
        return Some(pair[0].held_against(items, &[pair[1].first, pair[1].last]));
    }
    let holder_of = |call: u64, ret: u64| {
        let at = held.partition_point(|zone| zone.first_ret < call).checked_sub(1)?;
        Some(held[at]).filter(|zone| zone.contains(call, ret))
    };
    for zone in zones.iter().filter(|zone| !zone.is_interval()) {
        // Its stretch would have to reach over the holder's.
        if let Some(holder) = holder_of(zone.last_call, zone.first_ret) {
            return Some(holder.held_against(items, &[zone.first, zone.last]));
        }
    }
    for (i, item) in items.iter().enumerate().filter(|(_, item)| item.is_mandatory()) {
        let Some(holder) = holder_of(item.call, item.ret) else { continue };
        let own =
            |state: Option<Value>| state.is_some_and(|s| s == holder.state && zone_of[s as usize].is_some());
        let belongs = own(item.needs()) || own(item.action.produces());
        if !belongs && item.action.step(holder.state) != Step::Legal(holder.state) {
            return Some(holder.held_against(items, &[i]));
        }
    }
    None
}

/// The zones of the states that only one operation can bring about, and does.
fn zones(prepared: &Prepared) -> Vec<Zone> {
    let items = &prepared.items;
    let mut producers = vec![0u32; prepared.states];
    for state in items.iter().filter_map(|item| item.action.produces()) {
        producers[state as usize] += 1;
    }
    let mut zones: Vec<Option<Zone>> = (0..prepared.states).map(|_| None).collect();
    for (i, item) in items.iter().enumerate().filter(|(_, item)| item.is_mandatory()) {
        if let Some(state) = item.action.produces().filter(|s| *s != ABSENT && producers[*s as usize] == 1) {
            let zone = Zone { state, first_ret: item.ret, last_call: item.call, first: i, last: i };
            zones[state as usize] = Some(zone);
        }
    }
    for (i, item) in items.iter().enumerate() {
        let Some(zone) = item.needs().and_then(|state| zones[state as usize].as_mut()) else { continue };
        if item.ret < zone.first_ret {
            (zone.first_ret, zone.first) = (item.ret, i);
        }
        if item.call > zone.last_call {
            (zone.last_call, zone.last) = (item.call, i);
        }
    }
    zones.into_iter().flatten().collect()
}

/// A compare-and-set that replaces such a state is the last to meet it.
fn used_after_it_was_replaced(items: &[Item], zones: &[Zone]) -> Option<Evidence> {
    let replaces = |item: &Item, state: Value| {
        item.needs() == Some(state) && item.action.step(state) != Step::Legal(state)
    };
    let mut replaced: Vec<Option<usize>> = vec![None; zones.iter().map(|z| z.state as usize + 1).max()?];
    let has_zone: Vec<bool> = {
        let mut has = vec![false; replaced.len()];
        zones.iter().for_each(|zone| has[zone.state as usize] = true);
        has
    };
    for (i, item) in items.iter().enumerate() {
        let Some(state) = item.needs().filter(|s| has_zone.get(*s as usize) == Some(&true)) else { continue };
        if replaces(item, state)
            && let Some(by) = replaced[state as usize].replace(i)
        {
            return Some(Evidence::Replaced { by: items[by].source, then: item.source });
        }
    }
    zones.iter().find_map(|zone| {
        let by = replaced[zone.state as usize]?;
        let last = &items[zone.last];
        (zone.last != by && items[by].ret < last.call)
            .then_some(Evidence::Replaced { by: items[by].source, then: last.source })
    })
}
