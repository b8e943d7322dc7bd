//! Tables of what may happen, drawn by weight.

use crate::plan::Profile;

/// Something that may be drawn. `A`: how it is done.
pub(super) struct Entry<A: 'static> {
    /// Under which it is counted.
    pub(super) name: &'static str,
    pub(super) weight: Weight,
    pub(super) act: A,
}

/// How often it is drawn, out of the sum of its table, by the run's profile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weight {
    usual: u64,
    lying_clocks: u64,
}

impl Weight {
    /// The same in all profiles.
    pub(super) const fn of(weight: u64) -> Self {
        Self { usual: weight, lying_clocks: weight }
    }

    /// Another one where clocks lie.
    pub(super) const fn by_clocks(usual: u64, lying_clocks: u64) -> Self {
        Self { usual, lying_clocks }
    }

    pub(super) fn in_profile(self, profile: Profile) -> u64 {
        match profile {
            Profile::Mixed | Profile::Quiet => self.usual,
            Profile::LyingClocks => self.lying_clocks,
        }
    }
}

/// One of the entries, by one random number. Neither order nor sum of a table changes without changing what every seed says.
pub(super) fn draw<A>(
    rng: &mut fastrand::Rng,
    table: &'static [Entry<A>],
    profile: Profile,
) -> &'static Entry<A> {
    let weight = |entry: &Entry<A>| entry.weight.in_profile(profile);
    let mut left = rng.u64(0..table.iter().map(weight).sum());
    let drawn = table.iter().find(|entry| {
        let weight = weight(entry);
        let here = left < weight;
        left = left.saturating_sub(weight);
        here
    });
    drawn.unwrap_or(&table[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: [Entry<()>; 3] = [
        Entry { name: "often", weight: Weight::of(3), act: () },
        Entry { name: "where clocks lie", weight: Weight::by_clocks(0, 1), act: () },
        Entry { name: "where they do not", weight: Weight::by_clocks(1, 0), act: () },
    ];

    #[test]
    fn entries_are_drawn_as_often_as_their_weights_say() {
        for (profile, never) in
            [(Profile::Mixed, "where clocks lie"), (Profile::LyingClocks, "where they do not")]
        {
            let mut rng = fastrand::Rng::with_seed(1);
            let drawn: Vec<_> = (0..4_000).map(|_| draw(&mut rng, &TABLE, profile).name).collect();
            let often = drawn.iter().filter(|name| **name == "often").count();
            assert!((2_850..3_150).contains(&often), "{often} of 4000");
            assert!(!drawn.contains(&never));
        }
    }
}
