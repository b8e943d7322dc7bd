//! When a search for records that finds none is interrupted, to say how far it has come. Pure.
//!
//! Who waits for records behind a long run of deleted or expired ones sees so that the scan gets on; who has given up goes on there.

use std::time::Duration;

/// Pages in a row that have nothing, however fast they come: what they have is looked at again after a lost connection.
const PAGES_MAX: u32 = 64;

/// Of one search: it ends with records, with the range, or with this.
pub(super) struct Silence {
    /// None: for ever.
    until_ns: Option<u64>,
    pages: u32,
}

impl Silence {
    /// `longest`: after so long something is to be heard; None: when there are records only.
    pub fn begin(longest: Option<Duration>, now_ns: u64) -> Self {
        let until_ns = longest.map(|longest| now_ns.saturating_add(longest.as_nanos() as u64));
        Self { until_ns, pages: 0 }
    }

    /// A page has nothing. Whether that is to be told now.
    pub fn goes_on(&mut self, now_ns: u64) -> bool {
        self.pages += 1;
        self.until_ns.is_some_and(|until_ns| now_ns >= until_ns || self.pages >= PAGES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_nanos(100);

    #[test]
    fn a_page_without_records_is_told_when_nothing_was_heard_for_so_long() {
        let mut silence = Silence::begin(Some(LONGEST), 1000);
        assert!(!silence.goes_on(1000) && !silence.goes_on(1099));
        assert!(silence.goes_on(1100));
        assert!(Silence::begin(Some(Duration::ZERO), 1000).goes_on(1000), "a slow page is told by itself");
    }

    #[test]
    fn many_pages_without_records_are_told_whatever_the_time() {
        let mut silence = Silence::begin(Some(LONGEST), 1000);
        assert_eq!((1..).find(|_| silence.goes_on(1000)), Some(PAGES_MAX));
    }

    #[test]
    fn who_wants_records_only_hears_of_nothing_else() {
        let mut silence = Silence::begin(None, 1000);
        assert!((0..2 * PAGES_MAX).all(|_| !silence.goes_on(u64::MAX)));
    }
}
