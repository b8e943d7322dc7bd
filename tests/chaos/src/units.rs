//! Times and shares, as a command line has them: `0.2ms`, `0.1%`.

/// `200us`, `0.2ms`, `1s`: in nanoseconds.
pub fn nanoseconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no time, as 200us, 0.2ms and 1s are");
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let of = |(unit, ns): (&str, f64)| Some((text.strip_suffix(unit)?, ns));
    let (number, ns) = units.into_iter().find_map(of).ok_or_else(wrong)?;
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    if (0.0..=60e9).contains(&(number * ns)) { Ok((number * ns).round() as u64) } else { Err(wrong()) }
}

/// `0.1%`, or `0.001`: below 1.
pub fn share(text: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is no share below 1, as 0.1% and 0.001 are");
    let (number, of) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    if (0.0..1.0).contains(&(number / of)) { Ok(number / of) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        let good = [("200us", 200_000), ("0.2ms", 200_000), ("1s", 1_000_000_000), ("7ns", 7), ("0ms", 0)];
        for (text, ns) in good {
            assert_eq!(nanoseconds(text), Ok(ns), "{text}");
        }
        for text in ["", "5", "ms", "-1ms", "x ms", "infs", "NaNs", "61s"] {
            assert!(nanoseconds(text).unwrap_err().contains("is no time"), "{text}");
        }
    }

    #[test]
    fn shares_are_fractions_or_percent() {
        for (text, of) in [("0.1%", 0.001), ("0.001", 0.001), ("0", 0.0), ("50 %", 0.5)] {
            assert_eq!(share(text), Ok(of), "{text}");
        }
        for text in ["", "%", "100%", "1", "-0.1", "NaN", "x"] {
            assert!(share(text).unwrap_err().contains("is no share"), "{text}");
        }
    }
}
