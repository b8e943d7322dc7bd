//! Which servers the copies of a table are on, so that no zone has more of them than it must. Pure.

use sextant_environment::config::Zone;

/// Of `candidates` (in the order of preference within a zone) so many, the first of the zone that has the fewest chosen, again and again.
/// `rank`: what counts before zones do; the lowest first.
pub fn spread<T>(
    mut candidates: Vec<&T>,
    count: usize,
    zone: impl Fn(&T) -> Zone<'_>,
    rank: impl Fn(&T) -> usize,
) -> Vec<&T> {
    let mut chosen: Vec<&T> = Vec::with_capacity(count.min(candidates.len()));
    while chosen.len() < count {
        let crowd = |one: &T| chosen.iter().filter(|other| zone(other) == zone(one)).count();
        let best = candidates.iter().enumerate().min_by_key(|(_, one)| (rank(one), crowd(one)));
        let Some((at, _)) = best else { break };
        chosen.push(candidates.remove(at));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sextant_common::ids::NodeId;

    use super::*;

    const NAMES: [&str; 4] = ["a", "b", "c", "d"];

    fn zone((id, name): &(u64, Option<usize>)) -> Zone<'_> {
        name.map_or(Zone::Own(NodeId(*id)), |at| Zone::Named(NAMES[at]))
    }

    proptest! {
        #[test]
        fn no_zone_has_two_more_than_another_that_could_have_one(
            names in prop::collection::vec(prop::option::of(0usize..4), 1..12),
            count in 0usize..8,
        ) {
            let servers: Vec<(u64, Option<usize>)> = (1..).zip(names).collect();
            let chosen = spread(servers.iter().collect(), count, zone, |_| 0);
            prop_assert_eq!(chosen.len(), count.min(servers.len()));
            let crowd = |of: Zone<'_>| chosen.iter().filter(|one| zone(one) == of).count();
            for free in servers.iter().filter(|one| !chosen.contains(one)) {
                for one in &chosen {
                    prop_assert!(crowd(zone(one)) <= crowd(zone(free)) + 1, "{:?} of {:?}", chosen, servers);
                }
            }
        }

        #[test]
        fn without_zones_the_order_is_what_it_was(count in 0usize..8, servers in 1u64..8) {
            let servers: Vec<(u64, Option<usize>)> = (1..=servers).map(|id| (id, None)).collect();
            let chosen = spread(servers.iter().collect(), count, zone, |(id, _)| usize::from(*id == 1));
            let mut expected: Vec<_> = servers.iter().collect();
            expected.rotate_left(1);
            expected.truncate(count);
            prop_assert_eq!(chosen, expected);
        }
    }
}
