//! Counters: increments are judged by themselves, because each depends on all before it.
//!
//! Increments by 1 of a counter that nobody else writes are linearizable if, and only if, their results differ, none is larger than
//! that of one that was called after it had returned, and what is missing in between was left by increments whose outcome
//! is unknown.

/// One that took effect, or may have.
#[derive(Clone, Copy, Debug)]
pub struct Increment {
    pub call_ns: u64,
    pub ret_ns: u64,
    /// None: nobody knows what became of it.
    pub result: Option<i64>,
}

/// `last`: what the counter shows when everything is over.
pub fn judge(increments: &[Increment], last: i64) -> Result<(), String> {
    let mut known: Vec<(i64, Increment)> = increments.iter().filter_map(|i| Some((i.result?, *i))).collect();
    known.sort_by_key(|(result, _)| *result);
    if let Some(twice) = known.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(format!("two increments were answered {}", twice[0].0));
    }
    let mut earliest_ret_ns = u64::MAX;
    for (result, increment) in known.iter().rev() {
        if earliest_ret_ns < increment.call_ns {
            return Err(format!("an increment was answered {result} after a larger answer had been given"));
        }
        earliest_ret_ns = earliest_ret_ns.min(increment.ret_ns);
    }
    let least = known.len() as i64;
    let most = increments.len() as i64;
    if last < least || last > most {
        return Err(format!("it shows {last} after {least} increments, and {} perhaps", most - least));
    }
    match known.last() {
        Some((largest, _)) if *largest > last => Err(format!("it shows {last} after an answer of {largest}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn increment(call_ns: u64, ret_ns: u64, result: Option<i64>) -> Increment {
        Increment { call_ns, ret_ns, result }
    }

    #[test]
    fn what_could_have_happened_in_some_order_is_accepted() {
        judge(&[], 0).unwrap();
        let concurrent = [increment(1, 9, Some(2)), increment(1, 9, Some(1)), increment(10, 11, Some(3))];
        judge(&concurrent, 3).unwrap();
        let lost = [increment(1, 2, Some(1)), increment(1, 2, None), increment(3, 4, Some(3))];
        judge(&lost, 3).unwrap();
        let late = [increment(1, 2, None), increment(3, 4, Some(1))];
        judge(&late, 1).unwrap();
        judge(&late, 2).unwrap();
    }

    #[test]
    fn what_could_not_is_not() {
        for (increments, last, what) in [
            (vec![increment(1, 2, Some(1)), increment(3, 4, Some(1))], 1, "two increments were answered 1"),
            (vec![increment(1, 2, Some(2)), increment(3, 4, Some(1))], 2, "after a larger answer"),
            (vec![increment(1, 2, Some(1))], 0, "shows 0 after 1"),
            (vec![increment(1, 2, Some(1))], 2, "shows 2 after 1"),
            (vec![increment(1, 2, None), increment(1, 2, Some(2))], 1, "after an answer of 2"),
        ] {
            let found = judge(&increments, last).unwrap_err();
            assert!(found.contains(what), "{found}");
        }
    }
}
