//! Medians, and ours against the better of the others.

use crate::engines::Compression;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    Build,
    Size,
    Warm,
    SmallCache,
    Absent,
    Forward,
    Backward,
}

const ROWS: [(Row, &str); 7] = [
    (Row::Build, "build, MB/s"),
    (Row::Size, "size / records"),
    (Row::Warm, "get, cached, ns"),
    (Row::SmallCache, "get, cache of 5 %, ns"),
    (Row::Absent, "absent key, ns"),
    (Row::Forward, "scan, ns a record"),
    (Row::Backward, "reverse scan, ns a record"),
];

pub struct Figures {
    engines: Vec<&'static str>,
    /// By row and engine, ours first.
    seen: Vec<Vec<Vec<f64>>>,
}

impl Figures {
    pub fn new(engines: Vec<&'static str>) -> Self {
        let seen = vec![vec![Vec::new(); engines.len()]; ROWS.len()];
        Self { engines, seen }
    }

    pub fn add(&mut self, row: Row, engine: usize, figure: f64) {
        let at = ROWS.iter().position(|(known, _)| *known == row).expect("all rows are listed");
        self.seen[at][engine].push(figure);
    }

    /// The ratio is ours to the better one; below 1 is better for us, but for MB/s.
    pub fn print(&self, value_bytes: usize, compression: Compression) {
        print!("\n{:<28}", format!("{value_bytes} B, {compression:?}"));
        self.engines.iter().for_each(|name| print!("{name:>12}"));
        println!("{:>12}", "ratio");
        for ((row, name), seen) in ROWS.iter().zip(&self.seen) {
            let medians: Vec<f64> = seen.iter().map(|figures| median(figures)).collect();
            print!("{name:<28}");
            let digits = if *row == Row::Size { 3 } else { 0 };
            medians.iter().for_each(|median| print!("{median:>12.digits$}"));
            let better = |a: f64, b: f64| if *row == Row::Build { a.max(b) } else { a.min(b) };
            match medians[1..].iter().copied().reduce(better) {
                Some(best) => println!("{:>12.2}", medians[0] / best),
                None => println!("{:>12}", "-"),
            }
        }
    }
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
