//! What a frame goes through between the zones: pure, `(frame, now) -> when it arrives`.

use std::collections::VecDeque;
use std::sync::Arc;

use sextant_environment::rng::Rng;

/// Frames under way in one direction: half a second of a fast link. What comes on top is lost, as in a router.
const FRAMES_MAX: usize = 65_536;

/// Of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quality {
    pub delay_ns: u64,
    /// Up to so much comes on top, evenly. Frames stay in order.
    pub jitter_ns: u64,
    /// Share of the frames that never arrive.
    pub loss: f64,
}

/// One direction. Its throughput is not limited.
pub struct DelayLine {
    quality: Quality,
    rng: Arc<dyn Rng>,
    /// In the order in which they arrive.
    frames: VecDeque<(u64, Vec<u8>)>,
}

impl DelayLine {
    pub fn new(quality: Quality, rng: Arc<dyn Rng>) -> Self {
        Self { quality, rng, frames: VecDeque::new() }
    }

    /// False: the frame is lost.
    pub fn push(&mut self, now_ns: u64, frame: &[u8]) -> bool {
        let Quality { delay_ns, jitter_ns, loss } = self.quality;
        if self.frames.len() >= FRAMES_MAX || (loss > 0.0 && self.rng.unit_f64() < loss) {
            return false;
        }
        let jitter_ns = if jitter_ns == 0 { 0 } else { self.rng.below(jitter_ns + 1) };
        let before_ns = self.frames.back().map_or(0, |(due_ns, _)| *due_ns);
        self.frames.push_back(((now_ns + delay_ns + jitter_ns).max(before_ns), frame.to_vec()));
        true
    }

    /// When the next frame arrives.
    pub fn next_ns(&self) -> Option<u64> {
        self.frames.front().map(|(due_ns, _)| *due_ns)
    }

    /// A frame that has arrived by now, and since when.
    pub fn pop(&mut self, now_ns: u64) -> Option<(u64, Vec<u8>)> {
        if self.next_ns()? > now_ns {
            return None;
        }
        self.frames.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use sextant_environment::rng::SeededRng;

    use super::*;

    fn line(quality: Quality) -> DelayLine {
        DelayLine::new(quality, Arc::new(SeededRng::new(7)))
    }

    #[test]
    fn a_frame_arrives_when_its_delay_is_over_and_not_before() {
        let mut line = line(Quality { delay_ns: 2_500, ..Quality::default() });
        assert!(line.push(1_000, b"a") && line.push(1_200, b"b"));
        assert_eq!(line.next_ns(), Some(3_500));
        assert_eq!(line.pop(3_499), None);
        assert_eq!(line.pop(3_700), Some((3_500, b"a".to_vec())));
        assert_eq!(line.pop(3_700), Some((3_700, b"b".to_vec())));
        assert_eq!((line.pop(9_000), line.next_ns()), (None, None));
    }

    #[test]
    fn frames_stay_in_order_whatever_the_jitter() {
        let mut line = line(Quality { delay_ns: 100, jitter_ns: 1_000, loss: 0.0 });
        for n in 0..200u8 {
            assert!(line.push(u64::from(n), &[n]));
        }
        let arrived: Vec<(u64, Vec<u8>)> = std::iter::from_fn(|| line.pop(u64::MAX)).collect();
        assert!(arrived.iter().enumerate().all(|(n, (_, frame))| frame[..] == [n as u8]));
        assert!(arrived.is_sorted_by_key(|(due_ns, _)| *due_ns));
        assert!(arrived.iter().any(|(due_ns, _)| *due_ns > 300), "no jitter at all");
    }

    #[test]
    fn the_share_that_is_to_be_lost_is_lost() {
        let mut line = line(Quality { loss: 0.1, ..Quality::default() });
        let lost = (0..10_000).filter(|n| !line.push(*n, b"x")).count();
        assert!((800..1_200).contains(&lost), "{lost}");
    }

    #[test]
    fn frames_under_way_are_bounded() {
        let mut line = line(Quality { delay_ns: 1, ..Quality::default() });
        assert!((0..FRAMES_MAX).all(|_| line.push(0, b"x")));
        assert!(!line.push(0, b"x"));
    }
}
