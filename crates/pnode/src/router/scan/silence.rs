//! When a search for records that finds none is interrupted, to say how far it has come.
//!
//! Who waits for records behind a long run of deleted or expired ones sees so that the scan gets on; who has given up goes on there.

use std::time::Duration;

use sextant_common::Result;
use sextant_environment::Clock;

use super::rest::Rest;

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

/// Shortest wait for pages, whatever was asked.
const WAIT_MIN: Duration = Duration::from_millis(10);

/// What its caller knows of a scan over several partitions, and when more is to be heard, if there is more to say.
pub(super) struct Told<'a> {
    clock: &'a dyn Clock,
    /// None: nothing is told but records.
    longest: Option<Duration>,
    next_ns: u64,
    at: Rest,
}

impl<'a> Told<'a> {
    pub fn begin(clock: &'a dyn Clock, longest: Option<Duration>, at: &Rest) -> Self {
        let mut told = Self { clock, longest, next_ns: 0, at: at.clone() };
        told.put_off();
        told
    }

    fn put_off(&mut self) {
        let longest = self.longest.unwrap_or_default();
        self.next_ns = self.clock.holder_ns().saturating_add(longest.as_nanos() as u64);
    }

    pub fn is_due(&self) -> bool {
        self.longest.is_some() && self.clock.holder_ns() >= self.next_ns
    }

    /// Waits for pages, until more is to be heard at most.
    pub async fn in_time(&self, pages: impl Future<Output = Result<Vec<()>>>) -> Result<()> {
        if self.longest.is_none() {
            return pages.await.map(drop);
        }
        let left = Duration::from_nanos(self.next_ns.saturating_sub(self.clock.holder_ns()));
        let come = tokio::time::timeout(left.max(WAIT_MIN), pages).await;
        come.map_or(Ok(()), |pages| pages.map(drop))
    }

    /// The scan goes on there. Whether that is to be told: with records, or if it is more than is known.
    pub fn goes_on_at(&mut self, rest: &Rest, records: bool) -> bool {
        self.put_off();
        let is_news = records || self.longest.is_some() && self.at.is_before(rest);
        if is_news {
            self.at = rest.clone();
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use sextant_environment::Env;

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

    #[tokio::test]
    async fn a_scan_of_several_partitions_tells_what_is_new_when_its_caller_has_waited() {
        let env = Env::real();
        let rest = |start: &'static str| Rest {
            start: start.into(),
            end: "".into(),
            reverse: false,
            large_at: None,
            ask_at_least: 0,
        };
        let mut told = Told::begin(&*env.clock, Some(Duration::ZERO), &rest("a"));
        assert!(told.is_due());
        told.in_time(std::future::pending()).await.unwrap();
        assert!(!told.goes_on_at(&rest("a"), false), "that is known");
        assert!(told.goes_on_at(&rest("b"), false) && !told.goes_on_at(&rest("b"), false));
        assert!(told.goes_on_at(&rest("b"), true));
        assert!(!Told::begin(&*env.clock, Some(Duration::from_secs(3600)), &rest("a")).is_due());
        let mut records_only = Told::begin(&*env.clock, None, &rest("a"));
        assert!(!records_only.is_due() && !records_only.goes_on_at(&rest("b"), false));
        assert!(records_only.goes_on_at(&rest("b"), true));
    }
}
