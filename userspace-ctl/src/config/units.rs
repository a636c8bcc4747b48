// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How values are written in the configuration file, and in which ranges they may lie.
//!
//! Times are text with a unit (`"500ms"`, `"5s"`, `"2m"`), so that nobody has to remember which key
//! counts in what; percentages are whole numbers; sizes are text (`"2G"`, `"20%"`, `"max"`).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};

use crate::Limit;

/// Longest time that a key takes: a day.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// A span of time: 1 ms to 24 h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(Duration);

impl Span {
    /// So many milliseconds.
    pub const fn ms(ms: u64) -> Span {
        Span(Duration::from_millis(ms))
    }

    /// So many seconds.
    pub const fn s(s: u64) -> Span {
        Span(Duration::from_secs(s))
    }

    /// The time.
    pub const fn get(self) -> Duration {
        self.0
    }

    /// The time, this many times as long. A factor that makes no sense changes nothing.
    pub fn scaled(self, factor: f64) -> Span {
        Duration::try_from_secs_f64(self.0.as_secs_f64() * factor).map_or(self, Span)
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let factor = match unit {
            "ms" => Some(1),
            "s" => Some(1000),
            "m" => Some(60 * 1000),
            "h" => Some(60 * 60 * 1000),
            _ => None,
        };
        number
            .parse::<u64>()
            .ok()
            .zip(factor)
            .and_then(|(number, factor)| number.checked_mul(factor))
            .map(Duration::from_millis)
            .filter(|time| !time.is_zero() && *time <= LONGEST)
            .map(Span)
            .ok_or_else(|| {
                format!("{text:?} is no time from 1ms to 24h, such as \"500ms\", \"5s\", \"2m\"")
            })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        match (ms % 60_000, ms % 1000) {
            (0, _) => write!(f, "{}m", ms / 60_000),
            (_, 0) => write!(f, "{}s", ms / 1000),
            _ => write!(f, "{ms}ms"),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// A whole number of at least `MIN` and at most `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Within<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> Within<MIN, MAX> {
    /// The nearest number in the range.
    pub const fn new(number: u32) -> Self {
        if number < MIN {
            Within(MIN)
        } else if number > MAX {
            Within(MAX)
        } else {
            Within(number)
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number as a part of 100.
    pub fn part(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

impl<const MIN: u32, const MAX: u32> Serialize for Within<MIN, MAX> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(self.0)
    }
}

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Within<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(from)?;
        match u32::try_from(number) {
            Ok(number) if (MIN..=MAX).contains(&number) => Ok(Within(number)),
            _ => Err(D::Error::custom(format!(
                "{number} is not from {MIN} to {MAX}"
            ))),
        }
    }
}

/// Percent: 1 to 100.
pub type Percent = Within<1, 100>;

/// A part of a whole: 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Part(f64);

impl Part {
    /// This part; what lies outside of 0 to 1 is cut off.
    pub const fn new(part: f64) -> Part {
        Part(part.clamp(0.0, 1.0))
    }

    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(self.0)
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let part = f64::deserialize(from)?;
        match (0.0..=1.0).contains(&part) {
            true => Ok(Part(part)),
            false => Err(D::Error::custom(format!("{part} is not from 0 to 1"))),
        }
    }
}

/// How much memory the store may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreSize {
    /// So many percent of the machine's memory.
    OfMemory(Percent),
    /// So many bytes, or no bound.
    Bytes(Limit),
}

impl StoreSize {
    /// The bound on a machine with this much memory.
    pub fn limit(self, total: u64) -> Limit {
        match self {
            StoreSize::OfMemory(percent) => Limit(Some(total / 100 * u64::from(percent.get()))),
            StoreSize::Bytes(limit) => limit,
        }
    }
}

impl FromStr for StoreSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let problem = || format!("{text:?} is neither \"1%\" to \"100%\" nor \"2G\" nor \"max\"");
        match text.strip_suffix('%') {
            Some(percent) => match percent.parse() {
                Ok(number @ 1..=100) => Ok(StoreSize::OfMemory(Percent::new(number))),
                _ => Err(problem()),
            },
            None => text.parse().map(StoreSize::Bytes).map_err(|_| problem()),
        }
    }
}

impl Serialize for StoreSize {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            StoreSize::OfMemory(percent) => to.collect_str(&format_args!("{}%", percent.get())),
            StoreSize::Bytes(limit) => to.serialize_str(&limit.to_file()),
        }
    }
}

impl<'de> Deserialize<'de> for StoreSize {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Permission bits of a socket, in octal: `"0660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:04o}", self.0))
    }
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        match u32::from_str_radix(&text, 8) {
            Ok(mode) if mode <= 0o777 && !text.starts_with('+') => Ok(Mode(mode)),
            _ => Err(D::Error::custom(format!(
                "{text:?} is no mode in octal, such as \"0660\""
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        for (text, ms) in [
            ("1ms", 1),
            ("500ms", 500),
            ("5s", 5000),
            ("2m", 120_000),
            ("24h", 86_400_000),
        ] {
            assert_eq!(text.parse(), Ok(Span::ms(ms)), "{text}");
        }
        for bad in [
            "",
            "5",
            "s",
            "0s",
            "-1s",
            "1.5s",
            "25h",
            "5 s",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert!(bad.parse::<Span>().is_err(), "{bad:?}");
        }
        assert_eq!(Span::ms(1500).to_string(), "1500ms");
        assert_eq!(Span::s(30).to_string(), "30s");
        assert_eq!(Span::s(30).scaled(2.0), Span::s(60));
        assert_eq!(Span::s(30).scaled(f64::NAN), Span::s(30));
    }

    #[test]
    fn sizes_of_the_store() {
        let size = |text: &str| text.parse::<StoreSize>();
        assert_eq!(size("20%").unwrap().limit(1000), Limit(Some(200)));
        assert_eq!(size("1G").unwrap().limit(0), Limit(Some(1 << 30)));
        assert_eq!(size("max").unwrap().limit(0), Limit::NONE);
        for bad in ["", "0%", "101%", "%", "much"] {
            assert!(size(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn numbers_stay_in_their_range() {
        assert_eq!(Percent::new(0).get(), 1);
        assert_eq!(Percent::new(1000).get(), 100);
        assert_eq!(Part::new(7.0).get(), 1.0);
    }
}
