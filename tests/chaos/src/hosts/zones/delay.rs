//! What a frame goes through between two ends of a cable: pure, `(frame, now) -> when it arrives`.
//!
//! The same parameters as the kernel's netem has, with the same meaning ([`Quality::netem`]).

use std::collections::VecDeque;
use std::f64::consts::TAU;
use std::sync::Arc;

use clap::ValueEnum;
use sextant_environment::rng::Rng;

/// Frames under way in one direction: half a second of a fast link. What comes on top is lost, as in a router.
const FRAMES_MAX: usize = 65_536;
/// No frame is later than so many times the jitter: netem's tables end there.
const TAIL_MAX: f64 = 4.0;

/// How delays are spread around their mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// Evenly, up to the jitter on either side.
    #[default]
    Uniform,
    /// The jitter is the standard deviation.
    Normal,
    /// The same; most frames are a little early, a few very late.
    Pareto,
}

impl Shape {
    /// How far a frame is from the mean, in jitters.
    fn draw(self, rng: &dyn Rng) -> f64 {
        // In `(0, 1]`.
        let unit = || 1.0 - rng.unit_f64();
        let drawn = match self {
            Shape::Uniform => return 2.0 * unit() - 1.0,
            Shape::Normal => (-2.0 * unit().ln()).sqrt() * (TAU * unit()).cos(),
            // With the exponent 3, as netem has it: the mean is 1.5, the variance 0.75.
            Shape::Pareto => (unit().powf(-1.0 / 3.0) - 1.5) / 0.75_f64.sqrt(),
        };
        drawn.clamp(-TAIL_MAX, TAIL_MAX)
    }
}

/// Of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quality {
    pub delay_ns: u64,
    /// How far delays are spread. Frames stay in order: behind a late one all are late.
    pub jitter_ns: u64,
    pub shape: Shape,
    /// Share of the frames that never arrive.
    pub loss: f64,
    /// Share of the frames that arrive at once, before what is under way.
    pub reorder: f64,
}

impl Quality {
    /// A cable like this changes nothing.
    pub fn is_perfect(&self) -> bool {
        self.delay_ns == 0 && self.jitter_ns == 0 && self.loss == 0.0 && self.reorder == 0.0
    }

    /// Whether it matters which frame is whose: then they have to be of the wire's size.
    pub fn singles_out(&self) -> bool {
        self.loss > 0.0 || self.reorder > 0.0
    }

    /// The words of `tc` for it.
    pub fn netem(&self) -> Vec<String> {
        let us = |ns: u64| format!("{}us", ns as f64 / 1e3);
        let percent = |share: f64| format!("{}%", share * 100.0);
        let mut words = vec!["netem".to_owned()];
        // Frames that nobody has room for are lost.
        words.extend(["limit".to_owned(), FRAMES_MAX.to_string()]);
        words.extend(["delay".to_owned(), us(self.delay_ns)]);
        if self.jitter_ns > 0 {
            words.push(us(self.jitter_ns));
            match self.shape {
                Shape::Uniform => {}
                Shape::Normal => words.extend(["distribution".to_owned(), "normal".to_owned()]),
                Shape::Pareto => words.extend(["distribution".to_owned(), "pareto".to_owned()]),
            }
            // With a rate, and only then, netem delays no frame for less time than the one before it.
            words.extend(["rate".to_owned(), "100gbit".to_owned()]);
        }
        if self.loss > 0.0 {
            words.extend(["loss".to_owned(), percent(self.loss)]);
        }
        if self.reorder > 0.0 {
            words.extend(["reorder".to_owned(), percent(self.reorder)]);
        }
        words
    }
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

    fn happens(&self, share: f64) -> bool {
        share > 0.0 && self.rng.unit_f64() < share
    }

    /// False: the frame is lost.
    pub fn push(&mut self, now_ns: u64, frame: &[u8]) -> bool {
        let Quality { delay_ns, jitter_ns, shape, loss, reorder } = self.quality;
        if self.frames.len() >= FRAMES_MAX || self.happens(loss) {
            return false;
        }
        if self.happens(reorder) {
            let at = self.frames.partition_point(|(due_ns, _)| *due_ns <= now_ns);
            self.frames.insert(at, (now_ns, frame.to_vec()));
            return true;
        }
        let jitter = if jitter_ns == 0 { 0.0 } else { jitter_ns as f64 * shape.draw(&*self.rng) };
        let delay_ns = delay_ns.saturating_add_signed(jitter as i64);
        let before_ns = self.frames.back().map_or(0, |(due_ns, _)| *due_ns);
        self.frames.push_back(((now_ns + delay_ns).max(before_ns), frame.to_vec()));
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

    fn arrived(line: &mut DelayLine) -> Vec<(u64, Vec<u8>)> {
        std::iter::from_fn(|| line.pop(u64::MAX)).collect()
    }

    #[test]
    fn frames_stay_in_order_whatever_the_jitter() {
        for shape in Shape::value_variants() {
            let quality = Quality { delay_ns: 1_000, jitter_ns: 900, shape: *shape, ..Quality::default() };
            let mut line = line(quality);
            for n in 0..200u8 {
                assert!(line.push(10 * u64::from(n), &[n]));
            }
            let arrived = arrived(&mut line);
            assert!(arrived.iter().enumerate().all(|(n, (_, frame))| frame[..] == [n as u8]));
            assert!(arrived.is_sorted_by_key(|(due_ns, _)| *due_ns));
            assert!(arrived.windows(2).any(|two| two[0].0 + 10 < two[1].0), "no jitter at all: {shape:?}");
        }
    }

    /// Far apart, frames do not wait for each other.
    #[test]
    fn delays_are_spread_around_their_mean_as_the_shape_has_it() {
        const FRAMES: u64 = 20_000;
        let delays = |shape| {
            let quality = Quality { delay_ns: 10_000, jitter_ns: 1_000, shape, ..Quality::default() };
            let mut line = line(quality);
            (0..FRAMES).for_each(|n| assert!(line.push(100_000 * n, b"x")));
            let arrived = arrived(&mut line);
            (0..FRAMES).zip(arrived).map(|(n, (due_ns, _))| due_ns - 100_000 * n).collect::<Vec<u64>>()
        };
        for (shape, deviation, earliest, latest) in [
            (Shape::Uniform, 577.0, 9_000, 11_000),
            (Shape::Normal, 1_000.0, 6_000, 14_000),
            (Shape::Pareto, 1_000.0, 9_422, 14_000),
        ] {
            let delays = delays(shape);
            let mean = delays.iter().sum::<u64>() as f64 / FRAMES as f64;
            let variance = delays.iter().map(|ns| (*ns as f64 - mean).powi(2)).sum::<f64>() / FRAMES as f64;
            assert!((mean - 10_000.0).abs() < 100.0, "{shape:?}: {mean}");
            // What the tail's end takes away is much for Pareto.
            assert!((0.6..1.1).contains(&(variance.sqrt() / deviation)), "{shape:?}: {}", variance.sqrt());
            assert!(delays.iter().all(|ns| (earliest..=latest).contains(ns)), "{shape:?}");
        }
        let late = |shape| delays(shape).into_iter().filter(|ns| *ns > 13_000).count();
        assert!(late(Shape::Pareto) > late(Shape::Normal) && late(Shape::Uniform) == 0);
    }

    #[test]
    fn a_delay_is_never_negative() {
        let mut line = line(Quality { delay_ns: 1, jitter_ns: 1_000, ..Quality::default() });
        (0..100).for_each(|n| assert!(line.push(10_000 * n, b"x")));
        assert!((0..100).zip(arrived(&mut line)).all(|(n, (due_ns, _))| due_ns >= 10_000 * n));
    }

    #[test]
    fn the_share_that_is_to_overtake_arrives_at_once_and_the_others_keep_their_order() {
        let mut line = line(Quality { delay_ns: 1_000_000, reorder: 0.1, ..Quality::default() });
        for n in 0..10_000u16 {
            assert!(line.push(u64::from(n), &n.to_le_bytes()));
        }
        let (at_once, later): (Vec<_>, Vec<_>) =
            arrived(&mut line).into_iter().partition(|(due_ns, _)| *due_ns < 1_000_000);
        assert!((800..1_200).contains(&at_once.len()), "{}", at_once.len());
        let number = |(_, frame): &(u64, Vec<u8>)| u16::from_le_bytes([frame[0], frame[1]]);
        assert!(at_once.is_sorted_by_key(number) && later.is_sorted_by_key(number));
        assert!(at_once.iter().all(|of| of.0 == u64::from(number(of))));
        assert_eq!(at_once.len() + later.len(), 10_000);
    }

    #[test]
    fn the_same_seed_loses_and_delays_the_same_frames() {
        let run = |seed| {
            let quality = Quality { jitter_ns: 500, loss: 0.2, reorder: 0.1, ..Quality::default() };
            let mut line = DelayLine::new(quality, Arc::new(SeededRng::new(seed)));
            for n in 0..100 {
                let _ = line.push(1_000 * u64::from(n), &[n]);
            }
            arrived(&mut line)
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn the_kernel_is_told_the_same() {
        let words = |quality: Quality| quality.netem().join(" ");
        let delay_ns = 2_500_000;
        let plain = Quality { delay_ns, ..Quality::default() };
        assert_eq!(words(plain), "netem limit 65536 delay 2500us");
        let jitter_ns = 1_000_000;
        let uneven = Quality { jitter_ns, loss: 0.001, reorder: 0.02, ..plain };
        assert_eq!(words(uneven), "netem limit 65536 delay 2500us 1000us rate 100gbit loss 0.1% reorder 2%");
        let tail = Quality { jitter_ns, shape: Shape::Pareto, ..plain };
        assert_eq!(words(tail), "netem limit 65536 delay 2500us 1000us distribution pareto rate 100gbit");
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
